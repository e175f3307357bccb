"""Windows of time series for training.

Shapes: B windows, T context, H horizon, C columns, M calendar features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from statespan.data.base import Batch, Windows
from statespan.data.calendar import mark_names, marks
from statespan.data.scale import moments, standardize
from statespan.estimators.inputs.series import Array
from statespan.estimators.inputs.timeline import Form, TimeSeries, future_times


@dataclass(frozen=True)
class SplitWindow:
    """Turns gathered rows into a batch: the first ``context`` rows are the input, the others the target.

    A target is NaN if it is unknown, or if no earlier value of its column is known. Of the marks the first ``past`` are
    0 in the rows to forecast.

    Example:
        >>> batch = SplitWindow(context=3)({"values": torch.arange(5.0).view(1, 5, 1)})
        >>> batch.y.flatten()
        tensor([3., 4.])
    """

    context: int
    past: int = 0

    def __call__(self, rows: dict[str, Tensor]) -> Batch:
        """Prepare windows: values (B, T + H, C), marks (B, T + H, M), known flags and earlier values (B, T + H, C)."""
        x, y = rows["values"], rows["values"][:, self.context :]
        if "known" in rows:
            known, seen = rows["known"], rows["seen"][:, self.context - 1 : self.context]
            y = torch.where(known[:, self.context :] & seen, y, torch.nan)
            x = torch.cat([x, known.to(x.dtype)], -1)
        marks = rows.get("marks")
        if self.past and marks is not None:
            marks[:, self.context :, : self.past] = 0.0  # gathered rows are a copy
        return Batch(x, y, None, marks)


@dataclass(frozen=True)
class PreparedSeries:
    """A prepared series: standardised values (T, C) float32 (missing ones repeat the last), known, marks.

    An ``effect`` (T + ahead, C) of covariates is taken off the values.

    Example:
        >>> series = PreparedSeries(values=np.zeros((100, 2), np.float32), known=None, marks=None)
        >>> series.values.shape
        (100, 2)
    """

    values: Array
    known: Array | None
    marks: Array | None
    effect: Array | None = None


PERIODS = {"minute": 3600, "hour": 86400, "weekday": 7 * 86400, "day": 31 * 86400, "yearday": 366 * 86400}


def calendar_names(all_series: list[TimeSeries], form: Form) -> tuple[str, ...]:
    """The calendar features whose period the series cover at least twice.

    Example:
        >>> hours = np.datetime64("2020-01-01", "s") + 3600 * np.arange(24 * 100)
        >>> calendar_names([TimeSeries(np.zeros((2400, 1)), hours)], Form("frame", step=3600))
        ('hour', 'weekday', 'day')
    """
    if form.step is None or not form.dated:
        return ()
    names = mark_names(86400) if form.unit == "B" else mark_names(form.step, form.unit)
    all_times = [series.times for series in all_series if series.times is not None]
    longest = max((times[-1] - times[0]) / np.timedelta64(1, "s") for times in all_times)
    return tuple(name for name in names if longest + 1 >= 1.9 * PERIODS[name])


def known_moments(all_series: list[TimeSeries], ends: list[int]) -> tuple[Array, Array]:
    """Mean and deviation (C,) of the known values of the rows before each end; the deviation of a constant is 0."""
    values = np.concatenate([series.values[:end] for series, end in zip(all_series, ends)])
    known = ~np.isnan(values)
    if not known.any(0).all():
        column = int(known.any(0).argmin())
        raise ValueError(f"X must have values to learn from in each column, got only NaN in column {column}")
    return moments(values) if known.all() else moments(np.where(known, values, 0.0), known)


def recent(series: TimeSeries, rows: int) -> TimeSeries:
    """The last rows of a series, extended back until each column has a known value.

    Example:
        >>> recent(TimeSeries(np.array([[1.0], [2.0], [np.nan], [np.nan]])), 1).values[:, 0].tolist()
        [2.0, nan, nan]
    """
    known = ~np.isnan(series.values)
    return series.rows(-max(rows, int(known[::-1].argmax(0).max()) + 1))


def prepare(
    series: TimeSeries,
    form: Form,
    mean: Array,
    std: Array,
    *,
    masked: bool,
    calendar: tuple[str, ...] = (),
    ahead: int = 0,
    extra: Array | None = None,
    effect: Array | None = None,
) -> PreparedSeries:
    """Standardise a series, fill missing values and compute the marks: covariates and calendar features.

    ``masked`` keeps what is known for the network. The ``ahead`` rows behind the last one get calendar features, too;
    standardised covariates ``extra`` and their ``effect`` have these rows.
    """
    known = ~np.isnan(series.values)
    values = standardize(_carried(series.values), mean, std, series.label)
    if effect is not None:
        values = values - effect[: len(values)].astype(np.float32)
    features = [] if extra is None else [extra.astype(np.float32)]
    if calendar and series.times is not None and form.dated:
        times = series.times
        if ahead:
            times = np.concatenate([times, future_times(times[-1], form, ahead)])
        features.append(marks(times, calendar))
    return PreparedSeries(values, known if masked else None, np.concatenate(features, 1) if features else None, effect)


def make_windows(
    parts: list[PreparedSeries], spans: list[tuple[int, int]], context: int, horizon: int, *, past: int = 0
) -> Windows | None:
    """All windows whose targets lie in the span (first row, end) of their series; None if there are none.

    ``past`` is the number of marks that are unknown in the rows to forecast. Windows without a known
    target are left out: they would count as perfect forecasts.
    """
    starts, offset = [], 0
    for part, (first, end) in zip(parts, spans):
        begin = max(0, first - context)
        begins = np.arange(begin, end - context - horizon + 1)
        if part.known is not None:
            before = np.pad(np.cumsum(part.known, 0), ((1, 0), (0, 0)))  # (T + 1, C) known values before each row
            read, all_rows = before[begins + context], before[begins + context + horizon]
            begins = begins[((read > 0) & (all_rows > read)).any(1)]
        starts.append(offset + begins)
        offset += len(part.values)
    all_starts = np.concatenate(starts)
    if not len(all_starts):
        return None
    arrays = {"values": np.concatenate([part.values for part in parts])}
    known = [part.known for part in parts if part.known is not None]
    if known:
        arrays["known"] = np.concatenate(known)
        arrays["seen"] = np.concatenate([np.logical_or.accumulate(values) for values in known])
    if parts[0].marks is not None:
        arrays["marks"] = np.concatenate([part.marks[: len(part.values)] for part in parts if part.marks is not None])
    return Windows(arrays, starts=all_starts, length=context + horizon, prepare=SplitWindow(context, past))


def thinned(split: Any, most: int | None = None, *, every: int = 1) -> Windows:
    """Windows of a split, evenly spread: about ``most`` of them, or if that is None every n-th."""
    if most is not None:
        every = max(1, -(-len(split) // most))
    arrays = {key: array for key, array in split.arrays.items() if key in split.long}
    return Windows(arrays, starts=split.arrays["starts"][::every], length=split.length, prepare=split.prepare)


def _carried(values: Array) -> Array:
    """Values (T, C) with missing ones filled forward, and those at the start filled backward."""
    known = ~np.isnan(values)
    if known.all():
        return values
    rows = np.where(known, np.arange(len(values))[:, None], -1)
    last = np.maximum.accumulate(rows, 0)
    first = known.argmax(0)
    return np.take_along_axis(values, np.where(last < 0, first, last), 0)
