"""Time series in CSV files: a header, a column of times, columns of numbers.

Errors name the line of the file, as editors count them: the first is 1, which is the header's.

Shapes: T rows.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from statespan._text import is_number
from statespan.data.calendar import check_regular, parse_times
from statespan.data.formats.limits import bounded


class SeriesTable(NamedTuple):
    """A CSV file: times (T,) datetime64, values (T, columns) float64 and the names of the columns.

    Example:
        >>> times = np.array(["2024-01-01", "2024-01-02"], dtype="datetime64[s]")
        >>> table = SeriesTable(times, np.array([[1.5], [2.5]]), ("load",))
        >>> table.values[:, table.columns.index("load")]
        array([1.5, 2.5])
    """

    times: np.ndarray
    values: np.ndarray
    columns: tuple[str, ...]


class MissingValueError(ValueError):
    r"""A field is empty, NA or NaN, and missing values are not allowed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "load.csv")
        ...     _ = path.write_text("time,load\n2024-01-01,1.5\n2024-01-02,\n")
        ...     try:
        ...         read_table(path)
        ...     except MissingValueError as error:
        ...         print(str(error).removeprefix(f"{path}: "))
        line 3, column 'load': '' is not a finite number
    """


MISSING = ("", "na", "nan", "null")  # spellings of a missing value


def read_table(
    path: Path, time: str | None = None, time_format: str | None = None, *, missing: bool = False
) -> SeriesTable:
    """Read a CSV file with a header, one column of times in equal steps and otherwise numbers.

    Commas or semicolons separate its fields. The times are in the column ``time``, by default the first, in the
    ``time_format`` of :func:`statespan.data.calendar.parse_times`. With ``missing``, empty fields, NA and NaN become
    NaN; otherwise they are a :class:`MissingValueError`. A mistake is a ValueError that names file, line and column.
    """
    try:
        return _read_table(path, time, time_format, missing)
    except (ValueError, csv.Error) as error:
        kind = MissingValueError if isinstance(error, MissingValueError) else ValueError
        raise kind(f"{path}: {error}") from None


def _read_table(path: Path, time: str | None, time_format: str | None, missing: bool) -> SeriesTable:
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = next(bounded(file), "")
        file.seek(0)
        reader = csv.reader(bounded(file), delimiter=";" if first.count(";") > first.count(",") else ",", strict=True)
        header = [name.strip() for name in next(reader, [])]
        numbered = [(reader.line_num, row) for row in reader if row]
    if len(header) < 2 or len(set(header)) != len(header):
        raise ValueError(f"the header must have at least 2 different names, got {header}")
    if time is not None and time not in header:
        raise ValueError(f"there is no column {time!r}; the columns are {', '.join(header)}")
    if not numbered:
        raise ValueError("the file has no rows below its header")
    at = 0 if time is None else header.index(time)
    columns = tuple(header[:at] + header[at + 1 :])
    values = np.empty((len(numbered), len(columns)))
    for number, (line, row) in enumerate(numbered):
        if len(row) != len(header):
            raise ValueError(f"line {line} has {len(row)} fields, but the header has {len(header)}")
        values[number] = _numbers(row[:at] + row[at + 1 :], columns, line, missing)
    lines = [line for line, _ in numbered]
    times = parse_times([row[at] for _, row in numbered], time_format, lines)
    check_regular(times, lines)
    return SeriesTable(times, values, columns)


def _numbers(fields: list[str], columns: tuple[str, ...], line: int, missing: bool) -> list[float]:
    if missing and any(field.strip().lower() in MISSING for field in fields):
        filled = [field if field.strip().lower() not in MISSING else "0" for field in fields]
        values = _numbers(filled, columns, line, False)
        return [math.nan if field.strip().lower() in MISSING else value for field, value in zip(fields, values)]
    try:
        numbers = [float(field) for field in fields]
        if all(map(math.isfinite, numbers)):
            return numbers
    except ValueError:
        pass
    bad = next(i for i, field in enumerate(fields) if not is_number(field, finite=True))
    kind = MissingValueError if fields[bad].strip().lower() in MISSING else ValueError
    raise kind(f"line {line}, column {columns[bad]!r}: {fields[bad]!r} is not a finite number")
