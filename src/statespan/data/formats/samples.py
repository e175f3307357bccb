"""Reads one sample from one file (WAV, CSV, npy or npz) as an array (L, D) of float32."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import IO

import numpy as np

from statespan._text import is_number
from statespan.data.base import Array
from statespan.data.formats.limits import bounded
from statespan.data.formats.npy import load, load_all
from statespan.data.formats.wav import decode_wav, read_wav, to_float

ENDINGS = (".wav", ".csv", ".npy", ".npz")


def read_sample(path: Path | str) -> tuple[Array, float | None]:
    """Read a series (L, D) of float32, audio in [-1, 1), and its sampling rate if the file contains it.

    A .wav file; a .csv file with a line for each time and a column for each feature, with or without a header; a .npy
    file with an array (L,) or (L, D); or a .npz file with such an array named x, or only one. Errors name the file.

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
        _, rows, lines = read_csv(path)
        array = numbers(path, rows, lines)
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


def decode_sample(ending: str, content: bytes) -> tuple[Array, float | None]:
    r"""What :func:`read_sample` returns, from the bytes of a .wav or .csv file.

    Example:
        >>> decode_sample(".csv", b"a,b\n1,2\n3,4\n")[0].tolist()
        [[1.0, 2.0], [3.0, 4.0]]
    """
    if ending == ".wav":
        try:
            samples, rate = decode_wav(content)
        except ValueError as error:
            raise ValueError(f"the WAV file cannot be read: {error}") from None
        return series("the WAV file", to_float(samples)), rate
    if ending != ".csv":
        raise ValueError(f"ending must be .wav or .csv, got {ending!r}")
    name = "the CSV file"
    _, rows, lines = _parse_csv(name, io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline=""))
    return series(name, numbers(name, rows, lines)), None


def series(name: str, array: Array) -> Array:
    """An array (L,) or (L, D) of finite numbers as (L, D) of float32."""
    if array.dtype.kind not in "fiub" or array.ndim not in (1, 2) or not array.size:
        raise ValueError(f"{name} must be a series (L,) or (L, D) of numbers, got {array.dtype} {array.shape}")
    with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite
        values = array.astype(np.float32).reshape(len(array), -1)
    if not np.isfinite(values).all():
        row = int((~np.isfinite(values)).any(1).argmax())
        raise ValueError(f"{name} must have finite numbers in the range of float32 only, but row {row} has another")
    return values


def read_csv(path: Path) -> tuple[list[str], list[list[str]], list[int]]:
    """A CSV file's header (empty if the first row is numeric), its rows (all equally long) and their line numbers."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        return _parse_csv(str(path), file)


def _parse_csv(name: str, file: IO[str]) -> tuple[list[str], list[list[str]], list[int]]:
    try:
        reader = csv.reader(bounded(file))
        numbered = [(reader.line_num, row) for row in reader if row]
    except (csv.Error, ValueError) as problem:
        raise ValueError(f"{name} is not a CSV file: {problem}") from None
    if not numbered:
        raise ValueError(f"{name} must have at least one line, got none")
    lines, rows = [line for line, _ in numbered], [row for _, row in numbered]
    for line, row in numbered:
        if len(row) != len(rows[0]):
            raise ValueError(f"{name}, line {line}: must have {len(rows[0])} fields, got {len(row)}")
    return ([], rows, lines) if all(is_number(field) for field in rows[0]) else (rows[0], rows[1:], lines[1:])


def numbers(path: Path | str, rows: list[list[str]], lines: list[int]) -> Array:
    """The rows of a CSV file as numbers; ``lines`` are their line numbers."""
    for line, row in zip(lines, rows):
        for field in row:
            if not is_number(field):
                raise ValueError(f"{path}, line {line}: must have numbers only, got {field!r}")
    return np.array(rows, dtype=np.float64)
