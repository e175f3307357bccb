"""One sample in one file: WAV, CSV, npy or npz, as an array (L, D) of float32."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from statespan.data.lines import bounded
from statespan.data.npy import load, load_all
from statespan.data.wav import read_wav, to_float

Array: TypeAlias = "np.ndarray[Any, Any]"
ENDINGS = (".wav", ".csv", ".npy", ".npz")


def read_sample(path: Path | str) -> tuple[Array, float | None]:
    """Read a series from a file.

    Args:
        path: A .wav file; a .csv file with a line for each time and a column for each feature, with or without a
            header; a .npy file with an array (L,) or (L, D); or a .npz file with such an array named x, or only one.

    Returns:
        The series (L, D) as float32, audio in [-1, 1); and the samples a second, where the file says so.

    Raises:
        ValueError: The file is damaged, of another kind, empty or not of finite numbers; the message names it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(Path(folder) / "a.npy", np.arange(4))
        ...     read_sample(Path(folder) / "a.npy")[0].shape
        (4, 1)
    """
    path, rate = Path(path), None
    ending = path.suffix.lower()
    if ending == ".wav":
        samples, rate = read_wav(path)
        array = to_float(samples)
    elif ending == ".csv":
        _, rows = read_csv(path)
        array = numbers(path, rows)
    elif ending == ".npy":
        array = load(path)
    elif ending == ".npz":
        arrays = load_all(path)
        if "x" not in arrays and len(arrays) != 1:
            raise ValueError(f"{path} must have an array x, or one array only, got {sorted(arrays)}")
        array = arrays.get("x", next(iter(arrays.values())))
    else:
        raise ValueError(f"{path} must end in one of {ENDINGS}")
    return series(str(path), array), rate


def series(name: str, array: Array) -> Array:
    """An array (L,) or (L, D) of finite numbers as (L, D) of float32."""
    if array.dtype.kind not in "fiub" or array.ndim not in (1, 2) or not array.size:
        raise ValueError(f"{name} must be a series (L,) or (L, D) of numbers, got {array.dtype} {array.shape}")
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused
        array = array.astype(np.float32).reshape(len(array), -1)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must have finite numbers only, got one that is not")
    return array


def read_csv(path: Path) -> tuple[list[str], list[list[str]]]:
    """The header, empty if the first line is of numbers, and the lines of a CSV file, which must have equal lengths."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            rows = [row for row in csv.reader(bounded(file)) if row]
        except (csv.Error, ValueError) as problem:
            raise ValueError(f"{path} is not a CSV file: {problem}") from None
    if not rows:
        raise ValueError(f"{path} must have at least one line, got none")
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise ValueError(f"{path}, line {number}: must have {len(rows[0])} fields, got {len(row)}")
    return ([], rows) if all(_is_number(field) for field in rows[0]) else (rows[0], rows[1:])


def numbers(path: Path, rows: list[list[str]]) -> Array:
    """The fields of a CSV file as numbers."""
    for number, row in enumerate(rows, 1):
        for field in row:
            if not _is_number(field):
                raise ValueError(f"{path}, row {number}: must have numbers only, got {field!r}")
    return np.array(rows, dtype=np.float64)


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True
