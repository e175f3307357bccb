"""What every method of a forecaster needs: reading series in the form of fit, preparing them, saving and loading.

Shapes: T rows, C columns, E covariates, H steps.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from statespan._check import check_choice, check_int
from statespan.estimators import store
from statespan.estimators.base import Estimator
from statespan.estimators.forecasting.blend import Blend, blend_of, plain_blend
from statespan.estimators.forecasting.covariates import LAGS, Effect, Roles, features, read_future, split
from statespan.estimators.forecasting.intervals import Errors, errors_of
from statespan.estimators.forecasting.predicting import Judged
from statespan.estimators.horizon import Horizon, HorizonConfig
from statespan.estimators.inputs.series import Array
from statespan.estimators.inputs.timeline import Form, TimeSeries, read_series
from statespan.estimators.inputs.windows import PERIODS, PreparedSeries, prepare, recent


@dataclass(kw_only=True, eq=False, repr=False)
class ForecastEstimator(Estimator):
    """The state of a fitted forecaster.

    Example:
        >>> from statespan.estimators import S4Forecaster
        >>> issubclass(S4Forecaster, ForecastEstimator), S4Forecaster().horizon
        (True, 24)
    """

    horizon: int = 24
    freq: str | None = None

    @property
    def _judged(self) -> Judged:
        return Judged(self.network_, self.blend_, self.errors_, self.constant_)

    def _read(self, X: Any, dt_scale: float = 1.0) -> tuple[list[TimeSeries], Form]:
        """Series as those of fit."""
        all_series, form = read_series(
            X, missing=self.missing, shortest=1, channels_first=self.channels_first, like=self.form_, freq=self.freq
        )
        if all_series[0].columns != self.roles_.columns:
            raise ValueError(f"X must have {self.roles_.columns} columns, as in fit, got {all_series[0].columns}")
        if self.calendar_ and not form.dated:
            raise ValueError("X must have dates as its index, as in fit, got rows without")
        ratio = form.ratio(self.form_)
        if ratio is not None and abs(ratio - dt_scale) > 1e-6 * ratio:
            raise ValueError(
                f"X must come in the steps of fit times dt_scale={dt_scale:g}, got steps {ratio:g} times as long; "
                f"resample it or give dt_scale={ratio:g}"
            )
        if form.columns and self.roles_.names and form.columns != self.roles_.names:
            raise ValueError(f"X must have the columns {list(self.roles_.names)}, as in fit, got {list(form.columns)}")
        return self._divided(all_series, form)

    def _divided(self, all_series: list[TimeSeries], form: Form) -> tuple[list[TimeSeries], Form]:
        """The series with covariates apart, and the form of what is forecast."""
        targets = self.roles_.targets
        form = replace(form, columns=tuple(form.columns[i] for i in targets)) if form.columns else form
        return [split(series, self.roles_) for series in all_series], form

    def _prepare(self, series: TimeSeries, *, ahead: int = 0, extra: Array | None = None) -> PreparedSeries:
        """A series standardised, with marks also for rows ahead, whose covariates are given (ahead, E)."""
        covariates, effect = None, None
        if series.extra is not None:
            rows = series.extra if extra is None else np.concatenate([series.extra, extra])
            mean, std = self.extra_scale_
            covariates = (rows - mean) / std
            if len(covariates) > len(series):
                covariates[len(series) :, : len(self.roles_.past)] = 0.0
            if self.effect_ is not None:
                effect = self.effect_.of(covariates[:, -len(self.roles_.future) :])
        return prepare(
            series, self.form_, self.mean_, self.std_, masked=self.masked_, calendar=self.calendar_, ahead=ahead,
            extra=covariates, effect=effect,
        )  # fmt: skip

    def _pasts(
        self, X: Any, steps: int, dt_scale: float, future: Any
    ) -> tuple[list[tuple[Tensor, Tensor | None, Array]], list[TimeSeries], Form]:
        """Of each series the rows to read (1, T, …), the marks (1, T + steps, M) and the effect (steps, C)."""
        all_series, form = (self.series_, self.form_) if X is None else self._read(X, dt_scale)
        extras = read_future(future, all_series, self.roles_, steps, like=self.form_)
        rows = [self._row(series, extra, steps, dt_scale) for series, extra in zip(all_series, extras)]
        return rows, all_series, form

    def _row(
        self, series: TimeSeries, extra: Array | None, steps: int, dt_scale: float
    ) -> tuple[Tensor, Tensor | None, Array]:
        """The rows to read (1, T, …), marks (1, T + steps, M) and effect (steps, C) of a series."""
        context = max(1, int(self.chosen_["context"] / dt_scale))
        device = next(self.network_.parameters()).device
        if len(series) < context:
            raise ValueError(f"{series.label} must have at least the {context} rows of the context, got {len(series)}")
        part = self._prepare(recent(series, context + LAGS), ahead=steps, extra=extra)
        values = part.values if part.known is None else np.concatenate([part.values, part.known], -1)
        known = torch.from_numpy(values[-context:].astype(np.float32))[None].to(device)
        marks = None if part.marks is None else torch.from_numpy(part.marks[-context - steps :])[None].to(device)
        nothing = np.zeros((steps, len(self.mean_)))
        effect = nothing if part.effect is None else part.effect[-steps:]
        return known, None if marks is None else marks.float(), effect

    def _in_units(self, standardized: Array, effect: Array, series: TimeSeries) -> Array:
        """Standardised forecasts (steps, C, …) in the units of the data."""
        shape = (-1, *[1] * (standardized.ndim - 2))
        with np.errstate(over="ignore", invalid="ignore"):
            effect = effect.reshape(*effect.shape, *[1] * (standardized.ndim - 2))
            forecast: Array = (standardized + effect) * self.std_.reshape(shape) + self.mean_.reshape(shape)
        if not np.isfinite(forecast).all():
            raise ValueError(
                f"{series.label} must be of the magnitude that it had in fit, and far enough from float64's limits "
                f"that its forecasts are finite; got values up to {np.nanmax(np.abs(series.values)):.1e}, check "
                "their unit"
            )
        return forecast

    def _state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        arrays: dict[str, Array] = {}
        for number, series in enumerate(self.series_):  # for predict() without an argument
            arrays[f"{number}.values"] = series.values
            if series.times is not None:
                arrays[f"{number}.times"] = series.times.astype(np.int64)
            if series.extra is not None:
                arrays[f"{number}.extra"] = series.extra
        config = {
            "network": asdict(self.network_.config),
            "scale": {"mean": self.mean_, "std": self.std_, "constant": self.constant_},
            "form": asdict(self.form_),
            "calendar": self.calendar_,
            "series": [series.name for series in self.series_],
            "blend": plain_blend(self.blend_),
            "roles": asdict(self.roles_),
            "held_out": self.held_out_,
            "report": self.report_,
        }
        if self.errors_ is not None:
            arrays["errors"] = self.errors_.values
            config["errors"] = {name: getattr(self.errors_, name) for name in ("kind", "power", "floor")}
        if self.roles_.order:
            config["extra_scale"] = np.stack(self.extra_scale_)
        if self.effect_ is not None:
            config["effect"] = self.effect_.weights
        return config, arrays

    def _set_state(self, config: dict[str, Any], tensors: dict[str, Tensor], device: torch.device) -> None:
        network = HorizonConfig(**config["network"])
        self.network_ = store.build(Horizon, network, tensors).to(device)
        columns = network.columns
        self.mean_, self.std_ = (
            store.numbers_in(config["scale"][name], f"the {name}", (columns,)) for name in ("mean", "std")
        )
        constant = config["scale"].get("constant", [False] * columns)  # files of before have none
        self.constant_ = store.numbers_in(constant, "the constant", (columns,)) > 0
        self.masked_, self.n_features_in_ = network.masked, columns
        form = dict(config["form"])
        self.form_ = Form(**{**form, "columns": tuple(form["columns"]), "names": tuple(form["names"])})
        self.calendar_ = tuple(check_choice("calendar", name, PERIODS) for name in config["calendar"])
        roles: dict[str, Any] = config.get("roles", {"columns": columns, "names": self.form_.columns})
        lists = {name: tuple(part) for name, part in roles.items() if name != "columns"}
        self.roles_ = Roles(check_int("columns", roles["columns"], minimum=1), **lists)
        if len(self.calendar_) + len(self.roles_.order) != network.d_marks or len(self.roles_.targets) != columns:
            raise ValueError("its network does not match its calendar features and covariates")
        check_int("context", self.chosen_["context"], minimum=1)
        self._set_judgement(config, tensors)
        names = config["series"]
        self.series_ = [_stored_series(tensors, number, name, self.form_) for number, name in enumerate(names)]

    def _set_judgement(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        network, extras = self.network_.config, len(self.roles_.order)
        stored = config.get("blend")  # files of before have none: their network was all there was
        self.blend_ = Blend.whole(network.horizon) if stored is None else blend_of(stored, network.horizon)
        self.held_out_, self.report_ = dict(config.get("held_out") or {}), str(config.get("report", ""))
        self.errors_: Errors | None = None
        if "errors" in config:
            values = store.array(tensors, "errors", torch.float32, 3)
            self.errors_ = errors_of(config["errors"], values, (network.horizon, network.columns))
        if extras:
            scale = store.numbers_in(config["extra_scale"], "the scale of covariates", (2, extras))
            self.extra_scale_ = (scale[0], scale[1])
        self.effect_: Effect | None = None
        if config.get("effect") is not None:
            shape = (features(np.zeros((1, len(self.roles_.future)))).shape[1], network.columns)
            self.effect_ = Effect(store.numbers_in(config["effect"], "the effect", shape))


def _stored_series(tensors: dict[str, Any], number: int, name: Any, form: Form) -> TimeSeries:
    values = store.array(tensors, f"{number}.values", torch.float64, 2)
    extra = f"array.{number}.extra" in tensors
    covariates = store.array(tensors, f"{number}.extra", torch.float64, 2) if extra else None
    if form.step is None:
        return TimeSeries(values, None, name, covariates)
    times = store.array(tensors, f"{number}.times", torch.int64, 1).astype(form.times_dtype)
    return TimeSeries(values, times, name, covariates)
