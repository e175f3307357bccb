"""The settings of a forecaster: checked, chosen from the data where not given, and printed."""

from __future__ import annotations

from typing import Any

from statespan._check import check_bool, check_choice, check_int, check_number
from statespan.estimators.horizon import CENTRES
from statespan.estimators.inputs.timeline import Line


def choose(estimator: Any, rows: int) -> dict[str, int]:
    """Sizes and settings for a series with this many rows."""
    context = max(1, min(max(336, 2 * estimator.horizon), 720, (rows - estimator.horizon) // 3))
    auto = {
        "context": context, "d_model": 32, "n_layers": 2, "d_state": 32, "steps": 600, "batch_size": 32, "patience": 6,
    }  # fmt: skip
    given = {name: getattr(estimator, name) for name in auto}
    return {name: auto[name] if given[name] is None else int(given[name]) for name in auto}


def describe(estimator: Any, lines: list[Line], *, windows: int, held_out: int, device: Any) -> str:
    """Describe the data read and the settings chosen, in one line."""
    rows, columns, chosen = sum(len(line.values) for line in lines), lines[0].values.shape[1], estimator.chosen_
    count = sum(p.numel() for p in estimator.network_.parameters())
    many = f"{len(lines)} series, {rows} rows" if len(lines) > 1 else f"{rows} rows"
    names = f", calendar {'/'.join(estimator.calendar_)}" if estimator.calendar_ else ""
    return (
        f"S4Forecaster: {many} of {columns} column{'s' * (columns > 1)}{names} -> {estimator.horizon} rows from "
        f"{chosen['context']}; {chosen['n_layers']} layers of {chosen['d_model']} features (state "
        f"{chosen['d_state']}), {count:,} weights; up to {chosen['steps']} updates of {chosen['batch_size']} of "
        f"{windows} windows, {f'{held_out} held out for early stopping' if held_out else 'none held out'}; on {device}"
    )


def refuse_answers(y: Any) -> None:
    """Reject answers beside the series."""
    if y is not None:
        raise ValueError(
            f"y must be None: S4Forecaster learns to continue X and has no other answers, got {type(y).__name__}. Give "
            "the series to forecast as X; series that help to forecast it are further columns of X with joint=True"
        )


def check_choices(estimator: Any) -> None:
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
