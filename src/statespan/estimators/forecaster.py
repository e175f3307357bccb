"""Forecasting of time series, in scikit-learn's conventions.

Shapes: T rows, C columns, H horizon, Q quantiles.
"""

from __future__ import annotations

import sys
from dataclasses import KW_ONLY, asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from statespan._check import check_choice, check_int
from statespan.data.scale import divisor
from statespan.estimators import store
from statespan.estimators.base import Estimator
from statespan.estimators.fitting import fit_network, train_config
from statespan.estimators.horizon import Horizon, HorizonConfig
from statespan.estimators.inputs.series import Array
from statespan.estimators.inputs.timeline import Form, TimeSeries, read_series, write_forecasts
from statespan.estimators.inputs.windows import (
    PERIODS,
    PreparedSeries,
    calendar_names,
    known_moments,
    make_windows,
    prepare,
    recent,
    thinned,
)
from statespan.estimators.settings import check_forecast_settings, choose_forecast_settings, describe, refuse_answers
from statespan.estimators.tasks import forecasts
from statespan.train.device import pick_device
from statespan.train.feed import Feed
from statespan.train.loop import Splits
from statespan.train.order import derive
from statespan.train.tasks import output

if TYPE_CHECKING:
    from typing_extensions import Self

PREDICT_BATCH = 256  # windows forecast together
VALID_WINDOWS = 512  # held-out windows to validate with, evenly spread
ROUNDING = 1e-12  # share of a sum of squares that is rounding


