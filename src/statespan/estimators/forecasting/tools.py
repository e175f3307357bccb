"""What users do with a fitted forecaster beside forecasting: backtests, new rows, sample paths and pictures.

Shapes: T rows, C columns, H horizon, W origins.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from statespan._check import check_bool, check_int
from statespan.estimators.forecasting import training
from statespan.estimators.forecasting.backtest import ALL_LEVELS, Backtest, naive_unit, origins_of, scores_of
from statespan.estimators.forecasting.base import ForecastEstimator
from statespan.estimators.forecasting.blend import Blend
from statespan.estimators.inputs.series import Array
from statespan.estimators.inputs.timeline import Form, TimeSeries, future_times
from statespan.estimators.inputs.windows import make_windows, recent

if TYPE_CHECKING:
    from typing_extensions import Self

INTERVALS = (0.95, 0.8)  # that a picture shows


@dataclass(kw_only=True, eq=False, repr=False)
class ForecastTools(ForecastEstimator):
    """Backtests, updates, sample paths and pictures.

    Example:
        >>> from statespan.estimators import S4Forecaster
        >>> small = {"context": 16, "d_model": 4, "n_layers": 1, "d_state": 2, "steps": 3, "verbose": 0}
        >>> y = np.sin(np.arange(120) / 4)
        >>> model = S4Forecaster(4, **small).fit(y[:100])
        >>> model.update(y[100:]).predict().shape
        (4,)
    """

    @abstractmethod
    def _learn(self, all_series: list[TimeSeries]) -> Self:
        """Learn from series whose covariates are apart."""

    @abstractmethod
    def _steps(self, horizon: int | None, dt_scale: float) -> int:
        """The number of rows to forecast."""

    def backtest(self, X: Any, *, windows: int = 10, step: int | None = None, refit: bool = False) -> Backtest:
        """Forecast from several origins in X and compare with what came.

        Args:
            X: Series in the form of ``fit``. Without ``refit`` they should have rows that ``fit`` did not see.
            windows: Number of origins.
            step: Rows between origins; the horizon by default. The last forecast ends with the series.
            refit: Learn anew before each forecast, from the rows before it. Otherwise the fitted network forecasts, and
                the errors of forecasts that have come true by then widen or narrow the intervals of later ones.

        Returns:
            Forecasts, quantiles and scores.
        """
        check_is_fitted(self, "network_")
        check_int("windows", windows, minimum=1)
        check_bool("refit", refit)
        horizon: int = self.horizon
        step = horizon if step is None else check_int("step", step, minimum=1)
        all_series, form = self._read(X)
        least = {"horizon": horizon, "least": self.chosen_["context"]}
        origins = [origins_of(len(s), windows, step, **least, label=s.label) for s in all_series]
        rows: dict[str, list[list[Array]]] = {name: [[] for _ in all_series] for name in ("y", "mean", "bands")}
        model = self
        if not refit:
            model = clone(self)
            model.__dict__.update(self.__dict__)  # whose errors grow
        for window in range(windows):
            pasts = [series.rows(0, ends[window]) for series, ends in zip(all_series, origins)]
            if refit:
                model = clone(self)
                model.roles_, model.form_, model.sampling_rate_ = self.roles_, self.form_, self.sampling_rate_
                model._learn([replace(past) for past in pasts])
            elif window:
                model._realise(pasts, [ends[window] - ends[window - 1] for ends in origins])
            for number, (series, ends) in enumerate(zip(all_series, origins)):
                ahead = slice(ends[window], ends[window] + horizon)
                extra = None if series.extra is None else series.extra[ahead]
                mean, bands = model._both(pasts[number], extra, horizon)
                rows["y"][number].append(series.values[ahead])
                rows["mean"][number].append(mean)
                rows["bands"][number].append(bands)
        actual, forecast, quantiles = ([np.stack(part) for part in rows[name]] for name in ("y", "mean", "bands"))
        unit = naive_unit(all_series, [ends[0] for ends in origins], self.chosen_.get("season", 1))
        scores, by_step = scores_of(actual, forecast, quantiles, unit)
        return Backtest(
            scores, by_step, origins, actual, forecast, quantiles, series=all_series, form=form
        )  # fmt: skip

    def cross_validation(self, X: Any, *, windows: int = 3, step: int | None = None) -> Backtest:
        """Learn anew before each of several forecasts: :meth:`backtest` with ``refit=True``."""
        return self.backtest(X, windows=windows, step=step, refit=True)

    def update(self, X: Any) -> Self:
        """Take in rows that follow those of fit or of the last update, without training.

        Forecasts start after them, and the errors of forecasts that have come true replace the oldest ones, so that
        intervals follow the data.

        Args:
            X: The new rows, in the form of ``fit``; of a long frame the series that have some.

        Returns:
            The estimator itself.
        """
        check_is_fitted(self, "network_")
        new, form = self._read(X)
        names = [series.name for series in self.series_]
        if form.kind != "long" and len(new) != len(names):
            raise ValueError(f"X must have the {len(names)} series of fit, got {len(new)}")
        joined = list(self.series_)
        counts = [0] * len(joined)
        for number, series in enumerate(new):
            if form.kind == "long":
                if series.name not in names:
                    raise ValueError(f"X must have series of fit, got {series.name!r}")
                number = names.index(series.name)
            joined[number], counts[number] = _followed(joined[number], series, self.form_), len(series)
        self._realise(joined, counts)
        keep = self.chosen_["context"] + self.horizon
        self.series_ = [recent(series, keep) for series in joined]
        return self

    def sample_paths(
        self, X: Any = None, *, count: int = 100, horizon: int | None = None, future: Any = None, random_state: int = 0
    ) -> Any:
        """Possible futures: forecasts with errors of held-back windows, drawn whole, so that steps stay together.

        Args:
            X: The past, as in ``predict``.
            count: Number of paths.
            horizon: Rows to forecast.
            future: Covariates of the future, as in ``predict``.
            random_state: Seed.

        Returns:
            (count, H, C), or (count, H) for one array of one dimension; of many series a list.
        """
        check_is_fitted(self, "network_")
        check_int("count", count, minimum=1)
        steps, rng = self._steps(horizon, 1.0), np.random.default_rng(random_state)
        rows, all_series, form = self._pasts(X, steps, 1.0, future)
        found = []
        with torch.inference_mode(), self._few_threads(count, self.chosen_["context"] + steps):
            for (known, marks, effect), series in zip(rows, all_series):
                paths = self._judged.paths(known, steps, marks, count=count, rng=rng)
                moved = self._in_units(np.moveaxis(paths, 0, -1), effect, series)
                found.append(np.moveaxis(moved, -1, 0))
        if form.kind in ("list", "long"):
            return found
        return found[0][..., 0] if form.kind in ("vector", "series") else found[0]

    def plot(self, X: Any = None, *, horizon: int | None = None, future: Any = None, columns: int = 6) -> Any:
        """Draw the end of the past, the forecast and its 80 % and 95 % intervals; needs matplotlib.

        Args:
            X: The past, as in ``predict``.
            horizon: Rows to forecast.
            future: Covariates of the future, as in ``predict``.
            columns: Columns to draw of the first series, at most.

        Returns:
            A matplotlib figure.
        """
        from statespan import _plotting

        check_is_fitted(self, "network_")
        steps = self._steps(horizon, 1.0)
        levels = tuple(sorted(level for share in INTERVALS for level in ((1 - share) / 2, (1 + share) / 2)))
        rows, all_series, form = self._pasts(X, steps, 1.0, future)
        (known, marks, effect), series = rows[0], all_series[0]
        with torch.inference_mode():
            mean = self._in_units(self._judged.mean(known, steps, marks)[0].double().cpu().numpy(), effect, series)
            bands = None
            if self.errors_ is not None:
                table = self._judged.quantiles(known, steps, marks, levels=levels)[0]
                bands = self._in_units(table, effect, series)
        times, ahead = np.arange(len(series)), np.arange(len(series), len(series) + steps)
        if series.times is not None:
            times, ahead = series.times, future_times(series.times[-1], form, steps)
        shown = min(columns, series.columns)
        figure = _plotting.figure(9, 1 + 2.4 * shown)
        for column, axes in enumerate(figure.subplots(shown, 1, sharex=True, squeeze=False)[:, 0]):
            first = -min(len(series), 3 * steps)
            axes.plot(times[first:], series.values[first:, column], color="black", linewidth=1, label="past")
            for place, share in enumerate(INTERVALS if bands is not None else ()):
                assert bands is not None
                low, high = bands[:, column, place], bands[:, column, -1 - place]
                label = f"{100 * share:g} % interval"
                axes.fill_between(ahead, low, high, alpha=0.2, color=_plotting.COLORS[0], linewidth=0, label=label)
            axes.plot(ahead, mean[:, column], color=_plotting.COLORS[0], label="forecast")
            name = str(form.columns[column]) if form.columns else ""
            _plotting.tidy(axes, "", name, legend=column == 0)
        return figure

    def _both(self, series: TimeSeries, extra: Array | None, steps: int) -> tuple[Array, Array]:
        """The mean (H, C) and the quantiles (H, C, Q) after a series."""
        known, marks, effect = self._row(series, extra, steps, 1.0)
        with torch.inference_mode(), self._few_threads(1, self.chosen_["context"] + steps):
            mean = self._judged.mean(known, steps, marks)[0].double().cpu().numpy()
            bands = self._judged.quantiles(known, steps, marks, levels=ALL_LEVELS)[0]
        return self._in_units(mean, effect, series), self._in_units(bands, effect, series)

    def _realise(self, all_series: list[TimeSeries], counts: list[int]) -> None:
        """Replace the oldest errors by those of forecasts that came true with the last rows of each series."""
        if self.errors_ is None:
            return
        context, horizon = self.network_.config.context, self.network_.config.horizon
        parts, spans = [], []
        for series, count in zip(all_series, counts):
            part = self._prepare(series.rows(-min(len(series), context + horizon + count - 1)))
            rows = len(part.values)
            parts.append(part)
            spans.append((rows - horizon - count + 1 if count else rows, rows))
        windows = make_windows(parts, spans, context, horizon, past=len(self.roles_.past))
        if windows is None:
            return
        found = training.answers(self.network_, training.spread(windows, training.VALID_WINDOWS), self.blend_.season)
        blend: Blend = self.blend_
        scales = {"none": np.ones_like(found.truth[:, :1]), **found.scales}
        self.errors_ = self.errors_.after(found.truth - found.of(blend), scales[self.errors_.kind])


def _followed(before: TimeSeries, new: TimeSeries, form: Form) -> TimeSeries:
    """A series with rows after it, whose times must go on."""
    times = None
    if before.times is not None and new.times is not None:
        wanted = future_times(before.times[-1], form, len(new))
        if (wanted != new.times).any():
            row = int((wanted != new.times).argmax())
            raise ValueError(
                f"{new.label} must go on where {before.label} ended: row {row} must be {wanted[row]}, got "
                f"{new.times[row]}"
            )
        times = np.concatenate([before.times, new.times])
    extra = None
    if before.extra is not None and new.extra is not None:
        extra = np.concatenate([before.extra, new.extra])
    return replace(before, values=np.concatenate([before.values, new.values]), times=times, extra=extra)
