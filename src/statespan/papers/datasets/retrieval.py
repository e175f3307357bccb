"""LRA Retrieval: does one of two papers (ACL Anthology Network) cite the other? Read character by character."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from statespan._check import check_int
from statespan.data.base import Dataset, Info, Windows
from statespan.data.cache import cached, stamp
from statespan.data.registry import register_dataset
from statespan.data.source import Source, found
from statespan.data.tokens import SPECIAL, encode, padded, vocabulary

VERSION = 1
SPLITS = ("train", "eval", "test")
FILES = tuple(
    Source(
        f"new_aan_pairs.{split}.tsv",
        origin="tsv_data in https://storage.googleapis.com/long-range-arena/lra_release.gz",
        also=(f"tsv_data/new_aan_pairs.{split}.tsv", f"lra_release/tsv_data/new_aan_pairs.{split}.tsv"),
    )
    for split in SPLITS
)


@register_dataset(
    "retrieval", "LRA Retrieval: pairs of papers (AAN) as characters, up to 4,000 each, 2 classes", files=FILES
)
def retrieval(folder: Path, *, length: int = 4000) -> Dataset:
    """Pairs of papers. Every paper is stored once; a pair refers to two of them.

    Args:
        folder: With new_aan_pairs.train.tsv, .eval.tsv and .test.tsv.
        length: Length of the longest document; they are cut to it, <eos> included.
    """
    check_int("length", length, minimum=2)
    paths = found(FILES, folder)
    key = {"version": VERSION, "length": length, "files": stamp(*paths)}
    arrays = cached(folder, "retrieval", key, lambda: _build(paths, length))
    parts = []
    for name in SPLITS:
        pairs = arrays[f"{name}_pairs"]  # (N, 2) numbers of documents
        each = {"lengths": arrays["lengths"][pairs], "y": arrays[f"{name}_y"]}
        long = {"tokens": arrays["tokens"]}
        parts.append(Windows(long, starts=arrays["starts"][pairs], length=length, prepare=padded, each=each))
    info = Info("retrieval", length, None, int(arrays["vocabulary"][0]), 2, ("other", "same"))
    return Dataset("retrieval", info, parts[0], parts[1], parts[2])


def _build(paths: list[Path], length: int) -> dict[str, np.ndarray]:
    numbers: dict[str, int] = {}  # of each document, by the text that is read
    arrays: dict[str, np.ndarray] = {}
    n_training = 0
    for name, path in zip(SPLITS, paths):
        pairs, labels = [], []
        for label, first, second in _rows(path):
            pairs.append([numbers.setdefault(document[: length - 1], len(numbers)) for document in (first, second)])
            labels.append(label)
        if not pairs:
            raise ValueError(f"{path} must hold pairs of documents, got none")
        arrays[f"{name}_pairs"], arrays[f"{name}_y"] = np.array(pairs, np.int32), np.array(labels, np.uint8)
        n_training = n_training or len(numbers)
    texts = list(numbers)
    tokens = vocabulary(texts[:n_training])
    return {**arrays, **encode(texts, tokens, length), "vocabulary": np.array([SPECIAL + len(tokens)])}


def _rows(path: Path) -> Iterator[tuple[int, str, str]]:
    """The label and two texts of each line, which has label, two names and two texts, tab-separated and unquoted."""
    with path.open(encoding="utf8", newline="\n") as file:
        for number, line in enumerate(file, 1):
            fields = line.rstrip("\r\n").split("\t")
            if len(fields) != 5 or fields[0] not in ("0", "1", "0.0", "1.0"):
                raise ValueError(f"{path}, line {number}: must be label, two names and two texts, got {line[:60]!r}")
            yield int(fields[0][0]), fields[3], fields[4]
