"""Columns that help to forecast others: which they are, their scale, and a linear effect of those known ahead.

Shapes: T rows, C columns to forecast, E covariates, F covariates of the future, K features of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from statespan._suggest import suggest
from statespan.data.scale import statistics
from statespan.estimators.inputs.series import Array
from statespan.estimators.inputs.timeline import Form, TimeSeries, read_series

LAGS = 4  # rows back that covariates of the future have an effect for
PENALTY = 1e-4  # of the effect, relative to the mean square of its features


@dataclass(frozen=True)
class Roles:
    """Which columns of the data are covariates, by position; the others are forecast.

    Example:
        >>> roles = Roles(4, future=(3,), static=(0,))
        >>> roles.targets, roles.order
        ((1, 2), (0, 3))
    """

    columns: int  # of the data
    past: tuple[int, ...] = ()  # known for the past only
    static: tuple[int, ...] = ()  # the same in all rows of a series
    future: tuple[int, ...] = ()  # known for the future, too
    names: tuple[Any, ...] = ()  # of all columns of a frame

    @property
    def targets(self) -> tuple[int, ...]:
        """The columns to forecast."""
        return tuple(column for column in range(self.columns) if column not in self.order)

    @property
    def order(self) -> tuple[int, ...]:
        """The covariates in the order of the network."""
        return (*self.past, *self.static, *self.future)

    def name(self, column: int) -> Any:
        """What messages call a column."""
        return self.names[column] if self.names else column


def find_roles(all_series: list[TimeSeries], form: Form, *, past: Any, future: Any, static: Any) -> Roles:
    """The roles of columns that the user names: names of a frame's columns, or positions in an array."""
    columns = all_series[0].columns
    found = {
        name: _positions(name, given, columns, form)
        for name, given in (("past", past), ("static", static), ("future", future))
    }
    roles = Roles(columns, **found, names=form.columns)
    if len(set(roles.order)) != len(roles.order):
        raise ValueError("past, future and static must name different columns, got one twice")
    if not roles.targets:
        raise ValueError("past, future and static must leave a column to forecast, got all of them")
    return roles


def _positions(argument: str, given: Any, columns: int, form: Form) -> tuple[int, ...]:
    if given is None:
        return ()
    positions = []
    for one in [given] if isinstance(given, (str, int)) else list(given):
        if form.columns and one in form.columns:
            positions.append(form.columns.index(one))
        elif not form.columns and isinstance(one, (int, np.integer)) and 0 <= one < columns:
            positions.append(int(one))
        else:
            names = form.columns or tuple(range(columns))
            hint = suggest(one, [str(name) for name in names]) if isinstance(one, str) else ""
            raise ValueError(
                f"{argument} must name columns of X, got {one!r}{hint}; its columns are {', '.join(map(str, names))}"
            )
    return tuple(positions)


def split(series: TimeSeries, roles: Roles) -> TimeSeries:
    """A series with the covariates (T, E) apart from the columns to forecast (T, C)."""
    if not roles.order:
        return series
    extra = series.values[:, list(roles.order)]
    if np.isnan(extra).any():
        row, column = np.argwhere(np.isnan(extra))[0]
        raise ValueError(
            f"{series.label} must have no missing values in covariates, got NaN in row {row}, column "
            f"{roles.name(roles.order[column])!r}"
        )
    statics = series.values[:, list(roles.static)]
    if (statics != statics[:1]).any():
        column = int((statics != statics[:1]).any(0).argmax())
        raise ValueError(
            f"static must name columns that stay the same in each series, but {roles.name(roles.static[column])!r} of "
            f"{series.label} changes"
        )
    return replace(series, values=series.values[:, list(roles.targets)], extra=extra)


def read_future(
    future: Any, all_series: list[TimeSeries], roles: Roles, steps: int, *, like: Form | None = None
) -> list[Array | None]:
    """The covariates (steps, E) of the rows to come of each series: given for the future, else zeros or the same."""
    if not roles.order:
        if future is not None:
            raise ValueError("future must be None: fit was given no covariates of the future")
        return [None] * len(all_series)
    names = [roles.name(column) for column in roles.future]
    if roles.future and future is None:
        raise ValueError(f"future must have the next {steps} rows of {', '.join(map(str, names))}, got None")
    parts: list[Array] = [np.zeros((steps, 0))] * len(all_series)
    if roles.future:
        parts = _future_values(future, all_series, roles, steps, like=like)
    first, last = len(roles.past), len(roles.past) + len(roles.static)
    rows: list[Array | None] = []
    for series, part in zip(all_series, parts):
        assert series.extra is not None
        ahead = np.zeros((steps, len(roles.order)))
        ahead[:, first:last] = series.extra[-1, first:last]
        ahead[:, last:] = part
        rows.append(ahead)
    return rows


