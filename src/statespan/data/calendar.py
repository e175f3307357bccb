"""Timestamps of a time series: parsing, checking for regular steps, and calendar features.

Shapes: T timestamps, M features.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import numpy as np

MINUTE, HOUR, DAY = 60, 3600, 86400  # in seconds
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # of steps, as parts of a second
FORMATS = ("%m/%d/%Y %H:%M", "%m/%d/%Y %H:%M:%S", "%m/%d/%Y")  # tried after ISO 8601

OTHERS = tuple(f"{day}{time}" for day in ("%d.%m.%Y", "%d/%m/%Y", "%Y/%m/%d") for time in ("", " %H:%M", " %H:%M:%S"))
"""Formats to suggest; they are not tried, because 01/02/2024 would be read in one of two ways."""


def parse_times(texts: Sequence[str], time_format: str | None = None, lines: Sequence[int] | None = None) -> np.ndarray:
    """Timestamps as numpy datetime64[s], or datetime64[us] if some lie between two seconds.

    Without a ``time_format`` (see ``datetime.strptime``), texts are ISO 8601 without a time zone or, if the first one
    is not, month/day/year with or without a time. Errors name the ``lines`` of the texts in their file, from 1; without
    them rows, from 0.

    Example:
        >>> parse_times(["2016-07-01 00:00:00", "2016-07-01 01:00:00"]).astype(str).tolist()
        ['2016-07-01T00:00:00', '2016-07-01T01:00:00']
        >>> parse_times(["12/31/2013 23:00"]).astype(str).tolist()
        ['2013-12-31T23:00:00']
    """
    formats = [time_format] if time_format else [None, *FORMATS]
    known = next((f for f in formats if texts and _parse(texts[0], f)), formats[0])
    times = np.empty(len(texts), "datetime64[us]")
    for row, text in enumerate(texts):
        if (time := _parse(text, known)) is None:
            hint = next((form for form in OTHERS if _parse(text, form) is not None), None)
            advice = f"time_format {hint} reads it" if hint else "give its format as time_format, such as %d.%m.%Y"
            form = known or "ISO 8601"
            raise ValueError(f"{_place(row, lines)}: {text!r} is not a time of the form {form}; {advice}")
        times[row] = time
    return in_seconds(times)


def in_seconds(times: np.ndarray) -> np.ndarray:
    """Timestamps as datetime64[s]; unchanged if some have fractional seconds."""
    seconds = times.astype("datetime64[s]")
    return seconds if (seconds == times).all() else times


def check_regular(times: np.ndarray, lines: Sequence[int] | None = None) -> tuple[int, str]:
    """The regular step of timestamps, as a count and a unit: "s" (seconds), "ms", "us", "ns" or "M" (months).

    Months are calendar months: the same day and time each month, or the last day of each. Timestamps that repeat, go
    backwards or leave a gap are an error that names the first such row, or its line if ``lines`` are given.

    Example:
        >>> check_regular(parse_times(["2020-01-01", "2020-01-02", "2020-01-03"]))
        (86400, 's')
        >>> check_regular(parse_times(["2020-01-31", "2020-02-29", "2020-03-31"]))
        (1, 'M')
    """
    if len(times) < 2:
        raise ValueError(f"a time series needs at least 2 rows, got {len(times)}")
    times = in_seconds(times)
    unit = np.datetime_data(times.dtype)[0]
    steps = np.diff(times).astype(np.int64)
    for bad, what in ((steps == 0, "repeats the time before it"), (steps < 0, "is earlier than the row before it")):
        if bad.any():
            row = int(bad.argmax()) + 1
            raise ValueError(f"{_place(row, lines)} ({times[row]}) {what}; sort the rows and keep one of each time")
    values, counts = np.unique(steps, return_counts=True)
    if len(values) == 1:
        return int(values[0]), unit
    months = _months(times)
    if months:
        return months, "M"
    usual = int(values[counts.argmax()])
    row = int((steps != usual).argmax()) + 1
    raise ValueError(
        f"{_place(row, lines)} ({times[row]}) comes {steps[row - 1] / UNITS[unit]:.9g} s after the previous row, but "
        f"most come after {usual / UNITS[unit]:.9g} s; fill the gaps or resample to one step"
    )


def mark_names(step: int, unit: str = "s") -> tuple[str, ...]:
    """The calendar features that matter for a series with this step.

    Example:
        >>> mark_names(3600)
        ('hour', 'weekday', 'day', 'yearday')
    """
    names = ("minute", "hour", "weekday", "day", "yearday")
    if unit == "M":
        return names[4:]
    seconds = step / UNITS[unit]
    return names[0 if seconds < HOUR else 1 if seconds < DAY else 2 :]


def marks(times: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Calendar features (T, M) in [-0.5, 0.5], float32.

    Example:
        >>> marks(parse_times(["2016-07-04 23:00"]), ["hour", "weekday"]).tolist()  # a Monday
        [[0.5, -0.5]]
    """
    seconds = times.astype("datetime64[s]").astype(np.int64)
    days = times.astype("datetime64[D]")
    table = {
        "minute": (seconds % HOUR // MINUTE, 59),
        "hour": (seconds % DAY // HOUR, 23),
        "weekday": ((days.astype(np.int64) + 3) % 7, 6),  # 1970-01-01 was a Thursday; Monday is 0
        "day": ((days - times.astype("datetime64[M]").astype("datetime64[D]")).astype(np.int64), 30),
        "yearday": ((days - times.astype("datetime64[Y]").astype("datetime64[D]")).astype(np.int64), 365),
    }
    return np.stack([table[name][0] / table[name][1] - 0.5 for name in names], -1).astype(np.float32)


def _place(row: int, lines: Sequence[int] | None) -> str:
    return f"row {row}" if lines is None else f"line {lines[row]}"


def _parse(text: str, time_format: str | None) -> datetime | None:
    """A time without a zone, or None if the text is not of this form."""
    text = text.strip()
    try:
        time = datetime.fromisoformat(text) if time_format is None else datetime.strptime(text, time_format)
    except ValueError:
        return None
    return time if time.tzinfo is None else None


def _months(times: np.ndarray) -> int:
    """The step in months, or 0 if there is none."""
    month = times.astype("datetime64[M]")
    steps = np.unique(np.diff(month).astype(np.int64))
    into = times - month.astype("datetime64[s]")
    left = (month + 1).astype("datetime64[s]") - times
    return int(steps[0]) if len(steps) == 1 and (len(set(into)) == 1 or len(set(left)) == 1) else 0
