"""Time series for forecasting in any form, and forecasts in the same form.

Shapes: T rows of a series, C columns, H horizon, Q quantiles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from statespan.data.calendar import UNITS, check_regular, in_seconds
from statespan.estimators.inputs.frames import from_long, is_frame, is_pandas
from statespan.estimators.inputs.series import Array, numbers, plain_array, warn_of_order

FORMS = (
    "an array (rows,) or (rows, columns), a list of such arrays, a pandas Series or DataFrame with a row for each "
    "time, or a long DataFrame with an index of two levels, series and time"
)
NUMBERED = "rows"  # unit of the steps of an index of whole numbers


@dataclass(frozen=True)
class TimeSeries:
    """One series: values (T, C) float64 with NaN where one is missing, its index and its name.

    ``times`` (T,) are datetime64, or integers for an integer index, or None without an index; ``extra`` (T, E) are
    covariates.

    Example:
        >>> series = TimeSeries(np.zeros((100, 2)), name="load")
        >>> len(series), series.columns
        (100, 2)
    """

    values: Array
    times: Array | None = None
    name: Any = None
    extra: Array | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def columns(self) -> int:
        """The number of columns."""
        return self.values.shape[1]

    def rows(self, first: int, end: int | None = None) -> TimeSeries:
        """A copy of some rows, which later changes to the user's data do not reach."""
        times, extra = (None if part is None else part[first:end].copy() for part in (self.times, self.extra))
        return replace(self, values=self.values[first:end].copy(), times=times, extra=extra)

    @property
    def label(self) -> str:
        """What messages call it."""
        return _label(self.name)


@dataclass(frozen=True)
class Form:
    """The form of the series, which forecasts take as well.

    Example:
        >>> daily, hourly = Form("series", step=86400), Form("series", step=3600)
        >>> daily.ratio(hourly), daily.times_dtype
        (24.0, 'datetime64[s]')
    """

    kind: str  # "vector", "array", "list", "series", "frame" or "long"
    columns: tuple[Any, ...] = ()  # names of a frame's columns
    names: tuple[Any, ...] = ()  # names of the levels of a frame's index
    step: int | None = None  # step of the index; None without one
    unit: str = "s"  # "s" (seconds), "ms", "us", "ns", "M" (months), "B" (business days) or "rows" (whole numbers)
    period: str | None = None  # frequency of a PeriodIndex
    zone: str | None = None  # time zone of the index
    flat: bool = False  # whether series and time are columns, unique_id and ds

    @property
    def dated(self) -> bool:
        """Whether the index holds dates."""
        return self.step is not None and self.unit != NUMBERED

    @property
    def times_dtype(self) -> str:
        """Dtype of the index of a series."""
        return "int64" if self.unit == NUMBERED else f"datetime64[{self.unit if self.unit in UNITS else 's'}]"

    def ratio(self, other: Form) -> float | None:
        """The number of the other form's steps in one step of this form, or None if unknown."""
        if self.step is None or other.step is None or not (self.dated and other.dated):
            return None
        if self.unit != other.unit and {"M", "B"} & {self.unit, other.unit}:
            return None
        return self.step / UNITS.get(self.unit, 1) / (other.step / UNITS.get(other.unit, 1))


def read_series(
    X: Any,
    *,
    missing: str = "error",
    shortest: int = 2,
    channels_first: bool = False,
    warn: bool = False,
    like: Form | None = None,
    freq: str | None = None,
) -> tuple[list[TimeSeries], Form]:
    """The series in X, which has one of :data:`FORMS`, and the form they came in.

    The index of a frame must be regular: dates, periods, or whole numbers in equal steps. ``missing`` is "error" to
    refuse NaN and masked values, or "mask"; ``shortest`` is the least number of rows of a series. ``channels_first``
    does not matter for frames; with ``warn``, arrays that look like that without it give a warning. The step of a
    single row is that of the form it is ``like``. A ``freq`` of pandas inserts rows that a frame lacks, as missing.

    Example:
        >>> all_series, form = read_series(np.arange(6.0).reshape(3, 2))
        >>> len(all_series[0]), all_series[0].columns, form.kind
        (3, 2, 'array')
    """
    if is_pandas(X):
        all_series, form = _of_pandas(X, like, freq)
    elif isinstance(X, (str, bytes, dict)) or not (hasattr(X, "__array__") or isinstance(X, (list, tuple))):
        raise TypeError(f"X must be {FORMS}, got {type(X).__name__}")
    else:
        all_series, form = _of_arrays(X, channels_first)
    if not all_series:
        raise ValueError(f"X must be {FORMS}, got no series at all")
    for series in all_series:
        _check(series, missing, shortest, all_series[0].columns)
    if warn and not channels_first and not is_pandas(X):
        _warn_of_channels_first(all_series)
    return all_series, form


