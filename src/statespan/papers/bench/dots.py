"""Draws rows with several times each: a panel for each setting, a line for each row, a dot for each time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from statespan import _plotting
from statespan._plotting import COLORS, GREY
from statespan.papers.bench.case import Benchmark, BenchRow

FLOOR = "black"
MODELS = tuple(color for color in COLORS if color != "#000000")
"""The colours of models: those that the floor's line can be seen on."""
MARKERS = "^so*"
LINE = 0.2
"""Inches of a row's line."""


def draw_dots(figure: Any, rows: Sequence[BenchRow], benchmark: Benchmark) -> None:
    """Draw the times of the benchmark's ``dots`` on logarithmic axes; a panel's title is its ``sections``."""
    dots = benchmark.dots
    panels: dict[str, list[BenchRow]] = {}
    for row in rows:
        panels.setdefault(", ".join(str(row.setting[name]) for name in benchmark.sections), []).append(row)
    pairs = list(zip_longest(*[iter(panels)] * 2))  # two panels side by side
    heights = [max(len(panels[title]) for title in pair if title) for pair in pairs]
    figure.set_size_inches(11, 1.5 + LINE * sum(heights) + 0.55 * len(heights))
    colors = dict(zip(dict.fromkeys(map(model_of, rows)), MODELS * len(rows)))
    grid = figure.subplots(len(pairs), 2, squeeze=False, gridspec_kw={"height_ratios": [n + 1.5 for n in heights]})
    for line, pair in zip(grid, pairs):
        for axes, title in zip(line, pair):
            if title is None:
                axes.set_visible(False)
            else:
                _panel(axes, panels[title], dots, colors)
                axes.set_title(title, fontsize=8, loc="left", color=GREY)
    shown = {name: label for name, label in dots.items() if any(row.figure(name) for row in rows)}
    grid[0][0].legend(
        handles=_key(dots, shown), loc="lower right", bbox_to_anchor=(1.0, 0.99), ncols=len(shown) + 1, frameon=False,
        fontsize=7, columnspacing=0.7, handletextpad=0.0,
    )  # fmt: skip


def model_of(row: BenchRow) -> str:
    """What a row's colour stands for: "S4D" of "S4D, torch.compile"."""
    return row.name.split()[0].rstrip(",")


def _panel(axes: Any, rows: Sequence[BenchRow], dots: Mapping[str, str], colors: Mapping[str, str]) -> None:
    from matplotlib.ticker import LogLocator

    for y, row in enumerate(rows):
        color, values = colors[model_of(row)], {name: row.figure(name) for name in dots}
        times = [value for value in values.values() if value is not None]
        axes.plot([min(times), max(times)], [y, y], "-", color=color, lw=1.2, alpha=0.5)
        for (name, value), marker in zip(values.items(), MARKERS):
            if value is not None:  # the wall time lies over the others, so it is drawn hollow
                face = "none" if name == "time_ms" else color
                axes.plot(value, y, marker, color=color, markerfacecolor=face, ms=8 if name == "time_ms" else 4)
        if row.floor_ms:
            axes.plot([row.floor_ms] * 2, [y - 0.4, y + 0.4], color=FLOOR, lw=1.4, label="floor")
    axes.set(xscale="log", ylim=(len(rows) - 0.4, -0.6))
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    left, right = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if right < 30 * left else (1.0,), numticks=12))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    _plotting.tidy(axes, "ms", "")
    axes.tick_params(axis="y", length=0)


def _key(dots: Mapping[str, str], shown: Mapping[str, str]) -> list[Any]:
    """The legend's entries: a marker for each time, and the floor."""
    from matplotlib.lines import Line2D

    def entry(name: str, marker: str) -> Any:
        own = name == "time_ms"
        mark = Line2D([], [], marker=marker, linestyle="", color=GREY, label=shown[name], markersize=8 if own else 4)
        mark.set_markerfacecolor("none" if own else GREY)
        return mark

    marks = [entry(name, marker) for name, marker in zip(dots, MARKERS) if name in shown]
    return [*marks, Line2D([], [], marker="|", linestyle="", color=FLOOR, markersize=8, label="floor")]
