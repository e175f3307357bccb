"""Plots of a table: our numbers beside the paper's, and learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statespan import _plotting as _look
from statespan.papers.runs.outcome import outcome
from statespan.papers.tables.collect import Number, ReproduceOptions
from statespan.papers.tables.spec import Counted, Measured, PaperTable, Trained, number

MAX_CURVES = 8  # in a panel
FAR = 30  # times the smallest number, beyond which a chart has a logarithmic scale


def dots(table: PaperTable, results: Sequence[Number]) -> Any:
    """Our numbers and the paper's, a panel for each column; None if we have no number.

    Where a table prints differences, these are shown and not what they are differences from, which has another scale.
    """
    differences = any(result.is_difference for result in results)
    results = [result for result in results if (result.is_difference or not differences) and _is_drawn(result)]
    known = [result.entry for result in results if result.ours is not None]
    if not known:
        return None
    columns = [column for column in table.columns if column.name in {entry.column for entry in known}]
    rows = [row for row in reversed(table.rows) if row in {entry.row for entry in known}]
    figure, panels = _look.panels(
        len(columns), 3, width=1.6 + 2.6 * min(len(columns), 3), height=0.8 + 0.23 * len(rows), sharey=True
    )
    for axes, column in zip(panels, columns):
        mine = {rows.index(r.entry.row): r for r in results if r.entry.column == column.name and r.entry.row in rows}
        paper = [(x, y) for y, result in mine.items() if (x := number(result.entry.paper)) is not None]
        ours = [(x, y, result.deviation or 0.0) for y, result in mine.items() if (x := result.ours) is not None]
        if differences:
            axes.axvline(0, color=_look.GREY, linewidth=0.7)
        if paper:
            axes.plot(*zip(*paper), "D", color=_look.COLORS[1], markersize=4, fillstyle="none", label="paper")
        xs, ys, deviations = zip(*ours)
        axes.errorbar(xs, ys, xerr=deviations, fmt="o", color=_look.COLORS[0], markersize=4, label="ours", capsize=2)
        shown = [x for x, *_ in (*paper, *ours)]
        if min(shown) > 0 and max(shown) > FAR * min(shown):
            axes.set_xscale("log")
        else:
            axes.locator_params(axis="x", nbins=5)  # a panel is narrow
        axes.set_yticks(range(len(rows)), rows)
        heading = f"{column.name}{' (lower is better)' if column.lower else ''}"
        unit = ", ".join(word for word in ("difference" if differences else "", column.unit) if word)
        _look.tidy(axes, unit, "", heading)
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return figure


def _is_drawn(result: Number) -> bool:
    """Whether a number is of the kind that its column has: no ratio of two rows, no count, nothing of other data."""
    entry = result.entry
    is_ratio = isinstance(entry, Measured) and entry.is_ratio
    return not is_ratio and not isinstance(entry, Counted) and result.is_comparable


def learning(table: PaperTable, options: ReproduceOptions) -> Any:
    """Validation over epochs for the first seed of the main rows, a panel for each dataset; None if none is done."""
    curves: dict[str, dict[str, Any]] = {}
    chosen = table.main or tuple(table.rows)
    for entry in table.entries:
        if not isinstance(entry, Trained) or entry.row not in chosen or not options.wanted(entry):
            continue
        cell = options.cell(entry, 0)
        run = outcome(cell, options.cells)
        name = f"{cell.recipe.data['name']}, valid {run.metric}"
        if len(run.curve) > 1 and len(curves.get(name, {})) < MAX_CURVES:
            curves.setdefault(name, {})[entry.row] = run.curve
    if not curves:
        return None
    figure, panels = _look.panels(len(curves), 3, width=3.2 * min(3, len(curves)) + 1.5, height=2.8)
    for axes, (name, lines) in zip(panels, curves.items()):
        for color, (row, points) in zip(_look.colors(), lines.items()):
            axes.plot(*zip(*points), color=color, linewidth=1.0, label=row)
        axes.xaxis.get_major_locator().set_params(integer=True)
        _look.tidy(axes, "epoch", name, legend=True)
    return figure
