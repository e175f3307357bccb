"""LRA Text: movie reviews (IMDB) character by character or byte by byte; are they kind?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from statespan._check import check_choice, check_int
from statespan.data.base import Dataset, Info
from statespan.data.cache import cached, stamp
from statespan.data.registry import register
from statespan.data.source import Source
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


@register("text", "LRA Text: IMDB reviews as characters or bytes, up to 4,096, 2 classes", files=FILES, folder="imdb")
def text(
    folder: Path,
    *,
    level: str = "char",
    length: int = 4096,
    least: int = 15,
    valid: float = 0.1,
    seed: int = 42,
    hide: float = 0.0,
    find: bool = False,
) -> Dataset:
    """IMDB reviews. The reference validates on the test reviews; here a part of the training reviews is kept for it.

    Args:
        folder: With aclImdb.
        level: "char", or "byte" of the UTF-8 text.
        length: Longest input; reviews are cut to it, <eos> included.
        least: A character that occurs less often in the training reviews is <unk>.
        valid: Share of the training reviews kept for validation, the same of each class.
        seed: Of that split.
        hide: Share of the characters that are hidden in training, others each time.
        find: Ask for the hidden characters instead of the classes, in all parts of the data: what a model can learn
            from the reviews alone, before it is told any class (``train.start``).
    """
    check_hidden(hide, find)
    check_choice("level", level, ("char", "byte"))
    check_int("length", length, minimum=2)
    check_int("least", least, minimum=1)
    folders = [path for source in FILES if (path := source.find(folder)) is not None]
    key = {"version": VERSION, "level": level, "length": length, "least": least, "valid": valid, "seed": seed}
    key["files"] = [[path.parent.name, *stamp(path)] for path in folders]
    arrays = cached(folder, "text", key, lambda: _build(folders, level, length, least, valid, seed))
    parts = []
    for name in ("train", "valid", "test"):
        part = {field: arrays[f"{name}_{field}"] for field in ("tokens", "starts", "lengths")}
        parts.append(documents(part, arrays[f"{name}_y"], length))
    info = Info("classification", length, None, int(arrays["vocabulary"][0]), 2, CLASSES)
    return hidden(Dataset("text", info, parts[0], parts[1], parts[2]), hide, find)


def _build(
    folders: list[Path], level: str, length: int, least: int, valid: float, seed: int
) -> dict[str, np.ndarray[Any, Any]]:
    reviews = [_read(path, level) for path in folders]  # training neg, pos, test neg, pos
    train, test = reviews[0] + reviews[1], reviews[2] + reviews[3]
    y = np.repeat(np.array([0, 1, 0, 1], np.uint8), [len(some) for some in reviews])
    kept, held = stratified(y[: len(train)], (valid,), seed)
    tokens = vocabulary(train, least) if level == "char" else {chr(i): SPECIAL + i for i in range(256)}
    arrays = {"vocabulary": np.array([SPECIAL + len(tokens)])}
    parts = {
        "train": ([train[i] for i in kept], y[kept]),
        "valid": ([train[i] for i in held], y[held]),
        "test": (test, y[len(train) :]),
    }
    for name, (texts, labels) in parts.items():
        arrays.update({f"{name}_{field}": array for field, array in encode(texts, tokens, length).items()})
        arrays[f"{name}_y"] = labels
    return arrays


def _read(folder: Path, level: str) -> list[str]:
    """The reviews of a folder, ordered by their numbers; a byte is the character of its value."""
    paths = sorted(folder.glob("*.txt"), key=lambda path: (len(path.name.split("_")[0]), path.name))
    if not paths:
        raise ValueError(f"{folder} must hold reviews as .txt files, got none")
    encoding = "utf8" if level == "char" else "latin-1"
    return [path.read_bytes().decode(encoding) for path in paths]
