"""LRA Text: sentiment of movie reviews (IMDB), read character by character or byte by byte."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from statespan._check import check_choice, check_int
from statespan.data.base import Dataset, Info
from statespan.data.cache import cached, stamp
from statespan.data.registry import register
from statespan.data.source import Source, found
from statespan.data.split import stratified
from statespan.data.tokens import SPECIAL, documents, encode, vocabulary
from statespan.papers.datasets.hidden import check_hidden
from statespan.papers.datasets.hidden import hide as hidden

VERSION = 1
CLASSES = ("neg", "pos")
FILES = tuple(
    Source(
        f"aclImdb/{part}/{kind}",
        url="https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
        sha256="c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
        size=84125825,
        also=(f"{part}/{kind}",),
    )
    for part in ("train", "test")
    for kind in CLASSES
)


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Options of the reviews.

    Args:
        level: "char", or "byte" of the UTF-8 text.
        length: Length of the longest input; reviews are cut to it, <eos> included.
        least: A character that occurs less often in the training reviews is <unk>.
        valid: Share of the training reviews kept for validation, the same of each class.
        seed: Seed of that split.
        hide: Share of the characters that are masked in training, others each time.
        find: Predict the masked characters instead of the classes, in all splits: pre-training without labels
            (``train.start``).
    """

    level: str = "char"
    length: int = 4096
    least: int = 15
    valid: float = 0.1
    seed: int = 42
    hide: float = 0.0
    find: bool = False

    def __post_init__(self) -> None:
        check_hidden(self.hide, self.find)
        check_choice("level", self.level, ("char", "byte"))
        check_int("length", self.length, minimum=2)
        check_int("least", self.least, minimum=1)


@register(
    "text",
    "LRA Text: IMDB reviews as characters or bytes, up to 4,096, 2 classes",
    files=FILES,
    folder="imdb",
    config=TextOptions,
)
def text(folder: Path, options: TextOptions) -> Dataset:
    """IMDB reviews. The reference validates on the test reviews; here part of the training reviews is held out."""
    folders = found(FILES, folder)
    key: dict[str, Any] = {name: getattr(options, name) for name in ("level", "length", "least", "valid", "seed")}
    key |= {"version": VERSION, "files": [[path.parent.name, *stamp(path)] for path in folders]}
    arrays = cached(folder, "text", key, lambda: _build(folders, options))
    parts = []
    for name in ("train", "valid", "test"):
        part = {field: arrays[f"{name}_{field}"] for field in ("tokens", "starts", "lengths")}
        parts.append(documents(part, arrays[f"{name}_y"], options.length))
    info = Info("classification", options.length, None, int(arrays["vocabulary"][0]), 2, CLASSES)
    return hidden(Dataset("text", info, parts[0], parts[1], parts[2]), options.hide, options.find)


def _build(folders: list[Path], options: TextOptions) -> dict[str, np.ndarray]:
    reviews = [_read(path, options.level) for path in folders]  # training neg, pos, test neg, pos
    train, test = reviews[0] + reviews[1], reviews[2] + reviews[3]
    y = np.repeat(np.array([0, 1, 0, 1], np.uint8), [len(part) for part in reviews])
    learned, held_out = stratified(y[: len(train)], (options.valid,), options.seed)
    is_char = options.level == "char"
    tokens = vocabulary(train, options.least) if is_char else {chr(i): SPECIAL + i for i in range(256)}
    arrays = {"vocabulary": np.array([SPECIAL + len(tokens)])}
    parts = {
        "train": ([train[i] for i in learned], y[learned]),
        "valid": ([train[i] for i in held_out], y[held_out]),
        "test": (test, y[len(train) :]),
    }
    for name, (texts, labels) in parts.items():
        arrays |= {f"{name}_{field}": array for field, array in encode(texts, tokens, options.length).items()}
        arrays[f"{name}_y"] = labels
    return arrays


def _read(folder: Path, level: str) -> list[str]:
    """Read the reviews of a folder, ordered by number; each byte becomes the character of its value."""
    paths = sorted(folder.glob("*.txt"), key=lambda path: (len(path.name.split("_")[0]), path.name))
    if not paths:
        raise ValueError(f"{folder} must hold reviews as .txt files, got none")
    encoding = "utf8" if level == "char" else "latin-1"
    return [path.read_bytes().decode(encoding) for path in paths]
