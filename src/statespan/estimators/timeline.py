"""Time series for forecasting, whatever they come in, and forecasts in the same form.

Shapes: T rows of a series, C columns, H horizon, Q quantiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from statespan.data.calendar import check_regular
from statespan.estimators.frames import is_frame, is_pandas

Array = np.ndarray[Any, Any]
FORMS = (
    "an array (rows,) or (rows, columns), a list of such arrays, a pandas Series or DataFrame with a row for each "
    "time, or a long DataFrame with an index of two levels, series and time"
)


@dataclass(frozen=True)
class Line:
    """One series: values (T, C) float64 with NaN where one is missing, times (T,) datetime64[s] or None, its name."""

    values: Array
    times: Array | None = None
    name: Any = None


@dataclass(frozen=True)
class Form:
    """What series came in, so that forecasts leave in the same.

    Attributes:
        kind: "vector", "array", "list", "series", "frame" or "long".
        columns: Names of the columns, of a frame.
        names: Names of the levels of the index, of a frame.
        step: Step between the times, or None where there are none.
        unit: "s" (seconds) or "M" (months).
    """

    kind: str
    columns: tuple[Any, ...] = ()
    names: tuple[Any, ...] = ()
    step: int | None = None
    unit: str = "s"


def read_lines(X: Any, *, missing: str = "error", shortest: int = 2) -> tuple[list[Line], Form]:
    """The series in X, and the form they came in.

    Args:
        X: See :data:`FORMS`. Dates of an index must be regular, without gaps and repetitions; an index of whole
            numbers counts rows.
        missing: "error" refuses NaN, "mask" leaves it.
        shortest: Rows that a series must have at least.

    Example:
        >>> lines, form = read_lines(np.arange(6.0).reshape(3, 2))
        >>> lines[0].values.shape, form.kind
        ((3, 2), 'array')
    """
    if is_pandas(X):
        lines, form = _of_pandas(X)
    elif isinstance(X, (list, tuple)) and X and not all(np.isscalar(one) for one in X):
        lines = [Line(_columns(np.asarray(one), f"X[{number}]")) for number, one in enumerate(X)]
        form = Form("list")
    elif isinstance(X, (str, bytes, dict)) or not (hasattr(X, "__array__") or isinstance(X, (list, tuple))):
        raise TypeError(f"X must be {FORMS}, got {type(X).__name__}")
    else:
        array = np.asarray(X)
        if array.ndim == 3:
            lines, form = [Line(_columns(one, f"X[{i}]")) for i, one in enumerate(array)], Form("list")
        else:
            lines, form = [Line(_columns(array, "X"))], Form("vector" if array.ndim == 1 else "array")
    if not lines:
        raise ValueError(f"X must be {FORMS}, got no series at all")
    for line in lines:
        _check(line, missing, shortest, lines[0].values.shape[1])
    return lines, form


def future_times(last: Any, form: Form, count: int) -> Array:
    """The ``count`` times after the last one, datetime64[s].

    Example:
        >>> future_times(np.datetime64("2020-01-31"), Form("frame", step=1, unit="M"), 2).astype(str).tolist()
        ['2020-02-29T00:00:00', '2020-03-31T00:00:00']
    """
    assert form.step is not None
    start = np.datetime64(last, "s")
    ahead = np.arange(1, count + 1) * form.step
    if form.unit == "s":
        return start + ahead.astype("timedelta64[s]")
    month = start.astype("datetime64[M]")
    into, left = start - month.astype("datetime64[s]"), (month + 1).astype("datetime64[s]") - start
    months = month + ahead.astype("timedelta64[M]")
    ends = (months + 1).astype("datetime64[s]")
    if left <= np.timedelta64(86400, "s"):  # the last day of a month stays the last day
        return ends - left
    return np.minimum(months.astype("datetime64[s]") + into, ends - np.timedelta64(86400, "s"))


def write_lines(found: list[Array], lines: list[Line], form: Form, quantiles: tuple[float, ...] | None = None) -> Any:
    """Forecasts (H, C), or (H, C, Q), of the series in the form those came in.

    Args:
        found: One forecast for each series.
        lines: The series.
        form: Their form.
        quantiles: What the last axis is, where there is one.

    Returns:
        Arrays, or frames whose index continues that of the series; quantiles are a second level of the columns.
    """
    if form.kind == "list":
        return found
    if form.kind in ("vector", "array"):
        return found[0][:, 0] if form.kind == "vector" else found[0]
    import pandas as pd

    columns: Any = list(form.columns)
    if quantiles is not None:
        columns = pd.MultiIndex.from_product([columns, list(quantiles)], names=[None, "quantile"])
    frames = []
    for one, line in zip(found, lines):
        index = _index(line, form, len(one))
        frames.append(pd.DataFrame(one.reshape(len(one), -1), index=index, columns=columns))
    if form.kind == "long":
        names = list(form.names)
        return pd.concat(frames, keys=[line.name for line in lines], names=names[:1])
    if form.kind == "series" and quantiles is None:
        return frames[0].iloc[:, 0].rename(form.columns[0])
    return frames[0]


def _index(line: Line, form: Form, count: int) -> Any:
    import pandas as pd

    name = form.names[-1] if form.names else None
    if line.times is None:
        return pd.RangeIndex(len(line.values), len(line.values) + count, name=name)
    return pd.DatetimeIndex(future_times(line.times[-1], form, count), name=name)


def _of_pandas(X: Any) -> tuple[list[Line], Form]:
    if type(X).__name__ == "Series":
        lines, form = _of_pandas(X.to_frame())
        return lines, Form("series" if form.kind == "frame" else form.kind, (X.name,), form.names, form.step, form.unit)
    if not is_frame(X):
        raise TypeError(f"X must be {FORMS}, got a pandas {type(X).__name__}")
    if X.index.nlevels > 2:
        raise ValueError(f"X must have an index of one level (time) or two (series, time), got {X.index.nlevels}")
    if X.columns.has_duplicates:
        raise ValueError(f"X must have different columns, got {X.columns[X.columns.duplicated()][0]!r} twice")
    columns, names = tuple(X.columns), tuple(X.index.names)
    if X.index.nlevels == 1:
        times = _times(X.index, "X")
        step, unit = (None, "s") if times is None else _regular(times, "X")
        return [Line(_frame_values(X), times)], Form("frame", columns, names, step, unit)
    lines, steps = [], {}
    for name in dict.fromkeys(X.index.get_level_values(0)):
        part = X.xs(name, level=0)
        times = _times(part.index, f"series {name!r}")
        lines.append(Line(_frame_values(part), times, name))
        if times is not None:
            steps[_regular(times, f"series {name!r}")] = name
    if len(steps) > 1:
        (one, first), (other, second) = list(steps.items())[:2]
        raise ValueError(
            f"X must have one frequency, got steps of {one[0]} {one[1]} in series {first!r} and {other[0]} {other[1]} "
            f"in series {second!r}; resample them to one"
        )
    step, unit = next(iter(steps), (None, "s"))
    return lines, Form("long", columns, names, step, unit)


def _times(index: Any, what: str) -> Array | None:
    """The dates of an index, or None for one of numbers that counts rows."""
    if index.isna().any():
        raise ValueError(f"{what} must have a time for every row, got a missing one in its index")
    if type(index).__name__ == "PeriodIndex":
        index = index.to_timestamp()
    if getattr(index, "tz", None) is not None:
        raise ValueError(f"{what} must have times without a zone; index.tz_localize(None) drops it")
    if index.dtype.kind == "M":
        return np.asarray(index.to_numpy(), "datetime64[s]")
    if index.dtype.kind in "iu":
        steps = np.diff(index.to_numpy())
        if (steps != 1).any():
            row = int((steps != 1).argmax()) + 1
            raise ValueError(
                f"{what} must have dates as its index, or whole numbers that count rows; row {row + 1} is {index[row]} "
                f"after {index[row - 1]}"
            )
        return None
    raise TypeError(
        f"{what} must have dates or whole numbers as its index, got {index.dtype}; pandas.to_datetime makes dates"
    )


def _regular(times: Array, what: str) -> tuple[int, str]:
    try:
        return check_regular(times)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


def _frame_values(frame: Any) -> Array:
    for column, kind in zip(frame.columns, frame.dtypes):
        if getattr(kind, "kind", "O") not in "biuf":
            raise TypeError(f"X must be numbers, got {kind} in column {column!r}; drop it or make numbers of it")
    return np.asarray(frame.to_numpy(dtype=np.float64, na_value=np.nan))


def _columns(array: Array, name: str) -> Array:
    if array.ndim not in (1, 2):
        raise ValueError(f"{name} must have shape (rows,) or (rows, columns), got {array.shape}")
    if array.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: {name} must be real, got {array.dtype}")
    try:
        values = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be numbers: {error}") from None
    return values[:, None] if values.ndim == 1 else values


def _check(line: Line, missing: str, shortest: int, columns: int) -> None:
    what = "X" if line.name is None else f"series {line.name!r}"
    rows, own = line.values.shape
    if own == 0 or own != columns:
        raise ValueError(f"{what} must have {max(columns, 1)} columns, as all series, got {own}")
    if rows < shortest:
        raise ValueError(f"{what} must have at least {shortest} rows, got {rows}")
    if np.isinf(line.values).any():
        row, column = (int(i[0]) for i in np.nonzero(np.isinf(line.values)))
        raise ValueError(f"{what} must be finite, got infinity in row {row}, column {column}")
    gone = np.isnan(line.values)
    if gone.any() and missing == "error":
        row, column = (int(i[0]) for i in np.nonzero(gone))
        raise ValueError(
            f"{what} must have no missing values with missing='error', got NaN in row {row}, column {column}; "
            "missing='mask' learns with them"
        )
    if gone.all(0).any():
        raise ValueError(
            f"{what} must have at least one value in each column, got only NaN in column {gone.all(0).argmax()}"
        )
