"""Backtests: forecasts from several origins in the past, and their errors in the units of the data.

Shapes: W origins, H horizon, C columns, Q quantiles.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from statespan.estimators.forecasting.intervals import coverage
from statespan.estimators.inputs.series import Array
from statespan.estimators.inputs.timeline import Form, TimeSeries

LEVELS = tuple(round(0.05 * number, 2) for number in range(1, 20))  # of the quantiles that CRPS is the mean over
INTERVALS = {"coverage_80": (0.1, 0.9), "coverage_95": (0.025, 0.975)}
ALL_LEVELS = tuple(sorted({*LEVELS, *(level for pair in INTERVALS.values() for level in pair)}))


@dataclass(frozen=True)
class Backtest:
    """Forecasts from past origins beside what came, and the scores over all of them.

    Attributes:
        scores: "mae", "rmse", "mase", "crps", "coverage_80" and "coverage_95", in the units of the data; MASE is
            relative to the seasonal naive forecast (or the last value) within the rows before the first origin.
        by_step: The same scores of each step of the horizon, arrays (H,).
        origins: The number of rows before each forecast, of each series.
        actual: Of each series the values (W, H, C); ``forecast`` and ``quantiles`` (W, H, C, Q) alike.

    Example:
        >>> from statespan.estimators import S4Forecaster
        >>> small = {"context": 16, "d_model": 4, "n_layers": 1, "d_state": 2, "steps": 3, "verbose": 0}
        >>> y = np.sin(np.arange(120) / 4)
        >>> model = S4Forecaster(4, **small).fit(y[:100])
        >>> tested = model.backtest(y, windows=2)
        >>> tested.forecast[0].shape, sorted(tested.scores)[:3]
        ((2, 4, 1), ['coverage_80', 'coverage_95', 'crps'])
    """

    scores: dict[str, float]
    by_step: dict[str, Array]
    origins: list[list[int]]
    actual: list[Array]
    forecast: list[Array]
    quantiles: list[Array]
    levels: tuple[float, ...] = ALL_LEVELS
    series: list[TimeSeries] = field(default_factory=list, repr=False)
    form: Form = field(default_factory=lambda: Form("array"), repr=False)

    def frame(self, levels: tuple[float, ...] = (0.1, 0.5, 0.9)) -> Any:
        """The forecasts as a long pandas frame: series, column, cutoff, time, y, forecast and some quantiles."""
        import pandas as pd

        rows = []
        for number, series in enumerate(self.series):
            times = np.arange(len(series)) if series.times is None else series.times
            for window, origin in enumerate(self.origins[number]):
                for column in range(series.columns):
                    steps = self.actual[number].shape[1]
                    part = {
                        "unique_id": number if series.name is None else series.name,
                        "column": self.form.columns[column] if self.form.columns else column,
                        "cutoff": times[origin - 1],
                        "ds": times[origin : origin + steps],
                        "y": self.actual[number][window, :, column],
                        "forecast": self.forecast[number][window, :, column],
                    }
                    for level in levels:
                        place = self.levels.index(level)
                        part[f"q{level:g}"] = self.quantiles[number][window, :, column, place]
                    rows.append(pd.DataFrame(part))
        return pd.concat(rows, ignore_index=True)


def origins_of(rows: int, windows: int, step: int, *, horizon: int, least: int, label: str) -> list[int]:
    """The rows before each forecast: the last window ends with the series.

    Example:
        >>> origins_of(100, 3, 5, horizon=10, least=20, label="X")
        [80, 85, 90]
    """
    last = rows - horizon
    found = [last - step * back for back in range(windows - 1, -1, -1)]
    if found[0] < least:
        raise ValueError(
            f"{label} must have at least {least + horizon + step * (windows - 1)} rows for {windows} windows with "
            f"step {step}, got {rows}"
        )
    return found


def scores_of(
    actual: list[Array], forecast: list[Array], quantiles: list[Array], unit: Array
) -> tuple[dict[str, float], dict[str, Array]]:
    """The scores overall and by step; the unit (C,) is the error of a simple forecast in each column."""
    truth, mean, bands = (np.concatenate(part) for part in (actual, forecast, quantiles))  # (W, H, C, …)
    error = np.abs(truth - mean)
    over = truth[..., None] - bands[..., [ALL_LEVELS.index(level) for level in LEVELS]]
    levels = np.array(LEVELS)
    tables = {
        "mae": error,
        "rmse": error**2,
        "mase": error / unit,
        "crps": 2 * np.maximum(levels * over, (levels - 1) * over).mean(-1),
    }
    by_step = {name: np.nanmean(table, (0, 2)) for name, table in tables.items()}
    scores = {name: float(np.nanmean(table)) for name, table in tables.items()}
    by_step["rmse"], scores["rmse"] = np.sqrt(by_step["rmse"]), scores["rmse"] ** 0.5
    for name, (low, high) in INTERVALS.items():
        ends = bands[..., ALL_LEVELS.index(low)], bands[..., ALL_LEVELS.index(high)]
        by_step[name] = np.array(
            [coverage(truth[:, step], ends[0][:, step], ends[1][:, step]) for step in range(truth.shape[1])]
        )
        scores[name] = coverage(truth, *ends)
    return scores, by_step


def naive_unit(all_series: list[TimeSeries], ends: list[int], season: int) -> Array:
    """The mean absolute error (C,) of repeating the last season within the rows before each end."""
    differences = [
        np.abs(series.values[season:end] - series.values[: end - season])
        for series, end in zip(all_series, ends)
        if end > season
    ]
    if not differences:
        return np.ones(all_series[0].columns)
    unit = np.nanmean(np.concatenate(differences), 0)
    return np.where(unit > 0, unit, 1.0)
