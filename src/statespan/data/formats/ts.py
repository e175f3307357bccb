"""The ``.ts`` files of the UEA and UCR archives: series with a class or a number each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from statespan.data.base import Array
from statespan.data.formats.limits import bounded


def read_ts(path: str | Path, *, equal: bool = False) -> tuple[Any, Array]:
    """Read a ``.ts`` file without timestamps.

    Args:
        path: The file.
        equal: Reject series of different lengths.

    Returns:
        The series, (n, length, channels) float64 or, where their lengths differ, a list of arrays (length, channels);
        and their classes as text, or their numbers where the file is for regression. Missing values ("?") are NaN.

    Raises:
        ValueError: A line is not what the header says; the message names it.
    """
    path = Path(path)
    header: dict[str, str] = {}
    series: list[Array] = []
    answers: list[str] = []
    data = False
    with path.open(encoding="utf-8") as file:
        for number, text in enumerate(_lines(path, file), 1):
            line = text.strip()
            if not line or line.startswith("#"):
                continue
            if not data:
                if not line.startswith("@"):
                    raise ValueError(f"{path}, line {number}: expected a line of the header, which begins with @")
                key, _, value = line[1:].partition(" ")
                header[key.lower()] = value.strip()
                data = key.lower() == "data"
                if header.get("timestamps", "false").lower() == "true":
                    raise ValueError(f"{path}: files with timestamps are not supported")
                continue
            *channels, answer = line.split(":")
            series.append(_series(path, number, channels, series))
            answers.append(answer.strip())
            if equal and len(series[-1]) != len(series[0]):
                raise ValueError(
                    f"{path}, line {number}: {len(series[-1])} values, but the first line has {len(series[0])}"
                )
    if not series:
        raise ValueError(f"{path} has no line of data after @data")
    equal = len({len(array) for array in series}) == 1
    return np.stack(series) if equal else series, _answers(path, answers, header)


def _lines(path: Path, file: IO[str]) -> Iterator[str]:
    try:
        yield from bounded(file)
    except ValueError as error:  # also what is not UTF-8
        raise ValueError(f"{path}: {error}") from None


def _series(path: Path, number: int, channels: list[str], before: list[Array]) -> Array:
    try:
        rows = [[np.nan if v.strip() == "?" else float(v) for v in channel.split(",")] for channel in channels]
    except ValueError as error:
        raise ValueError(f"{path}, line {number}: {error}") from None
    if not rows or len({len(row) for row in rows}) != 1:
        raise ValueError(f"{path}, line {number}: the channels of a series must have the same length")
    if before and len(rows) != before[0].shape[1]:
        raise ValueError(
            f"{path}, line {number}: {len(rows)} channels, but the series before it have {before[0].shape[1]}"
        )
    return np.array(rows).T


def _answers(path: Path, answers: list[str], header: dict[str, str]) -> Array:
    if header.get("targetlabel", "false").lower().startswith("true"):
        try:
            return np.array([float(answer) for answer in answers])
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    return np.array(answers)
