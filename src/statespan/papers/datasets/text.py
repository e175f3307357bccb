"""LRA Text: sentiment of movie reviews (IMDB), read character by character or byte by byte.

Tokens may be masked: as noise in training, or as targets for pre-training without labels.

Shapes: B batch, L length.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from statespan._check import check_bool, check_choice, check_int, check_number
from statespan.data.base import Array, Batch, Dataset, Info, Windows
from statespan.data.cache import cached, stamp
from statespan.data.registry import register_dataset
from statespan.data.source import Source, found
from statespan.data.split import stratified
from statespan.data.tokens import PAD, SPECIAL, UNK, documents, encode, padded, vocabulary

VERSION = 1
CLASSES = ("neg", "pos")
_PRIME, _SQUARE, _LINE = 65521, 7919, 104_729  # for a fixed pattern without a rhythm
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


@dataclass(frozen=True)
class Hide:
    """Replace a random share of the tokens of a training batch by <unk>, redrawn for every batch.

    Example:
        >>> batch = Batch(torch.tensor([[5, 6, 7, 8, 2, 0]]), torch.tensor([1]), torch.tensor([5]))
        >>> Hide(0.5)(batch, torch.Generator().manual_seed(1)).x.tolist()
        [[5, 1, 1, 8, 1, 0]]
    """

    share: float

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The batch, x of shape (B, L)."""
        return batch._replace(x=torch.where(_draw(batch.x, self.share, generator), UNK, batch.x))


@dataclass(frozen=True)
class Find:
    """Masked tokens as targets: y holds these, and −1 − token, which is ignored, elsewhere.

    A call masks the same positions in every row, so that evaluations can be compared; :meth:`anew` draws others for
    training.

    Example:
        >>> rows = {"tokens": torch.tensor([[5, 6, 7, 8, 2]]), "lengths": torch.tensor([5]), "y": torch.tensor([1])}
        >>> Find(0.5)(rows)[:3]
        (tensor([[1, 6, 7, 8, 1]]), tensor([[ 5, -7, -8, -9,  2]]), tensor([5]))
    """

    share: float

    def __call__(self, rows: dict[str, Tensor]) -> Batch:
        """The batch of these rows, x and y of shape (B, L)."""
        batch = padded(rows)
        n = torch.arange(batch.x.shape[1], device=batch.x.device)
        drawn = (n * n * _SQUARE + n * _LINE) % _PRIME < self.share * _PRIME
        return _ask(batch, batch.x, drawn & (batch.x != PAD))

    def anew(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The batch with newly drawn tokens masked."""
        tokens = torch.where(batch.y < 0, -1 - batch.y, batch.y)
        return _ask(batch, tokens, _draw(tokens, self.share, generator))


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

    Example:
        >>> options = TextOptions(level="byte", hide=0.15)
        >>> options.length, options.hide
        (4096, 0.15)
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


@register_dataset(
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
    return hide(Dataset("text", info, parts[0], parts[1], parts[2]), options.hide, options.find)


def hide(dataset: Dataset, share: float, find: bool) -> Dataset:
    """A dataset of documents, without another augmentation, with this share of its tokens masked.

    With ``find`` the masked tokens are the targets of all splits; otherwise they are noise, in training only.
    """
    check_hidden(share, find)
    if not find:
        return dataset if share == 0 else replace(dataset, augment=Hide(share))
    masked = []
    for split in (dataset.train, dataset.valid, dataset.test):
        assert isinstance(split, Windows)
        other = copy.copy(split)
        other.prepare = Find(share)
        masked.append(other)
    tokens = dataset.info.vocabulary
    assert tokens is not None
    info = Info("masked", dataset.info.length, None, tokens, tokens)
    return replace(dataset, info=info, train=masked[0], valid=masked[1], test=masked[2], augment=Find(share).anew)


def check_hidden(share: float, find: bool) -> None:
    """Reject a share of masked tokens outside [0, 1), or of 0 if they are the targets."""
    check_number("hide", share, above=0.0, below=1.0, closed=not check_bool("find", find))


def _draw(tokens: Tensor, share: float, generator: torch.Generator) -> Tensor:
    return (torch.rand(tokens.shape, generator=generator, device=tokens.device) < share) & (tokens != PAD)


def _ask(batch: Batch, tokens: Tensor, hidden: Tensor) -> Batch:
    return batch._replace(x=torch.where(hidden, UNK, tokens), y=torch.where(hidden, tokens, -1 - tokens))


def _build(folders: list[Path], options: TextOptions) -> dict[str, Array]:
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
