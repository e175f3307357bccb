"""Plots of a table: our numbers beside the paper's, and learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statespan import _plotting as _look
from statespan.papers.runs.outcome import outcome
from statespan.papers.tables.collect import Number, ReproduceOptions
from statespan.papers.tables.spec import PaperTable, Trained, number

FAR = 30  # times the smallest number, beyond which a chart has a logarithmic scale


def dots(table: PaperTable, results: Sequence[Number]) -> Any:
    """Our numbers and the paper's, a panel for each column; None if we have no number.

    Where a table prints differences, these are shown and not what they are differences from, which has another scale.
    """
    differences = any(one.is_difference for one in results)
    results = [one for one in results if one.is_difference or not differences]
    columns = [c for c in table.columns if any(one.ours is not None for one in results if one.entry.column == c.name)]
    rows = [row for row in table.rows if any(one.ours is not None for one in results if one.entry.row == row)]
    if not columns or not rows:
        return None
    place = {row: len(rows) - 1 - n for n, row in enumerate(rows)}
    figure, panels = _look.panels(
        len(columns), 3, width=1.6 + 2.6 * min(len(columns), 3), height=0.8 + 0.23 * len(rows), sharey=True
    )
    for axes, column in zip(panels, columns):
        mine = [one for one in results if one.entry.column == column.name and one.entry.row in place]
        paper = [(number(one.entry.paper), place[one.entry.row]) for one in mine]
        known = [(x, y) for x, y in paper if x is not None]
        ours = [(one.ours, place[one.entry.row], one.deviation or 0.0) for one in mine if one.ours is not None]
        if differences:
            axes.axvline(0, color=_look.GREY, linewidth=0.7)
        if known:
            axes.plot(*zip(*known), "D", color=_look.COLORS[1], markersize=4, fillstyle="none", label="paper")
        if ours:
            x, y, deviations = zip(*ours)
            axes.errorbar(x, y, xerr=deviations, fmt="o", color=_look.COLORS[0], markersize=4, label="ours", capsize=2)
        shown = [x for x, *_ in (*known, *ours) if x is not None]
        if shown and min(shown) > 0 and max(shown) > FAR * min(shown):
            axes.set_xscale("log")
        else:
            axes.locator_params(axis="x", nbins=5)  # a panel is narrow
        axes.set_yticks(range(len(rows)), rows[::-1])
        heading = f"{column.name}{' (small is good)' if column.lower else ''}"
        _look.tidy(axes, "difference" if differences else "", "", heading)
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return figure


def learning(table: PaperTable, options: ReproduceOptions, most: int = 8) -> Any:
    """Validation over epochs for the first seed of the main rows, a panel for each dataset; None if none is done."""
    panels: dict[str, dict[str, Any]] = {}
    chosen = table.main or tuple(table.rows)
    for entry in table.entries:
        if not isinstance(entry, Trained) or entry.row not in chosen or not options.wanted(entry):
            continue
        cell = options.cell(entry, 0)
        run = outcome(cell, options.cells)
        name = f"{cell.recipe.data['name']}, valid {run.metric}"
        if len(run.curve) > 1 and len(panels.get(name, {})) < most:
            panels.setdefault(name, {})[entry.row] = run.curve
    if not panels:
        return None
    figure, axes = _look.panels(len(panels), 3, width=3.2 * min(3, len(panels)) + 1.5, height=2.8)
    for one, (name, lines) in zip(axes, panels.items()):
        for color, (row, points) in zip(_look.colors(), lines.items()):
            one.plot(*zip(*points), color=color, linewidth=1.0, label=row)
        _look.tidy(one, "epoch", name, legend=True)
    return figure