def future_times(last: Any, form: Form, count: int) -> Array:
    """The ``count`` times after the last one: datetime64, or integers for an integer index.

    Example:
        >>> future_times(np.datetime64("2020-01-31"), Form("frame", step=1, unit="M"), 2).astype(str).tolist()
        ['2020-02-29T00:00:00', '2020-03-31T00:00:00']
    """
    assert form.step is not None
    offsets = np.arange(1, count + 1) * form.step
    if form.unit == NUMBERED:
        return last + offsets
    if form.unit in UNITS:
        return np.asarray(last).astype(form.times_dtype) + offsets.astype(f"timedelta64[{form.unit}]")
    start = np.datetime64(last, "s")
    if form.unit == "B":
        day = start.astype("datetime64[D]")
        return np.busday_offset(day, offsets, roll="backward").astype("datetime64[s]") + (start - day)
    month = start.astype("datetime64[M]")
    since_start, until_end = start - month.astype("datetime64[s]"), (month + 1).astype("datetime64[s]") - start
    months = month + offsets.astype("timedelta64[M]")
    ends = (months + 1).astype("datetime64[s]")
    if until_end <= np.timedelta64(86400, "s"):  # the last day of a month stays the last day
        return ends - until_end
    return np.minimum(months.astype("datetime64[s]") + since_start, ends - np.timedelta64(86400, "s"))


def write_forecasts(
    forecasts: list[Array], all_series: list[TimeSeries], form: Form, quantiles: tuple[float, ...] | None = None
) -> Any:
    """Forecasts (H, C) or (H, C, Q) of the series, in the form of the input.

    The index of a frame continues that of its series; quantiles are a second level of the columns.
    """
    if form.kind == "list":
        return forecasts
    if form.kind in ("vector", "array"):
        return forecasts[0][:, 0] if form.kind == "vector" else forecasts[0]
    import pandas as pd

    columns: Any = list(form.columns)
    if quantiles is not None:
        columns = pd.MultiIndex.from_product([columns, list(quantiles)], names=[None, "quantile"])
    frames = []
    for values, series in zip(forecasts, all_series):
        index = _index(series, form, len(values))
        frames.append(pd.DataFrame(values.reshape(len(values), -1), index=index, columns=columns))
    if form.kind == "long":
        joined = pd.concat(frames, keys=[series.name for series in all_series], names=list(form.names[:1]))
        if form.flat and quantiles is not None:
            joined.columns = [f"{name}_q{level:g}" for name, level in joined.columns]
        return joined.reset_index() if form.flat else joined
    if form.kind == "series" and quantiles is None:
        return frames[0].iloc[:, 0].rename(form.columns[0])
    return frames[0]


def _index(series: TimeSeries, form: Form, count: int) -> Any:
    import pandas as pd

    name = form.names[-1] if form.names else None
    if series.times is None or form.step is None:  # saved before indices of whole numbers were
        return pd.RangeIndex(len(series), len(series) + count, name=name)
    if form.unit == NUMBERED:
        start = int(series.times[-1]) + form.step
        return pd.RangeIndex(start, start + count * form.step, form.step, name=name)
    index = pd.DatetimeIndex(future_times(series.times[-1], form, count), name=name)
    if form.zone is not None:
        is_local = _is_local(form.step, form.unit)
        return index.tz_localize(form.zone) if is_local else index.tz_localize("UTC").tz_convert(form.zone)
    return index if form.period is None else index.to_period(form.period)


