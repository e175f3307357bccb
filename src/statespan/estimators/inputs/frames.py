"""Pandas frames, recognised without importing pandas: anyone holding a frame has already imported it.

Wide: a row for each series, a column for each time. Long: an index of two levels, series and time, and a column for
each channel. Times may be numbers, dates or texts; they only give the order.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def is_pandas(X: Any) -> bool:
    """Whether X is a Series, a DataFrame or another pandas object."""
    return type(X).__module__.partition(".")[0] == "pandas"


def is_frame(X: Any) -> bool:
    """Whether X is a DataFrame."""
    return is_pandas(X) and type(X).__name__ == "DataFrame"


def wide_series(frame: Any) -> np.ndarray[Any, Any]:
    """The series of a wide frame, (n, L) or (n, L, C).

    Columns of two levels are (channel, time): every channel must have the same times.
    """
    if frame.columns.has_duplicates:
        raise ValueError(f"X must have different columns, got {_first_double(frame.columns)!r} twice")
    if frame.columns.nlevels == 1:
        return _values(frame)
    if frame.columns.nlevels > 2:
        raise ValueError(f"X must have columns of one level (time) or two (channel, time), got {frame.columns.nlevels}")
    channels = list(dict.fromkeys(frame.columns.get_level_values(0)))
    parts = [frame[channel] for channel in channels]
    for channel, part in zip(channels, parts):
        if list(part.columns) != list(parts[0].columns):
            raise ValueError(f"X must have the same times for every channel, but {channel!r} has others")
    return np.stack([_values(part) for part in parts], -1)


def long_series(frame: Any) -> tuple[list[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """The series (L, C) of a long frame, in order of first appearance, and their names.

    Rows of a series must be in the order of their times, each time once.
    """
    if frame.index.nlevels != 2:
        raise ValueError(f"a long frame must have an index of two levels, series and time, got {frame.index.nlevels}")
    if not len(frame):
        raise ValueError("X must have at least one series, found a frame with 0 sample(s)")
    values = _values(frame)
    names, times = frame.index.get_level_values(0), frame.index.get_level_values(1)
    if names.isna().any() or times.isna().any():
        raise ValueError("X must have a series and a time for every row, got a missing one in its index")
    groups: dict[Any, list[int]] = {}
    for row, name in enumerate(names):
        groups.setdefault(name, []).append(row)
    for name, rows in groups.items():
        row_times = times[rows]
        if row_times.has_duplicates:
            raise ValueError(
                f"each time must occur once in a series, but series {name!r} has {_first_double(row_times)!r} twice"
            )
        if not row_times.is_monotonic_increasing:
            raise ValueError(f"X must be sorted by time, but series {name!r} is not; X.sort_index() sorts it")
    return [values[rows] for rows in groups.values()], np.array(list(groups))


def from_long(frame: Any, series: str, time: str, values: str | list[str] | None = None) -> Any:
    """Convert a long frame with columns for series and time to the estimators' form: both in the index, sorted.

    Args:
        frame: One row for each sample of each series.
        series: Column that says which series a row belongs to.
        time: Column of the times.
        values: Columns of the channels; all others by default.

    Returns:
        A frame with an index of two levels, series and time.
    """
    if not is_frame(frame):
        raise TypeError(f"frame must be a pandas DataFrame, got {type(frame).__name__}")
    channels = [values] if isinstance(values, str) else values
    channels = [c for c in frame.columns if c not in (series, time)] if channels is None else channels
    for column in (series, time, *channels):
        if column not in frame.columns:
            raise ValueError(f"frame has no column {column!r}; its columns are {', '.join(map(str, frame.columns))}")
    # a stable sort keeps the series in the order in which they first appear
    ordered = frame.sort_values(time, kind="stable")
    first = {name: number for number, name in enumerate(dict.fromkeys(frame[series]))}
    ordered = ordered.sort_values(series, kind="stable", key=lambda names: names.map(first))
    return ordered.set_index([series, time])[channels]


def series_names(X: Any) -> list[Any] | None:
    """The names of the series of a long frame, in order of first appearance; None for anything else."""
    index = getattr(X, "index", None)
    if index is None or getattr(index, "nlevels", 1) != 2:
        return None
    return list(dict.fromkeys(index.get_level_values(0)))


def aligned(y: Any, ids: Any) -> Any:
    """Targets in the order of the series: by name if X is a long frame and y is a Series with the same names."""
    if ids is None or not is_pandas(y) or type(y).__name__ not in ("Series", "DataFrame"):
        return y
    if y.index.has_duplicates:
        raise ValueError(f"y must have one answer for each series, got {_first_double(y.index)!r} twice")
    lacking = [name for name in ids if name not in y.index]
    if lacking:
        raise ValueError(
            f"y must have an answer for each series, got none for {lacking[0]!r} ({len(lacking)} of {len(ids)}); where "
            "its answers are in the order of the series, give y.to_numpy()"
        )
    return y.loc[list(ids)]


def _values(frame: Any) -> np.ndarray[Any, Any]:
    """The values of a frame; anything that pandas considers missing becomes NaN."""
    values = frame.to_numpy()
    return frame.to_numpy(na_value=np.nan) if values.dtype == object else values


def _first_double(index: Any) -> Any:
    return index[index.duplicated()].tolist()[0]  # in Python's types, which read better than numpy's
