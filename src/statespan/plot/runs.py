"""Plots runs: curves of loss and metric, and forecasts beside the actual values.

Shapes: B windows, T context, H horizon, C series.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from statespan import _plotting as _look
from statespan._check import check_int
from statespan.plot.source import evenly_spaced
from statespan.train.result import draw_curves


def curves(runs: Mapping[str, Path]) -> Any:
    """Training loss, validation loss and metric of one or several runs.

    Args:
        runs: Their folders, by the name in the picture.
    """
    for name, folder in runs.items():
        if not (folder / "log.csv").is_file():
            raise ValueError(f"runs must be folders with a log.csv, but {name!r} has none: {folder}")
    return draw_curves(runs)


@torch.no_grad()
def forecasts(run: Path, *, data: Path | None = None, count: int = 4, overrides: tuple[str, ...] = ()) -> Any:
    """Evenly spaced windows of the test data: the end of the context, the actual values and the forecast.

    Args:
        run: The folder of a run whose task is forecasting.
        data: The folder of the datasets.
        count: Windows.
        overrides: Changes of the recipe's data.
    """
    from statespan.train import load_run

    model, recipe, dataset = load_run(run, overrides=overrides, data=data)
    if dataset.info.task != "forecast":
        raise ValueError(f"run must be one that forecasts, but {run} is one of {dataset.info.task}")
    rows = evenly_spaced(range(len(dataset.test)), check_int("count", count, minimum=1))
    batch = dataset.test.batch(rows)
    predicted = model(batch.x, **({} if batch.marks is None else {"marks": batch.marks}))  # (B, H, C)
    horizon = dataset.info.horizon
    past = batch.x[:, : batch.x.shape[1] - horizon]
    shown = min(past.shape[1], 3 * horizon)
    figure, axes = _look.panels(len(rows), 2, height=2.2)
    for panel, was, actual, forecast in zip(axes, past, batch.y, predicted):
        panel.plot(range(-shown, 0), was[-shown:, -1], color="black", linewidth=0.9, label="past")
        panel.plot(range(horizon), actual[:, -1], color=_look.GREY, linewidth=0.9, label="actual")
        panel.plot(range(horizon), forecast[:, -1], color=_look.COLORS[1], linewidth=1.1, label="forecast")
        panel.axvline(0, color=_look.GREY, linewidth=0.6, linestyle=":")
        _look.tidy(panel, "step", "standardised value", legend=panel is axes[0])
    _look.title(figure, f"{recipe.name}: forecasts on test data")
    return figure
