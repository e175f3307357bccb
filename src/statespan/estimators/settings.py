"""Settings of the estimators: chosen from the data where not given, checked, and described in one line."""

from __future__ import annotations

from typing import Any

import torch

from statespan._check import check_bool, check_choice, check_int, check_number
from statespan.estimators.horizon import CENTRES

LONGEST = 256  # positions of the body; longer series get a stride
UPDATES = 2000  # wanted with series, if that takes 10 to 100 epochs


def choose_series_settings(estimator: Any, n: int, length: int, *, is_irregular: bool = False) -> dict[str, Any]:
    """Sizes and settings for n series of this length; samples at irregular times need a stride of 1.

    Example:
        >>> from statespan.estimators import S4Classifier
        >>> few, many = (choose_series_settings(S4Classifier(d_model=32), *size) for size in ((50, 150), (5000, 4000)))
        >>> few["d_model"], few["validation_fraction"], many["validation_fraction"], few["stride"], many["stride"]
        (32, 0.0, 0.1, 1, 16)
    """
    stride = 1
    while length / stride > LONGEST and not is_irregular:
        stride *= 2
    batch = 16 if n < 1000 else 32
    auto = {
        "d_model": 64,
        "n_layers": 3,
        "d_state": 16,
        "stride": stride,
        "dropout": 0.1,
        "epochs": max(10, min(100, UPDATES * batch // n)),
        "batch_size": min(batch, n),
        "learning_rate": 0.004,
        "validation_fraction": 0.1 if n >= 300 else 0.0,
        "patience": 10,
    }
    return _chosen(estimator, auto)


def choose_forecast_settings(estimator: Any, rows: int) -> dict[str, Any]:
    """Sizes and settings for a series with this many rows."""
    context = max(1, min(max(336, 2 * estimator.horizon), 720, (rows - estimator.horizon) // 3))
    auto = {
        "context": context, "d_model": 32, "n_layers": 2, "d_state": 32, "steps": 600, "batch_size": 32, "patience": 6,
    }  # fmt: skip
    return _chosen(estimator, auto)


def describe(estimator: Any, data: str, training: str, *, held_out: int, device: torch.device) -> str:
    """Describe the data read, the network and its training, in one line."""
    chosen = estimator.chosen_
    stride = f", {chosen['stride']} samples a position" if chosen.get("stride", 1) > 1 else ""
    count = sum(p.numel() for p in estimator.network_.parameters())
    return (
        f"{type(estimator).__name__}: {data} {chosen['n_layers']} layers of {chosen['d_model']} features (state "
        f"{chosen['d_state']}{stride}), {count:,} weights; up to {training}, "
        f"{f'{held_out} held out for early stopping' if held_out else 'none held out'}; on {device}"
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
    for name in ("dropout", "learning_rate", "validation_fraction", "holdback_fraction"):
        if getattr(estimator, name) is None:
            raise TypeError(f"{name} must be a number, got None")
    check_number("holdback_fraction", estimator.holdback_fraction, above=0.0, below=1.0, closed=True)
    if estimator.validation_fraction + estimator.holdback_fraction >= 1.0:
        raise ValueError(
            "validation_fraction and holdback_fraction must leave rows to learn from, got "
            f"{estimator.validation_fraction} and {estimator.holdback_fraction}"
        )
    if estimator.season is not None:
        check_int("season", estimator.season, minimum=1)
    check_choice("layer", estimator.layer, ("s4d", "s4"))
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


def _chosen(estimator: Any, auto: dict[str, Any]) -> dict[str, Any]:
    """The settings of an estimator, those that are None chosen automatically."""
    given = {name: getattr(estimator, name) for name in auto}
    return {name: auto[name] if value is None else type(auto[name])(value) for name, value in given.items()}
