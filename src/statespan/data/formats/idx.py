"""The idx format of MNIST: a magic number, the sizes, then bytes; gzipped or not."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

LARGEST = 1 << 30  # bytes; MNIST has 47 million
RATIO = 100  # bytes unpacked for one byte of the file; a small one may always unpack to 1 MiB


def read_idx(path: Path) -> np.ndarray:
    """The array of bytes in an idx file; one whose name ends in .gz is unpacked."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            allowed = min(LARGEST, max(1 << 20, RATIO * path.stat().st_size))
            data = file.read(allowed + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise ValueError(f"{path} is damaged: {problem}") from problem
    if len(data) > allowed:
        raise ValueError(f"{path} must unpack to at most {allowed} bytes, got more")
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise ValueError(f"{path} must be an idx file of bytes, got one that begins with {data[:4]!r}")
    begin = 4 + 4 * data[3]
    if len(data) < begin:
        raise ValueError(f"{path} is damaged: it ends before its sizes do")
    shape = tuple(np.frombuffer(data[4:begin], ">u4").astype(int).tolist())
    if len(data) - begin != int(np.prod(shape, dtype=np.int64)):
        raise ValueError(f"{path} is damaged: it has {len(data) - begin} bytes for the shape {shape}")
    return np.frombuffer(data, np.uint8, offset=begin).reshape(shape)
