"""Settings of the estimators: chosen from the data where not given, checked, and described in one line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from statespan._check import check_bool, check_choice, check_int, check_number
from statespan.estimators.horizon import CENTRES
from statespan.estimators.inputs.timeline import TimeSeries

LONGEST = 256  # positions of the body; longer series get a stride


@dataclass(frozen=True)
class SeriesSettings:
    """The sizes and training settings of an estimator."""

    d_model: int
    n_layers: int
    d_state: int
    stride: int  # samples a position stands for
    dropout: float
    epochs: int  # passes over the training series, at most
    batch_size: int  # series an update
    learning_rate: float  # of everything but the SSMs
    validation_fraction: float  # share of the series that is held out; 0.0 for none
    patience: int  # passes without improvement on the held-out part after which training ends

    @classmethod
    def of(cls, n: int, length: int, given: dict[str, Any]) -> SeriesSettings:
        """The settings for n series of this length; ``given`` holds the user's, None where not set.

        Example:
            >>> SeriesSettings.of(50, 150, {"d_model": 32}).d_model
            32
            >>> few, many = SeriesSettings.of(50, 150, {}), SeriesSettings.of(5000, 4000, {})
            >>> few.validation_fraction, many.validation_fraction, few.stride, many.stride
            (0.0, 0.1, 1, 16)
        """
        stride = 1
        while length / stride > LONGEST:
            stride *= 2
        updates = 2000
        batch = 16 if n < 1000 else 32
        auto: dict[str, Any] = {
            "d_model": 64,
            "n_layers": 3,
            "d_state": 16,
            "stride": stride,
            "dropout": 0.1,
            "epochs": max(10, min(100, updates * batch // n)),
            "batch_size": min(batch, n),
            "learning_rate": 0.004,
            "validation_fraction": 0.1 if n >= 300 else 0.0,
            "patience": 10,
        }
        return cls(**{name: auto[name] if given.get(name) is None else given[name] for name in auto})

    def line(self, held_out: int, parameters: int, device: str) -> str:
        """The choice in words."""
        stride = "" if self.stride == 1 else f", {self.stride} samples a position"
        validation = f"{held_out} held out for early stopping" if held_out else "none held out"
        return (
            f"{self.n_layers} layers of {self.d_model} features (state {self.d_state}{stride}), "
            f"{parameters:,} weights; up to {self.epochs} epochs of batches of {self.batch_size}, {validation}; "
            f"on {device}"
        )


def choose_forecast_settings(estimator: Any, rows: int) -> dict[str, int]:
    """Sizes and settings for a series with this many rows."""
    context = max(1, min(max(336, 2 * estimator.horizon), 720, (rows - estimator.horizon) // 3))
    auto = {
        "context": context, "d_model": 32, "n_layers": 2, "d_state": 32, "steps": 600, "batch_size": 32, "patience": 6,
    }  # fmt: skip
    given = {name: getattr(estimator, name) for name in auto}
    return {name: auto[name] if given[name] is None else int(given[name]) for name in auto}


def describe_forecast(estimator: Any, all_series: list[TimeSeries], *, windows: int, held_out: int, device: Any) -> str:
    """Describe the data read and the settings chosen, in one line."""
    rows, columns, chosen = sum(map(len, all_series)), all_series[0].columns, estimator.chosen_
    count = sum(p.numel() for p in estimator.network_.parameters())
    size = f"{len(all_series)} series, {rows} rows" if len(all_series) > 1 else f"{rows} rows"
    names = f", calendar {'/'.join(estimator.calendar_)}" if estimator.calendar_ else ""
    return (
        f"S4Forecaster: {size} of {columns} column{'s' * (columns > 1)}{names} -> {estimator.horizon} rows from "
        f"{chosen['context']}; {chosen['n_layers']} layers of {chosen['d_model']} features (state "
        f"{chosen['d_state']}), {count:,} weights; up to {chosen['steps']} updates of {chosen['batch_size']} of "
        f"{windows} windows, {f'{held_out} held out for early stopping' if held_out else 'none held out'}; on {device}"
    )


def refuse_answers(y: Any) -> None:
    """Reject targets beside the series."""
    if y is not None:
        raise ValueError(
            f"y must be None: S4Forecaster learns to continue X and has no other answers, got {type(y).__name__}. Give "
            "the series to forecast as X; series that help to forecast it are further columns of X with joint=True"
        )


def check_forecast_settings(estimator: Any) -> None:
    """Reject values of the forecaster's own settings that are invalid for any data."""
    check_int("horizon", estimator.horizon, minimum=1)
    for name in ("dropout", "learning_rate", "validation_fraction"):
        if getattr(estimator, name) is None:
            raise TypeError(f"{name} must be a number, got None")
    quantiles = estimator.quantiles
    if isinstance(quantiles, str) or not hasattr(quantiles, "__iter__"):
        raise TypeError(f"quantiles must be a tuple of numbers between 0 and 1, got {quantiles!r}")
    for quantile in quantiles:
        check_number("quantiles", quantile, above=0.0, below=1.0)
    if len(set(quantiles)) != len(tuple(quantiles)):
        raise ValueError(f"quantiles must be different numbers, got {tuple(quantiles)}")
    check_bool("joint", estimator.joint)
    check_bool("calendar", estimator.calendar)
    check_choice("centre", estimator.centre, CENTRES)