def _of_arrays(X: Any, channels_first: bool) -> tuple[list[TimeSeries], Form]:
    if isinstance(X, (list, tuple)) and X and not all(map(np.isscalar, X)):
        parts, kind = [part if is_pandas(part) else plain_array(part) for part in X], "list"
    else:
        array = plain_array(X)
        parts, kind = (list(array), "list") if array.ndim == 3 else ([array], "vector" if array.ndim == 1 else "array")
    all_series = []
    for number, part in enumerate(parts):
        values = _columns(np.asarray(part), f"X[{number}]" if kind == "list" else "X")
        is_transposed = channels_first and not is_pandas(part) and np.ndim(part) == 2
        all_series.append(TimeSeries(values.T if is_transposed else values))
    return all_series, Form(kind)


def _warn_of_channels_first(all_series: list[TimeSeries]) -> None:
    rows, columns = max(map(len, all_series)), all_series[0].columns
    if columns > rows:
        warn_of_order(f"(rows, columns): {rows} rows of {columns} columns", "swap the last two axes")


def _of_pandas(X: Any, like: Form | None = None, freq: str | None = None) -> tuple[list[TimeSeries], Form]:
    if type(X).__name__ == "Series":
        from_frame, form = _of_pandas(X.to_frame(), like, freq)
        kind = "series" if form.kind == "frame" else form.kind
        return from_frame, replace(form, kind=kind, columns=(X.name,))
    if not is_frame(X):
        raise TypeError(f"X must be {FORMS}, got a pandas {type(X).__name__}")
    is_flat = X.index.nlevels == 1 and {"unique_id", "ds"} <= set(X.columns)
    X = from_long(X, "unique_id", "ds") if is_flat else X
    if X.index.nlevels > 2:
        raise ValueError(f"X must have an index of one level (time) or two (series, time), got {X.index.nlevels}")
    if X.columns.has_duplicates:
        raise ValueError(f"X must have different columns, got {X.columns[X.columns.duplicated()].tolist()[0]!r} twice")
    if X.index.nlevels == 1:
        kind, parts = "frame", {None: X}
    else:
        kind, parts = "long", {name: X.xs(name, level=0) for name in dict.fromkeys(X.index.get_level_values(0))}
    if freq is not None:
        parts = {name: _with_gaps_filled(part, freq, _label(name)) for name, part in parts.items()}
    zone = _zone(X.index if X.index.nlevels == 1 else X.index.levels[1])
    parts = {name: _without_zone(part) for name, part in parts.items()} if zone else parts
    indices = {name: _times(part.index, _label(name)) for name, part in parts.items()}
    dtype: Any = np.result_type(*(times for times, _ in indices.values())) if indices else None
    all_series: list[TimeSeries] = []
    names_of_steps: dict[tuple[int, str], Any] = {}
    for name, part in parts.items():
        times = indices[name][0].astype(dtype)
        all_series.append(TimeSeries(_frame_values(part), times, name))
        names_of_steps[_regular(times, _label(name), like)] = name
    if len(names_of_steps) > 1:
        (first, first_name), (second, second_name) = list(names_of_steps.items())[:2]
        raise ValueError(
            f"X must have one frequency, got steps of {first[0]} {first[1]} in series {first_name!r} and {second[0]} "
            f"{second[1]} in series {second_name!r}; resample them to one"
        )
    step, unit = next(iter(names_of_steps), (None, "s"))
    period = next((period for _, period in indices.values()), None)
    return all_series, Form(kind, tuple(X.columns), tuple(X.index.names), step, unit, period, zone, is_flat)


def _label(name: Any) -> str:
    return "X" if name is None else f"series {name!r}"


def _times(index: Any, what: str) -> tuple[Array, str | None]:
    """An index as dates or integers, and the frequency of a PeriodIndex."""
    if index.isna().any():
        raise ValueError(f"{what} must have a time for every row, got a missing one in its index")
    period = None
    if type(index).__name__ == "PeriodIndex":
        index, period = index.to_timestamp(), index.freqstr
    if index.dtype.kind == "M":
        return in_seconds(index.to_numpy()), period
    if index.dtype.kind in "iu":
        return index.to_numpy().astype(np.int64), None
    raise TypeError(
        f"{what} must have dates or whole numbers as its index, got {index.dtype}; pandas.to_datetime makes dates"
    )


