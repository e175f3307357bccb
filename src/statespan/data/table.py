"""Time series in CSV files: a header, a column of times, columns of numbers.

Shapes: T rows.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from statespan.data.calendar import parse_times
from statespan.data.lines import LONGEST_LINE, bounded


class Table(NamedTuple):
    """A CSV file: times (T,) datetime64[s], values (T, columns) float64 and the names of the columns."""

    times: np.ndarray[Any, Any]
    values: np.ndarray[Any, Any]
    columns: tuple[str, ...]


MISSING = ("", "na", "nan", "null")  # how a missing value is written


def read_table(path: Path, time: str | None = None, time_format: str | None = None, *, missing: bool = False) -> Table:
    """Read a CSV file with a header, one column of times and otherwise numbers.

    Args:
        path: The file, with commas (or semicolons) between its fields.
        time: Name of the column of times; the first one by default.
        time_format: See :func:`statespan.data.calendar.parse_times`.
        missing: Take empty fields, NA and NaN as missing values, which become NaN.

    Raises:
        ValueError: A field is empty, is not a finite number or is missing; the message names file, row and column.
    """
    try:
        return _read_table(path, time, time_format, missing)
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path}: {error}") from None


def _read_table(path: Path, time: str | None, time_format: str | None, missing: bool) -> Table:
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline(LONGEST_LINE)
        file.seek(0)
        reader = csv.reader(bounded(file), delimiter=";" if first.count(";") > first.count(",") else ",", strict=True)
        header = [name.strip() for name in next(reader, [])]
        rows = [row for row in reader if row]
    if len(header) < 2 or len(set(header)) != len(header):
        raise ValueError(f"the header must be at least 2 different names, got {header}")
    if time is not None and time not in header:
        raise ValueError(f"there is no column {time!r}; the columns are {', '.join(header)}")
    at = 0 if time is None else header.index(time)
    columns = tuple(header[:at] + header[at + 1 :])
    values = np.empty((len(rows), len(columns)))
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise ValueError(f"row {number + 1} has {len(row)} fields, the header has {len(header)}")
        values[number] = _numbers(row[:at] + row[at + 1 :], columns, number + 1, missing)
    return Table(parse_times([row[at] for row in rows], time_format), values, columns)


def _numbers(fields: list[str], columns: tuple[str, ...], row: int, missing: bool) -> list[float]:
    if missing and any(field.strip().lower() in MISSING for field in fields):
        known = [field if field.strip().lower() not in MISSING else "0" for field in fields]
        found = _numbers(known, columns, row, False)
        return [math.nan if field.strip().lower() in MISSING else value for field, value in zip(fields, found)]
    try:
        numbers = [float(field) for field in fields]
        if all(map(math.isfinite, numbers)):
            return numbers
    except ValueError:
        pass
    bad = next(i for i, field in enumerate(fields) if not _is_number(field))
    raise ValueError(f"row {row}, column {columns[bad]!r}: {fields[bad]!r} is not a finite number")


def _is_number(field: str) -> bool:
    try:
        return math.isfinite(float(field))
    except ValueError:
        return False
