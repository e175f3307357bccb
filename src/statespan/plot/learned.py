"""Plots trained step sizes, and curves of loss and metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from statespan import _plotting as _look
from statespan.plot.source import Part, check_parts, step_sizes
from statespan.train.result import draw_curves


def steps(parts: Sequence[Part]) -> Any:
    """The step sizes Δ of all heads in order, layer by layer, and the range they were drawn from.

    Args:
        parts: The layers.
    """
    shown = check_parts(parts, 8)
    figure = _look.figure(6.5, 3.6)
    axes = figure.subplots()
    for color, part in zip(_look.shades(len(shown)), shown):
        sizes = step_sizes(part).sort().values
        axes.plot([100 * (n + 0.5) / len(sizes) for n in range(len(sizes))], sizes, color=color, label=part.name)
    options = shown[0].layer.ssm.options
    axes.axhspan(options.dt_min, options.dt_max, color=_look.GREY, alpha=0.12, label="drawn from")
    axes.set_yscale("log")
    _look.tidy(axes, "heads in order, %", "step size Δ", legend=True)
    _look.title(figure, "Step sizes")
    return figure


def curves(runs: Mapping[str, Path]) -> Any:
    """Training loss, validation loss and metric of one or several runs.

    Args:
        runs: Their folders, by the name in the picture.
    """
    for name, folder in runs.items():
        if not (folder / "log.csv").is_file():
            raise ValueError(f"runs must be folders with a log.csv, and {name!r} has none: {folder}")
    return draw_curves(runs)
