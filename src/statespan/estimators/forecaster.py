"""Forecasting of time series, in scikit-learn's conventions.

Shapes: T rows, C columns, H horizon, Q quantiles.
"""

from __future__ import annotations

import sys
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from statespan._check import check_int, check_number
from statespan.data.scale import divisor
from statespan.estimators.fitting import fit_network, train_config
from statespan.estimators.forecasting import training
from statespan.estimators.forecasting.blend import in_one_line
from statespan.estimators.forecasting.covariates import find_roles, fit_effect, scale_of
from statespan.estimators.forecasting.naive import find_season
from statespan.estimators.forecasting.tools import ForecastTools
from statespan.estimators.forecasting.training import in_words
from statespan.estimators.horizon import Horizon, HorizonConfig
from statespan.estimators.inputs.timeline import TimeSeries, read_series, write_forecasts
from statespan.estimators.inputs.windows import calendar_names, known_moments, make_windows, recent
from statespan.estimators.settings import check_forecast_settings, choose_forecast_settings, describe, refuse_answers
from statespan.estimators.tasks import forecasts
from statespan.train.device import pick_device
from statespan.train.feed import Feed
from statespan.train.loop import Splits
from statespan.train.order import derive

if TYPE_CHECKING:
    from typing_extensions import Self

ROUNDING = 1e-12  # share of a sum of squares that is rounding
MANY_SIZES = 3.0  # windows are scaled if the largest series is this many times the smallest