def _future_values(
    future: Any, all_series: list[TimeSeries], roles: Roles, steps: int, *, like: Form | None
) -> list[Array]:
    names = [roles.name(column) for column in roles.future]
    columns = getattr(future, "columns", None)
    if columns is not None:
        lacking = [name for name in names if name not in columns]
        if lacking:
            raise ValueError(f"future must have the columns {names}, got none named {lacking[0]!r}")
        ids = ["unique_id", "ds"] if {"unique_id", "ds"} <= set(columns) else []
        future = future[[*ids, *names]]
    given, form = read_series(future, shortest=1, like=like)
    by_name = {series.name: series for series in given}
    if len(given) != len(all_series):
        raise ValueError(f"future must have one part for each of the {len(all_series)} series, got {len(given)}")
    parts = []
    for number, series in enumerate(all_series):
        part = by_name.get(series.name, given[number]) if form.kind == "long" else given[number]
        if part.columns != len(names) or len(part) < steps:
            raise ValueError(
                f"future must have {steps} rows of {len(names)} columns for {series.label}, got {len(part)} of "
                f"{part.columns}"
            )
        parts.append(part.values[:steps])
    return parts


@dataclass(frozen=True)
class Effect:
    """A linear effect (K, C) of the covariates of the future on the standardised columns, taken off before all else.

    Example:
        >>> Effect(np.ones((5, 1))).of(np.array([[1.0], [2.0]])).tolist()
        [[5.0], [9.0]]
    """

    weights: Array

    def of(self, future: Array) -> Array:
        """The effect (T, C) of standardised covariates (T, F)."""
        return features(future) @ self.weights


def features(future: Array) -> Array:
    """Covariates (T, F) and what they were up to LAGS - 1 rows before, and their squares: (T, K).

    Example:
        >>> features(np.array([[1.0], [2.0]])).tolist()
        [[1.0, 1.0, 1.0, 1.0, 1.0], [2.0, 1.0, 1.0, 1.0, 4.0]]
    """
    lagged = [np.concatenate([future[:1].repeat(lag, 0), future])[: len(future)] for lag in range(LAGS)]
    return np.concatenate([*lagged, future**2], 1)


def fit_effect(parts: list[tuple[Array, Array]], ends: list[int], season: int) -> Effect | None:
    """The effect that helps simple forecasts of the rows from the ends on, fitted to those before; or None.

    It is fitted to levels and to differences, and what helps most is chosen. The parts are standardised columns (T, C),
    NaN where missing, and covariates of the future (T, F).
    """
    found: Effect | None = None
    if not parts or not parts[0][1].shape[1]:
        return None
    least = 0.99 * _error(parts, None, ends, season)  # a little better is no reason
    for order in (0, 1):
        xs, ys = [], []
        for (values, future), end in zip(parts, ends):
            x, y = features(future)[:end], values[:end]
            x, y = (np.diff(x, axis=0), np.diff(y, axis=0)) if order else (x, y)
            known = ~np.isnan(y).any(1)
            xs.append(x[known])
            ys.append(y[known])
        x, y = np.concatenate(xs), np.concatenate(ys)
        if len(x) < 2:
            continue
        x, y = x - x.mean(0), y - y.mean(0)
        gram = x.T @ x
        ridge = PENALTY * np.trace(gram) / len(gram) * np.eye(len(gram))
        if not np.trace(gram) > 0:
            continue
        effect = Effect(np.linalg.solve(gram + ridge, x.T @ y))
        error = _error(parts, effect, ends, season)
        if error < least:
            found, least = effect, error
    return found


def _error(parts: list[tuple[Array, Array]], effect: Effect | None, ends: list[int], season: int) -> float:
    """The least squared error of two simple forecasts: of the next row, and of the row after a season."""
    sums = np.zeros((2, 2))
    for (values, future), end in zip(parts, ends):
        rest = values if effect is None else values - effect.of(future)
        for number, lag in enumerate((1, max(season, 2))):
            first = max(lag, end if end < len(rest) - 1 else 0)
            error = rest[first:] - rest[first - lag : len(rest) - lag]
            sums[number] += np.nansum(error**2), (~np.isnan(error)).sum()
    return float((sums[:, 0] / np.maximum(sums[:, 1], 1)).min())


def scale_of(all_series: list[TimeSeries], ends: list[int]) -> tuple[Array, Array]:
    """Mean and divisor (E,) of the covariates of the rows before each end."""
    return statistics(
        np.concatenate([series.extra[:end] for series, end in zip(all_series, ends) if series.extra is not None])
    )
