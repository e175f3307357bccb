"""Plots a run: bars of time and memory, lines over the length, or rates over the batch.

``python -m statespan.papers.bench.plot results/bench/*.json`` redraws the pictures from the records.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from statespan import _plotting
from statespan._io import replace_file
from statespan._machine import device_name
from statespan._plotting import COLORS, GREY
from statespan.papers.bench.case import OK, BenchRow
from statespan.papers.bench.record import read_record
from statespan.papers.bench.report import number, short
from statespan.papers.bench.runner import BenchResult

TIME, MEMORY = ("time, ms", "time_ms"), ("peak memory, MB", "memory_mb")


def plot(result: BenchResult, path: Path, device: str | None = None) -> bool:
    """Draw a run to a PNG file atomically; returns whether there was anything to draw. Needs matplotlib.

    ``device`` is the name of the device it ran on; that of its options on this machine if not given.
    """
    rows = [row for row in result.rows if row.status == OK and row.setting.get("part") != "copy"]
    if not rows:
        return False
    figure = _plotting.figure()
    figure.get_layout_engine().set(w_pad=0.12)
    if result.benchmark.rate:
        _rates(figure, rows, result.benchmark.rate)
    else:
        (_lines if result.benchmark.lines else _bars)(figure, rows)
    about = [device or device_name(result.options.device), str(result.options.dtype).removeprefix("torch.")]
    about += ["--quick: toy sizes"] if result.options.quick else []
    _plotting.title(figure, f"{result.benchmark.name}: {result.benchmark.listing.summary}", ", ".join(about))
    replace_file(path, _plotting.content(figure))
    return True


def _lines(figure: Any, rows: Sequence[BenchRow]) -> None:
    from matplotlib.ticker import LogLocator

    figure.set_size_inches(9, 3.8)
    lengths = sorted({row.setting["length"] for row in rows})
    for axes, (label, value) in zip(figure.subplots(1, 2), (TIME, MEMORY)):
        for color, name in zip(COLORS, dict.fromkeys(row.name for row in rows)):
            curve = [row for row in rows if row.name == name]
            xs = [row.setting["length"] for row in curve]
            slope = curve[0].extra.get(value.split("_")[0] + "_exponent")
            fitted = name if slope is None else f"{name}  ~ L$^{{{slope:.2f}}}$"
            axes.plot(xs, [getattr(row, value) for row in curve], "o-", color=color, markersize=4, label=fitted)
            if value == TIME[1]:
                low, high = [row.low_ms for row in curve], [row.high_ms for row in curve]
                axes.fill_between(xs, low, high, color=color, alpha=0.2, lw=0)
                graphs = [(row.setting["length"], row.graph_ms) for row in curve if row.graph_ms]
                if graphs:
                    axes.plot(*zip(*graphs), ":", color=color, lw=1.2)
                    label = f"{TIME[0]} (dotted: as CUDA graph)"
        axes.set(xscale="log", yscale="log")
        ticks = lengths[:: -(-len(lengths) // 6)]
        axes.set_xticks(ticks, [_binary(length) for length in ticks])
        bottom, top = axes.get_ylim()
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if top < 50 * bottom else (1.0,), numticks=12))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        _plotting.tidy(axes, "length", label, legend=True)


def _rates(figure: Any, rows: Sequence[BenchRow], rate: str) -> None:
    """Rates over the batch with their floors, beside the step time at one batch after each context."""
    after = [row for row in rows if row.setting.get("part") == "context"]
    figure.set_size_inches(9, 4.6)
    panels = figure.subplots(1, 2 if after else 1, squeeze=False, width_ratios=[5, 2] if after else None)[0]
    for index, name in enumerate(dict.fromkeys(row.name for row in rows if row not in after)):
        again, place = divmod(index, len(COLORS))
        curve = [(r.setting["batch"], r.extra[rate], r.ratio) for r in rows if r.name == name and r.ratio]
        batches, measured, ratios = zip(*curve)
        panels[0].plot(batches, measured, "os^v"[again % 4] + "-", color=COLORS[place], ms=4, label=name)
        floors = [y * ratio for y, ratio in zip(measured, ratios)]
        panels[0].plot(batches, floors, ":", color=COLORS[place], lw=1.0)
    panels[0].set(xscale="log", yscale="log")
    unit = rate.replace("_per_s", " per second")
    _plotting.tidy(panels[0], "batch", f"{unit} (dotted: at the floor)", legend=True)
    if after:
        panels[1].plot([r.setting["context"] for r in after], [r.time_ms for r in after], "o-", color=COLORS[0], ms=4)
        panels[1].set(xscale="log", ylim=(0, 1.5 * max(r.time_ms or 0.0 for r in after)))
        _plotting.tidy(panels[1], "tokens before", "ms a step, batch 1")


def _bars(figure: Any, rows: Sequence[BenchRow]) -> None:
    """A row of panels for each setting: the parts of the benchmark, or else time and memory."""
    parts = list(dict.fromkeys(row.setting["part"] for row in rows if "part" in row.setting))
    columns = [(f"{part}: {TIME[0]}\n", TIME[1], part) for part in parts] or [(*TIME, None), (*MEMORY, None)]
    panels: dict[str, list[BenchRow]] = {}
    for row in rows:
        panels.setdefault(_title(row), []).append(row)
    colors = {name: COLORS[i % len(COLORS)] for i, name in enumerate(dict.fromkeys(row.name for row in rows))}
    bars = [len(dict.fromkeys(row.name for row in panel)) for panel in panels.values()]
    figure.set_size_inches(9, 1.2 + 0.26 * sum(bars) + 0.5 * len(bars))
    key = " (dark: as CUDA graph; black: floor)" if any(row.graph_ms for row in rows) else " (black: floor)"
    grid = figure.subplots(len(panels), len(columns), squeeze=False, gridspec_kw={"height_ratios": bars})
    for index, (title, panel) in enumerate(panels.items()):
        line = grid[index]
        names = list(dict.fromkeys(row.name for row in panel))
        for axes, (label, value, part) in zip(line, columns):
            shown = {row.name: row for row in panel if part is None or row.setting["part"] == part}
            _panel(axes, [(names.index(name), row) for name, row in shown.items()], value, colors)
            axes.set_ylim(len(names) - 0.4, -0.6)
            axes.set_yticks(range(len(names)), names if axes is line[0] else [""] * len(names), fontsize=8)
            if index == len(panels) - 1:
                axes.set_xlabel(label + (key if value == TIME[1] else ""), fontsize=8)
        line[0].set_title(title, fontsize=8, loc="left", color=GREY)


def _panel(axes: Any, rows: Sequence[tuple[int, BenchRow]], value: str, colors: dict[str, str]) -> None:
    """Draw a bar at each position."""
    from matplotlib.ticker import MaxNLocator

    largest = max((getattr(row, value) for _, row in rows), default=1.0)
    for y, row in rows:
        width, graph = getattr(row, value), row.graph_ms if value == TIME[1] else None
        text = short(width)
        axes.barh(y, width, color=colors[row.name], height=0.72, alpha=0.45 if graph else 1.0)
        if graph:
            axes.barh(y, graph, color=colors[row.name], height=0.72)
            text += f" ({short(graph)})"
        axes.text(max(width, graph or 0.0) + 0.015 * largest, y, text, va="center", fontsize=7)
        if value == TIME[1]:
            axes.plot([row.floor_ms] * 2, [y - 0.36, y + 0.36], color="black", lw=1.5)
    axes.set_xlim(0, 1.3 * largest)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def _title(row: BenchRow) -> str:
    names = [name for name in ("task", "batch", "heads", "length", "d_model") if name in row.setting]
    return ", ".join(row.setting[name] if name == "task" else f"{name} {number(row.setting[name])}" for name in names)


def _binary(length: int) -> str:
    for unit, name in ((1 << 20, "M"), (1 << 10, "K")):
        if length >= unit and length % unit == 0:
            return f"{length // unit}{name}"
    return f"{length:,}"


def main(paths: list[str]) -> None:
    """Redraw the plot of each record that has one beside it."""
    for path in map(Path, paths):
        picture = path.with_suffix(".png")
        if picture.exists():
            result, device = read_record(path)
            plot(result, picture, device)
            print(picture)


if __name__ == "__main__":
    main(sys.argv[1:])