@dataclass(eq=False, repr=False)
class S4Forecaster(ForecastTools):
    """Forecasts time series, with intervals: a linear path corrected by S4, beside the best simple forecast.

    One series or many, of one column or several; with dates, the calendar is read too. Settings that are None are
    chosen from the data, and one line reports the choice. Rows that are used for nothing else compare the model with
    the last value, the seasonal naive forecast and the drift; a second line reports the result. At each step of the
    horizon the forecast has as much of the model as is clearly a gain there, so that with nothing to learn it is the
    best simple forecast. Intervals come from the errors on these rows, step by step. A column that was constant in
    training is forecast to stay at its last known value.

    Args:
        horizon: Rows to forecast.
        context: Rows that a forecast is made from.
        quantiles: Which quantiles to learn beside the mean, between 0 and 1; () for none.
        joint: Read and forecast all columns together; else one by one with the same weights, which is better unless
            there is much data.
        centre: "last": forecast relative to the last known row; "mean": to the mean of the context; "none".
        calendar: Read hour, weekday, day and so on, where there are dates.
        layer: "s4d" or "s4", the layers that correct the linear path.
        season: Rows of a season; found in the data by default, 1 for none.
        freq: Frequency of a frame's rows as in pandas, such as "h" or "B"; times that the frame lacks then become rows
            of missing values. Without one, rows must be regular.
        d_model: Features of the layers.
        n_layers: Number of layers.
        d_state: State size of each SSM, even.
        dropout: Probability of dropping a feature.
        steps: Updates, at most.
        batch_size: Windows an update.
        learning_rate: Of everything but A, B and Δ of the SSMs.
        validation_fraction: Share of the rows that is held out for early stopping; 0.0 for none.
        holdback_fraction: Share of the rows, the last ones, that is used only to compare with simple forecasts and for
            intervals; 0.0 for none. It is more if the horizon is long.
        patience: Validations without improvement after which training stops.
        missing: "error" rejects NaN and masked values; "mask" passes flags of missing values to the network, and never
            scores them. If the whole context is missing, the last value known before it sets the level.
        channels_first: Arrays are (columns, rows), as in aeon and sktime; has no effect on frames.
        device: "cpu", "cuda"…
        random_state: Seed.
        verbose: 0 for silence, 1 for the lines about choice, time and result, and a progress bar.
        threads: Threads on a CPU; by default one for a small network, otherwise torch's own choice.

    Attributes:
        chosen_: What was chosen, by name; ``chosen_line_`` is the same in words.
        held_out_: Mean absolute errors on the held-back rows in the units of the data, by name; ``report_`` is the
            same in words.
        history_: Losses, held-out metrics and the number of updates.
        network_: The torch module.

    Example:
        >>> y = 10 + np.sin(2 * np.pi * np.arange(212) / 12)
        >>> model = S4Forecaster(12, context=36, d_model=12, n_layers=1, steps=20, verbose=0).fit(y[:200])
        >>> bool(np.abs(model.predict() - y[200:]).mean() < 0.1)
        True
        >>> model.predict_quantiles().shape  # rows, quantiles
        (12, 3)
    """

    horizon: int = 24
    _: KW_ONLY
    context: int | None = None
    quantiles: tuple[float, ...] = (0.1, 0.5, 0.9)
    joint: bool = False
    centre: str = "last"
    calendar: bool = True
    layer: str = "s4d"
    season: int | None = None
    freq: str | None = None
    dropout: float = 0.1
    steps: int | None = None
    learning_rate: float = 0.004
    validation_fraction: float = 0.1
    holdback_fraction: float = 0.1

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        past: Any = None,
        future: Any = None,
        static: Any = None,
        sampling_rate: float | None = None,
    ) -> Self:
        """Learn from the past.

        Args:
            X: An array (rows,) or (rows, columns), a list of such arrays (many series), a pandas Series or DataFrame
                with a row for each time, or a long DataFrame with an index of two levels, series and time. Times must
                be regular and sorted: dates, periods or whole numbers; dates and periods also give the calendar.
            y: None; accepted because pipelines pass it.
            past: Columns of X that are covariates known for the past only: names, or positions in an array.
            future: Columns of X that are known for the rows to forecast too, which ``predict`` then needs.
            static: Columns of X that are the same in all rows of a series.
            sampling_rate: Rows a second, to forecast rows of another rate later.

        Returns:
            The estimator itself.
        """
        self._check_parameters()
        self._set_rate(sampling_rate)
        refuse_answers(y)
        options: dict[str, Any] = {"missing": self.missing, "channels_first": self.channels_first, "freq": self.freq}
        all_series, form = read_series(X, **options, warn=True)
        self.roles_ = find_roles(all_series, form, past=past, future=future, static=static)
        all_series, self.form_ = self._divided(all_series, form)
        return self._learn(all_series)

    def _learn(self, all_series: list[TimeSeries]) -> Self:
        lengths = [len(series) for series in all_series]
        self.chosen_ = choose_forecast_settings(self, max(lengths))
        context = self.chosen_["context"]
        sizes = {"context": context, "horizon": self.horizon}
        ends = training.divide(lengths, self.validation_fraction, self.holdback_fraction, **sizes)
        self._set_scale(all_series, ends)
        parts = [self._prepare(series) for series in all_series]
        portions = training.Portions.of(parts, ends, **sizes, past=len(self.roles_.past))
        if portions is None:
            raise ValueError(self._too_short(all_series, ends))
        self.n_features_in_ = len(self.roles_.targets)
        self._train(parts, all_series, portions)
        self._judge(parts, portions)
        self.series_ = [recent(series, context + self.horizon) for series in all_series]
        return self

    def predict(
        self,
        X: Any = None,
        *,
        horizon: int | None = None,
        future: Any = None,
        dt_scale: float | None = None,
        sampling_rate: float | None = None,
    ) -> Any:
        """Forecast the mean of each future row.

        Args:
            X: The past, in any form of ``fit``; the end of what ``fit`` saw by default. What is older than ``context``
                rows makes no difference.
            horizon: Rows to forecast; those of training by default. Beyond these a forecast continues from itself.
            future: The covariates of the future in the rows to forecast: a frame or an array with these columns, of
                many series a list or a long frame.
            dt_scale: Step of these rows relative to those of training: 2.0 for rows that come half as often.
            sampling_rate: Rows a second, if ``fit`` was given that; instead of ``dt_scale``.

        Returns:
            As X: (H,), (H, C), a list of arrays, or a frame whose index continues that of X.
        """
        scale = self._dt_scale(dt_scale, sampling_rate)
        steps = self._steps(horizon, scale)
        rows, all_series, form = self._pasts(X, steps, scale, future)
        found = []
        with torch.inference_mode(), self._few_threads(1, self.chosen_["context"] + steps):
            for (known, marks, effect), series in zip(rows, all_series):
                mean = self._judged.mean(known, steps, marks, scale)[0].double().cpu().numpy()
                found.append(self._in_units(mean, effect, series))
        return write_forecasts(found, all_series, form)

    def predict_quantiles(
        self,
        X: Any = None,
        *,
        quantiles: tuple[float, ...] | None = None,
        horizon: int | None = None,
        future: Any = None,
        dt_scale: float | None = None,
        sampling_rate: float | None = None,
    ) -> Any:
        """Forecast the quantiles of each future row, in ascending order; the other arguments are those of ``predict``.

        Any ``quantiles`` between 0 and 1 can be had, by default those of the estimator. Beyond the trained horizon they
        are those of sample paths.

        Returns:
            (H, C, Q), or (H, Q) for one array of one dimension; of a frame a frame with the quantiles as a second level
            of its columns.
        """
        scale = self._dt_scale(dt_scale, sampling_rate)
        levels = tuple(sorted(self.quantiles if quantiles is None else quantiles))
        if not levels:
            raise ValueError("predict_quantiles needs quantiles, and this estimator was fitted with quantiles=()")
        for level in levels:
            check_number("quantiles", level, above=0.0, below=1.0)
        if self.errors_ is None and levels != tuple(sorted(self.quantiles)):
            raise ValueError(f"quantiles must be those of fit in a forecaster of an older version, got {levels}")
        steps = self._steps(horizon, scale)
        rows, all_series, form = self._pasts(X, steps, scale, future)
        found = []
        with torch.inference_mode(), self._few_threads(1, self.chosen_["context"] + steps):
            for (known, marks, effect), series in zip(rows, all_series):
                table = self._judged.quantiles(known, steps, marks, levels=levels, dt_scale=scale)[0]
                found.append(self._in_units(table, effect, series))
        return write_forecasts(found, all_series, form, levels)

    def score(self, X: Any, y: Any = None) -> float:
        """R² of the mean over every window of X, as :meth:`evaluate` reports it: the share of the variance explained.

        ``y`` is None; it is accepted because scikit-learn's tools pass it.
        """
        refuse_answers(y)
        return self.evaluate(X)["r2"]

    def evaluate(self, X: Any) -> dict[str, float]:
        """The errors over every window of X, in standardised units, as papers report them.

        Args:
            X: Series with at least context + horizon rows, in any form of ``fit``.

        Returns:
            "mse", "mae", "r2" and the number of "windows".
        """
        check_is_fitted(self, "network_")
        context, horizon = self.chosen_["context"], self.horizon
        all_series, _ = self._read(X)
        parts = [self._prepare(series) for series in all_series]
        spans = [(0, len(series)) for series in all_series]
        windows = make_windows(parts, spans, context, horizon, past=len(self.roles_.past))
        if windows is None:
            longest = max(map(len, all_series))
            known = ", with a known value to forecast" if self.masked_ else ""
            raise ValueError(f"X must have at least context + horizon = {context + horizon} rows{known}, got {longest}")
        sizes: dict[str, Any] = {"context": context, "horizon": horizon, "season": 1}
        device, sums, begin = next(self.network_.parameters()).device, np.zeros(5), 0
        with torch.inference_mode(), self._few_threads(training.BATCH, context + horizon):
            for batch in Feed(windows, device).batches(torch.arange(len(windows)).split(training.BATCH)):
                forecast = self._judged.mean(batch.x[:, :context], horizon, batch.marks).cpu().double().numpy()
                known = ~np.isnan(batch.y.cpu().numpy())
                error = (forecast - batch.y.cpu().numpy())[known]
                one = training.some(windows, begin, begin + len(known))
                y = training.simple_forecasts(parts, one, **sizes)[0][known].astype(np.float64)  # with the effect
                sums += np.sum(error**2), np.abs(error).sum(), y.sum(), np.sum(y**2), known.sum()
                begin += len(known)
        square, absolute, total, squares, count = sums.tolist()
        spread = squares - total**2 / max(count, 1)
        return {
            "mse": square / max(count, 1), "mae": absolute / max(count, 1),
            "r2": 1 - square / spread if spread > ROUNDING * squares else 0.0, "windows": len(windows),
        }  # fmt: skip

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_forecast_settings(self)

    def _steps(self, horizon: int | None, dt_scale: float) -> int:
        return max(1, int(self.horizon / dt_scale)) if horizon is None else check_int("horizon", horizon, minimum=1)

    def _set_scale(self, all_series: list[TimeSeries], ends: training.Borders) -> None:
        """Means, deviations, the season, the calendar and the effect of covariates, from the rows to learn from."""
        self.mean_, std = known_moments(all_series, ends.learn)
        self.std_, self.constant_ = divisor(self.mean_, std), std == 0
        self.masked_ = self.missing == "mask"
        self.calendar_ = calendar_names(all_series, self.form_) if self.calendar else ()
        longest = max(all_series, key=len)
        context, form, values = self.chosen_["context"], self.form_, longest.values / np.maximum(self.std_, 1e-300)
        found = find_season(values, context, form.step, form.unit) if self.season is None else self.season
        self.chosen_["season"] = min(found, context)
        self.effect_ = None
        if self.roles_.order:
            self.extra_scale_ = scale_of(all_series, ends.learn)
            mean, divide = self.extra_scale_
            count = len(self.roles_.future)
            rows = [
                ((series.values - self.mean_) / self.std_, ((series.extra - mean) / divide)[:, -count:])
                for series in all_series
                if series.extra is not None and count
            ]
            self.effect_ = fit_effect(rows, ends.learn, self.chosen_["season"])

    def _train(self, parts: list[Any], all_series: list[TimeSeries], portions: training.Portions) -> None:
        """Solve the linear path and train the network that corrects it."""
        seed, device = self._seed(), pick_device(self.device)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(seed, "weights"))
            self.network_ = Horizon(self._config(parts[0], all_series))
            training.set_linear_path(self.network_, portions)
        self.network_.to(device)
        steps, batch = self.chosen_["steps"], self.chosen_["batch_size"]
        words = f"{steps} updates of {batch} of {len(portions.learn)} windows"
        valid_count = 0 if portions.valid is None else len(portions.valid)
        self.chosen_line_ = describe(self, self._in_words(all_series), words, held_out=valid_count, device=device)
        train = train_config(
            len(portions.learn), batch=batch, steps=steps, epochs=-(-steps * batch // len(portions.learn)) + 1,
            lr=self.learning_rate, validations=20, weight_decay=0.01, patience=self.chosen_["patience"], seed=seed,
            threads=self.threads,
        )  # fmt: skip
        task = forecasts(tuple(self.quantiles))
        if self.verbose:
            with self._few_threads(batch, self.chosen_["context"] + self.horizon):
                seconds = training.seconds_of(self.network_, portions, task, batch=batch, steps=train.steps or steps)
            print(f"{self.chosen_line_}; takes at most about {in_words(seconds)}", file=sys.stderr)
        self.history_ = fit_network(
            self.network_, Splits(portions.learn, portions.valid), train, task=task, device=device,
            progress=bool(self.verbose),
        )  # fmt: skip

    def _judge(self, parts: list[Any], portions: training.Portions) -> None:
        """Compare on held-back rows, choose the weights, and keep the errors for intervals."""
        context, season = self.chosen_["context"], self.chosen_["season"]
        with self._few_threads(training.BATCH, context + self.horizon):
            self.blend_, self.errors_, found = training.judge(self.network_, portions, season)
        self.held_out_, self.report_ = {}, ""
        windows = portions.judges
        if found is None or windows is None:
            return
        sizes = {"context": context, "horizon": self.horizon, "season": season}
        truth, simple = training.simple_forecasts(parts, windows, **sizes)
        pairs = {"forecast": (found.truth, found.of(self.blend_)), **{name: (truth, simple[name]) for name in simple}}
        last = slice(-portions.held, None)  # the rows held back
        self.held_out_ = {
            name: training.mean_absolute(actual[last], values[last], self.std_)
            for name, (actual, values) in pairs.items()
        }
        self.report_ = in_one_line(self.held_out_, self.blend_, portions.held, has_effect=self.effect_ is not None)
        if self.verbose:
            print(self.report_, file=sys.stderr)

    def _too_short(self, all_series: list[TimeSeries], ends: training.Borders) -> str:
        context, longest, horizon = self.chosen_["context"], max(map(len, all_series)), self.horizon
        known = ", with a known value to forecast" if self.masked_ else ""
        is_given = self.context is not None  # nobody should read of a setting that was chosen for them
        asked = f"context {context} and horizon {horizon}" if is_given else f"horizon {horizon}"
        held_rows = longest - max(ends.learn)
        held = f" (the last {held_rows} of {longest} are held out)" if held_rows else ""
        return (
            f"{asked} must fit into the rows to learn from{known}, got {max(ends.learn)} rows{held}; give more rows or "
            f"a smaller {'context or horizon' if is_given else 'horizon'}"
        )

    def _in_words(self, all_series: list[TimeSeries]) -> str:
        rows, columns = sum(map(len, all_series)), self.n_features_in_
        size = f"{len(all_series)} series, {rows} rows" if len(all_series) > 1 else f"{rows} rows"
        names = f", calendar {'/'.join(self.calendar_)}" if self.calendar_ else ""
        season = f", season {self.chosen_['season']}" if self.chosen_["season"] > 1 else ""
        extra = f", {len(self.roles_.order)} covariates" if self.roles_.order else ""
        data = f"{size} of {columns} column{'s' * (columns > 1)}{extra}{names}{season}"
        return f"{data} -> {self.horizon} rows from {self.chosen_['context']};"

    def _config(self, part: Any, all_series: list[TimeSeries]) -> HorizonConfig:
        chosen = self.chosen_
        options = {
            "d_model": chosen["d_model"], "n_layers": chosen["n_layers"], "d_state": chosen["d_state"],
            "layer": self.layer, "ssm": {"init": "legs", "dt_min": 0.001, "dt_max": 0.1}, "mix": "linear",
            "dropout": self.dropout,
        }  # fmt: skip
        sizes = [float(np.nanstd((series.values - self.mean_) / self.std_)) for series in all_series]
        is_scaled = len(sizes) > 1 and max(sizes) > MANY_SIZES * max(min(sizes), 1e-12)
        return HorizonConfig(
            part.values.shape[1], chosen["context"], self.horizon, 0 if part.marks is None else part.marks.shape[1],
            len(self.quantiles), self.centre, self.joint, self.masked_, options, linear=True, scaled=is_scaled,
            past=len(self.roles_.past), static=len(self.roles_.static),
        )  # fmt: skip

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        return tags
