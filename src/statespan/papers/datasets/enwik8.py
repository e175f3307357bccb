"""enwik8: the first 100,000,000 bytes of a copy of the English Wikipedia, byte by byte.

Shapes: T bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path

import numpy as np

from statespan.data.base import Array, Dataset
from statespan.data.cache import cached, stamp
from statespan.data.own_text import text_dataset
from statespan.data.registry import register_dataset
from statespan.data.source import Source, found
from statespan.data.vocabulary import Vocabulary

SIZE = 100_000_000
SHA256 = "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8"  # of the bytes, however they were packed
TRAIN, VALID = 90_000_000, 5_000_000  # the rest is the test
FILES = (
    Source(
        "enwik8",
        origin="the Large Text Compression Benchmark, or data/enwik8.gz in the source archive of minGRU-pytorch 0.2.1",
        size=SIZE,
        also=("enwik8.gz",),
    ),
)


def read_enwik8(path: Path) -> Array:
    """The bytes (T,) of the file, unpacked if it is a gzip file; any other content is a ValueError."""
    open_file = gzip.open if path.suffix == ".gz" else open
    try:
        with open_file(path, "rb") as file:
            content = file.read(SIZE + 1)  # not more, whatever it unpacks to
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if len(content) != SIZE:
        raise ValueError(f"{path} must hold {SIZE:,} bytes, got {'more' if len(content) > SIZE else len(content)}")
    if (digest := hashlib.sha256(content).hexdigest()) != SHA256:
        raise ValueError(f"{path} must hold enwik8, whose SHA-256 is {SHA256}, got {digest}")
    return np.frombuffer(content, np.uint8)


@register_dataset("enwik8", "enwik8: 100 MB of Wikipedia, byte by byte", files=FILES)
def enwik8(folder: Path, *, length: int = 1024, eval_length: int | None = None) -> Dataset:
    """Wikipedia's markup as bytes: 90 MB to train, 5 MB to validate and 5 MB to test, the usual split.

    Args:
        folder: Where ``enwik8`` or ``enwik8.gz`` lies.
        length: Bytes of a training window. The windows follow each other; the rest at the end is unused.
        eval_length: Bytes of an evaluation window, ``length`` by default. The windows follow each other and the last
            one is kept, so that every byte of a part but its first is predicted exactly once.
    """
    (path,) = found(FILES, folder)
    arrays = cached(folder, "enwik8", {"version": 1, "files": stamp(path)}, lambda: {"bytes": read_enwik8(path)})
    parts = np.split(arrays["bytes"], [TRAIN, TRAIN + VALID])
    return text_dataset("enwik8", Vocabulary("bytes"), parts, (length, eval_length))