@dataclass(eq=False, repr=False)
class S4Forecaster(Estimator):
    """Forecasts time series, with intervals, by a masked sequence-to-sequence S4D.

    One series or many, of one column or several; with dates, the calendar is read too. Settings that are None are
    chosen from the data, and one line reports the choice. A column that was constant in training is forecast to stay at
    its last known value.

    Args:
        horizon: Rows to forecast.
        context: Rows that a forecast is made from.
        quantiles: Which quantiles to learn beside the mean, between 0 and 1; () for none.
        joint: Read and forecast all columns together; else one by one with the same weights, which is better unless
            there is much data.
        centre: "last": forecast relative to the last known row; "mean": to the mean of the context; "none".
        calendar: Read hour, weekday, day and so on, where there are dates.
        d_model: Features of the layers.
        n_layers: Number of layers.
        d_state: State size of each SSM, even.
        dropout: Probability of dropping a feature.
        steps: Updates, at most.
        batch_size: Windows an update.
        learning_rate: Of everything but A, B and Δ of the SSMs.
        validation_fraction: Share of the rows, the last ones, that is held out for early stopping; 0.0 for none.
        patience: Validations without improvement after which training stops.
        missing: "error" rejects NaN and masked values; "mask" passes flags of missing values to the network, and never
            scores them. If the whole context is missing, the last value known before it sets the level.
        channels_first: Arrays are (columns, rows), as in aeon and sktime; has no effect on frames.
        device: "cpu", "cuda"…
        random_state: Seed.
        verbose: 0 for silence, 1 for one line about the choice and a progress bar.
        threads: Threads on a CPU; by default one for a small network, otherwise torch's own choice.

    Attributes:
        chosen_: What was chosen, by name; ``chosen_line_`` is the same in words.
        history_: Losses, held-out metrics and the number of updates.
        network_: The torch module.

    Example:
        >>> y = 10 + np.sin(2 * np.pi * np.arange(212) / 12)
        >>> model = S4Forecaster(12, context=36, d_model=12, n_layers=1, steps=60, learning_rate=0.02, verbose=0)
        >>> bool(np.abs(model.fit(y[:200]).predict() - y[200:]).mean() < 0.3)
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
    dropout: float = 0.1
    steps: int | None = None
    learning_rate: float = 0.004
    validation_fraction: float = 0.1

    def fit(self, X: Any, y: Any = None, *, sampling_rate: float | None = None) -> Self:
        """Learn from the past.

        Args:
            X: An array (rows,) or (rows, columns), a list of such arrays (many series), a pandas Series or DataFrame
                with a row for each time, or a long DataFrame with an index of two levels, series and time. Times must
                be regular and sorted: dates, periods or whole numbers; dates and periods also give the calendar.
            y: None; accepted because pipelines pass it.
            sampling_rate: Rows a second, to forecast rows of another rate later.

        Returns:
            The estimator itself.
        """
        self._check_parameters()
        self._set_rate(sampling_rate)
        refuse_answers(y)
        all_series, self.form_ = read_series(X, missing=self.missing, channels_first=self.channels_first, warn=True)
        longest = max(map(len, all_series))
        self.chosen_ = choose_forecast_settings(self, longest)
        held_out, context, horizon = self.validation_fraction, self.chosen_["context"], self.horizon
        ends = [len(series) - int(len(series) * held_out) for series in all_series]
        self.mean_, std = known_moments(all_series, ends)
        self.std_, self.constant_ = divisor(self.mean_, std), std == 0
        self.masked_ = self.missing == "mask"
        self.calendar_ = calendar_names(all_series, self.form_) if self.calendar else ()
        parts = [self._prepare(series) for series in all_series]
        learn = make_windows(parts, [(0, end) for end in ends], context, horizon)
        spans = [(end, len(series)) for series, end in zip(all_series, ends)]
        valid = make_windows(parts, spans, context, horizon) if held_out else None
        valid = None if valid is None else thinned(valid, VALID_WINDOWS)
        if learn is None:
            known = ", with a known value to forecast" if self.masked_ else ""
            is_given = self.context is not None  # nobody should read of a setting that was chosen for them
            asked = f"context {context} and horizon {horizon}" if is_given else f"horizon {horizon}"
            held = f" (the last {longest - max(ends)} of {longest} are held out)" if held_out else ""
            raise ValueError(
                f"{asked} must fit into the rows to learn from{known}, got {max(ends)} rows{held}; give more rows or a "
                f"smaller {'context or horizon' if is_given else 'horizon'}"
            )
        seed, device = self._seed(), pick_device(self.device)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(seed, "weights"))
            self.network_ = Horizon(self._config(parts[0], context)).to(device)
        self.n_features_in_ = all_series[0].columns
        steps, batch = self.chosen_["steps"], self.chosen_["batch_size"]
        training = f"{steps} updates of {batch} of {len(learn)} windows"
        valid_count = 0 if valid is None else len(valid)
        self.chosen_line_ = describe(self, self._in_words(all_series), training, held_out=valid_count, device=device)
        if self.verbose:
            print(self.chosen_line_, file=sys.stderr)
        train = train_config(
            len(learn), batch=batch, steps=steps, epochs=-(-steps * batch // len(learn)) + 1, lr=self.learning_rate,
            validations=20, weight_decay=0.01, patience=self.chosen_["patience"], seed=seed, threads=self.threads,
        )  # fmt: skip
        self.history_ = fit_network(
            self.network_, Splits(learn, valid), train,
            task=forecasts(tuple(self.quantiles)), device=device, progress=bool(self.verbose),
        )  # fmt: skip
        self.series_ = [recent(series, context) for series in all_series]
        return self

    def predict(
        self,
        X: Any = None,
        *,
        horizon: int | None = None,
        dt_scale: float | None = None,
        sampling_rate: float | None = None,
    ) -> Any:
        """Forecast the mean of each future row.

        Args:
            X: The past, in any form of ``fit``; the end of what ``fit`` saw by default. What is older than ``context``
                rows makes no difference.
            horizon: Rows to forecast, at most those of training; all by default.
            dt_scale: Step of these rows relative to those of training: 2.0 for rows that come half as often.
            sampling_rate: Rows a second, if ``fit`` was given that; instead of ``dt_scale``.

        Returns:
            As X: (H,), (H, C), a list of arrays, or a frame whose index continues that of X.
        """
        forecasts, all_series, form = self._forecast(X, horizon, self._dt_scale(dt_scale, sampling_rate))
        return write_forecasts([values[..., 0] for values in forecasts], all_series, form)

    def predict_quantiles(
        self,
        X: Any = None,
        *,
        horizon: int | None = None,
        dt_scale: float | None = None,
        sampling_rate: float | None = None,
    ) -> Any:
        """Forecast the quantiles of each future row, in ascending order; the arguments are those of ``predict``.

        Returns:
            (H, C, Q), or (H, Q) for one array of one dimension; of a frame a frame with the quantiles as a second level
            of its columns.
        """
        check_is_fitted(self, "network_")
        quantiles = tuple(sorted(self.quantiles))
        if not quantiles:
            raise ValueError("predict_quantiles needs quantiles, and this estimator was fitted with quantiles=()")
        forecasts, all_series, form = self._forecast(X, horizon, self._dt_scale(dt_scale, sampling_rate))
        return write_forecasts([np.sort(values[..., 1:], -1) for values in forecasts], all_series, form, quantiles)

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
        windows = make_windows(parts, spans, context, horizon)
        if windows is None:
            longest = max(map(len, all_series))
            known = ", with a known value to forecast" if self.masked_ else ""
            raise ValueError(f"X must have at least context + horizon = {context + horizon} rows{known}, got {longest}")
        feed = Feed(windows, next(self.network_.parameters()).device)
        sums = torch.zeros(5, dtype=torch.float64)
        with torch.inference_mode(), self._few_threads(PREDICT_BATCH, context + horizon):
            for batch in feed.batches(torch.arange(len(windows)).split(PREDICT_BATCH)):
                forecast = self._with_constants(batch.x[:, :context], output(self.network_, batch))[..., 0].double()
                y = batch.y.cpu().double()
                is_known = ~torch.isnan(y)
                y, forecast = y[is_known], forecast[is_known]
                error = forecast - y
                sums += torch.stack(
                    [error.square().sum(), error.abs().sum(), y.sum(), y.square().sum(), is_known.sum()]
                )
        square, absolute, total, squares, count = sums.tolist()
        spread = squares - total**2 / max(count, 1)
        return {
            "mse": square / max(count, 1), "mae": absolute / max(count, 1),
            "r2": 1 - square / spread if spread > ROUNDING * squares else 0.0, "windows": len(windows),
        }  # fmt: skip

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_forecast_settings(self)

    def _state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        past: dict[str, Array] = {}
        for number, series in enumerate(self.series_):  # for predict() without an argument
            past[f"{number}.values"] = series.values
            if series.times is not None:
                past[f"{number}.times"] = series.times.astype(np.int64)
        config = {
            "network": asdict(self.network_.config),
            "scale": {"mean": self.mean_, "std": self.std_, "constant": self.constant_},
            "form": asdict(self.form_),
            "calendar": self.calendar_,
            "series": [series.name for series in self.series_],
        }
        return config, past

    def _set_state(self, config: dict[str, Any], tensors: dict[str, Tensor], device: torch.device) -> None:
        network = HorizonConfig(**config["network"])
        self.network_ = store.build(Horizon, network, tensors).to(device)
        self.mean_, self.std_ = (
            store.numbers_in(config["scale"][name], f"the {name}", (network.columns,)) for name in ("mean", "std")
        )
        constant = config["scale"].get("constant", [False] * network.columns)  # files of before have none
        self.constant_ = store.numbers_in(constant, "the constant", (network.columns,)) > 0
        self.masked_, self.n_features_in_ = network.masked, network.columns
        form = dict(config["form"])
        self.form_ = Form(**{**form, "columns": tuple(form["columns"]), "names": tuple(form["names"])})
        self.calendar_ = tuple(check_choice("calendar", name, PERIODS) for name in config["calendar"])
        if len(self.calendar_) != network.d_marks:
            raise ValueError("its network does not match its calendar features")
        check_int("context", self.chosen_["context"], minimum=1)
        names = config["series"]
        self.series_ = [_stored_series(tensors, number, name, self.form_) for number, name in enumerate(names)]

    def _forecast(self, X: Any, horizon: int | None, dt_scale: float) -> tuple[list[Array], list[TimeSeries], Form]:
        """Forecasts (H, C, 1 + Q) in the units of the data."""
        most = max(1, int(self.horizon / dt_scale))
        steps = most if horizon is None else check_int("horizon", horizon, minimum=1)
        if steps > most:
            raise ValueError(f"horizon must be at most {most}, which the estimator was fitted for, got {steps}")
        all_series, form = (self.series_, self.form_) if X is None else self._read(X, dt_scale)
        context = max(1, int(self.chosen_["context"] / dt_scale))
        for series in all_series:
            if len(series) < context:
                raise ValueError(
                    f"{series.label} must have at least the {context} rows of the context, got {len(series)}"
                )
        sizes: dict[str, Any] = {"context": context, "steps": steps, "dt_scale": dt_scale}
        return [self._after(recent(series, context), form, **sizes) for series in all_series], all_series, form

    def _after(self, series: TimeSeries, form: Form, *, context: int, steps: int, dt_scale: float) -> Array:
        """The forecast (H, C, 1 + Q) of one series from its last rows."""
        part = prepare(series, form, self.mean_, self.std_, masked=self.masked_, calendar=self.calendar_, ahead=steps)
        values = part.values if part.known is None else np.concatenate([part.values, part.known], -1)
        known = torch.from_numpy(values[-context:].astype(np.float32))[None]
        marks = None if part.marks is None else torch.from_numpy(part.marks[-context - steps :])[None]
        device = next(self.network_.parameters()).device
        with torch.inference_mode(), self._few_threads(1, context + steps):
            y = self.network_.after(known.to(device), steps, None if marks is None else marks.to(device), dt_scale)
            standardized = self._with_constants(known, y)[0].double().numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            forecast: Array = standardized * self.std_[:, None] + self.mean_[:, None]
        if not np.isfinite(forecast).all():
            raise ValueError(
                f"{series.label} must be of the magnitude that it had in fit, and far enough from float64's limits "
                f"that its forecasts are finite; got values up to {np.nanmax(np.abs(series.values)):.1e}, check "
                "their unit"
            )
        return forecast

    def _with_constants(self, known: Tensor, y: Tensor) -> Tensor:
        """Forecasts (B, H, C, 1 + Q) with columns that were constant in fit held at the last of the rows (B, T, …)."""
        last = known[:, -1:, : len(self.constant_), None].cpu()
        return torch.where(torch.from_numpy(self.constant_)[:, None], last, y.cpu())

    def _read(self, X: Any, dt_scale: float = 1.0) -> tuple[list[TimeSeries], Form]:
        all_series, form = read_series(X, missing=self.missing, shortest=1, channels_first=self.channels_first)
        if all_series[0].columns != self.n_features_in_:
            raise ValueError(f"X must have {self.n_features_in_} columns, as in fit, got {all_series[0].columns}")
        if self.network_.config.d_marks and not form.dated:
            raise ValueError("X must have dates as its index, as in fit, got rows without")
        ratio = form.ratio(self.form_)
        if ratio is not None and abs(ratio - dt_scale) > 1e-6 * ratio:
            raise ValueError(
                f"X must come in the steps of fit times dt_scale={dt_scale:g}, got steps {ratio:g} times as long; "
                f"resample it or give dt_scale={ratio:g}"
            )
        if form.columns and self.form_.columns and form.columns != self.form_.columns:
            raise ValueError(f"X must have the columns {list(self.form_.columns)}, as in fit, got {list(form.columns)}")
        return all_series, form

    def _prepare(self, series: TimeSeries) -> PreparedSeries:
        return prepare(series, self.form_, self.mean_, self.std_, masked=self.masked_, calendar=self.calendar_)

    def _in_words(self, all_series: list[TimeSeries]) -> str:
        rows, columns = sum(map(len, all_series)), self.n_features_in_
        size = f"{len(all_series)} series, {rows} rows" if len(all_series) > 1 else f"{rows} rows"
        names = f", calendar {'/'.join(self.calendar_)}" if self.calendar_ else ""
        data = f"{size} of {columns} column{'s' * (columns > 1)}{names}"
        return f"{data} -> {self.horizon} rows from {self.chosen_['context']};"

    def _config(self, part: PreparedSeries, context: int) -> HorizonConfig:
        chosen = self.chosen_
        options = {
            "d_model": chosen["d_model"], "n_layers": chosen["n_layers"], "d_state": chosen["d_state"],
            "layer": "s4d", "ssm": {"init": "legs", "dt_min": 0.001, "dt_max": 0.1}, "mix": "linear",
            "dropout": self.dropout,
        }  # fmt: skip
        return HorizonConfig(
            part.values.shape[1], context, self.horizon, 0 if part.marks is None else part.marks.shape[1],
            len(self.quantiles), self.centre, self.joint, self.masked_, options,
        )  # fmt: skip

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        return tags


def _stored_series(tensors: dict[str, Any], number: int, name: Any, form: Form) -> TimeSeries:
    values = store.array(tensors, f"{number}.values", torch.float64, 2)
    if form.step is None:
        return TimeSeries(values, None, name)
    return TimeSeries(values, store.array(tensors, f"{number}.times", torch.int64, 1).astype(form.times_dtype), name)