def _regular(times: Array, what: str, like: Form | None = None) -> tuple[int, str]:
    """The step of an index and its unit; of a single row those of the form it is like."""
    if len(times) == 1 and like is not None and like.step is not None:
        return like.step, like.unit
    if times.dtype.kind == "M":
        if _are_business_days(times):
            return 1, "B"
        try:
            return check_regular(times)
        except ValueError as error:
            raise ValueError(f"{what}: {error}") from None
    steps = np.diff(times)
    wrong = (steps != steps[0]) | (steps < 1) if len(steps) else np.zeros(0, bool)
    if wrong.any():
        row = int(wrong.argmax()) + 1
        raise ValueError(
            f"{what} must have dates as its index, or whole numbers in equal steps upwards; row {row} is {times[row]} "
            f"after {times[row - 1]}"
        )
    return int(steps[0]) if len(steps) else 1, NUMBERED


def _are_business_days(times: Array) -> bool:
    """Whether times are those of all days from Monday to Friday, with a weekend between them."""
    days = times.astype("datetime64[D]")
    if len(times) < 3 or not np.is_busday(days).all() or len(set(times - days)) > 1:
        return False
    steps = np.diff(days).astype(np.int64)
    return bool((np.busday_count(days[:-1], days[1:]) == 1).all() and (steps == 3).any() and (steps == 1).any())


def _with_gaps_filled(part: Any, freq: str, what: str) -> Any:
    """A frame with a row for every time of the frequency; rows that were not there have missing values."""
    if not hasattr(part.index, "freq"):
        raise TypeError(f"{what} must have dates as its index with freq={freq!r}, got {part.index.dtype}")
    if part.index.has_duplicates:
        raise ValueError(f"{what} must have each time once, got {part.index[part.index.duplicated()][0]} twice")
    found = part.asfreq(freq)
    lost = part.index.difference(found.index)
    if len(lost):
        raise ValueError(f"{what} must have times of freq={freq!r}, but {lost[0]} is none")
    return found


def _zone(index: Any) -> str | None:
    return None if getattr(index, "tz", None) is None else str(index.tz)


def _is_local(step: int, unit: str) -> bool:
    """Whether rows of a time zone are a local day or more apart, so that its clock changes between them."""
    return unit in ("M", "B") or step / UNITS.get(unit, 1) >= 86400


def _without_zone(part: Any) -> Any:
    """A frame whose times are local where rows are days apart, and else those of UTC, which has no change of clocks."""
    local, utc = part.index.tz_localize(None), part.index.tz_convert("UTC").tz_localize(None)
    apart = local[1:] - local[:-1]
    return part.set_axis(local if len(apart) and apart.min().total_seconds() >= 86400 else utc)


def _frame_values(frame: Any) -> Array:
    for column, kind in zip(frame.columns, frame.dtypes):
        if getattr(kind, "kind", "O") not in "biuf":
            raise TypeError(f"X must be numbers, got {kind} in column {column!r}; drop it or make numbers of it")
    return np.asarray(frame.to_numpy(dtype=np.float64, na_value=np.nan))


def _columns(array: Array, name: str) -> Array:
    if array.ndim not in (1, 2):
        raise ValueError(f"{name} must have shape (rows,) or (rows, columns), got {array.shape}")
    values = numbers(array, name).astype(np.float64)
    return values[:, None] if values.ndim == 1 else values


def _check(series: TimeSeries, missing: str, shortest: int, columns: int) -> None:
    what = series.label
    if series.columns == 0 or series.columns != columns:
        raise ValueError(f"{what} must have {max(columns, 1)} columns, as all series, got {series.columns}")
    if len(series) < shortest:
        raise ValueError(f"{what} must have at least {shortest} rows, got {len(series)}")
    if np.isinf(series.values).any():
        row, column = np.argwhere(np.isinf(series.values))[0]
        raise ValueError(f"{what} must be finite in float64, got infinity in row {row}, column {column}")
    is_missing = np.isnan(series.values)
    if is_missing.any() and missing == "error":
        row, column = np.argwhere(is_missing)[0]
        raise ValueError(
            f"{what} must have no missing values with missing='error', got NaN in row {row}, column {column}; "
            "missing='mask' learns with them"
        )
    if is_missing.all(0).any():
        raise ValueError(
            f"{what} must have at least one value in each column, got only NaN in column {is_missing.all(0).argmax()}"
        )
