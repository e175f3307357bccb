"""Plots a run: bars of time and memory, lines over the length, rates over the batch, or dots of several times.

A colour stands for one model everywhere in a picture. Black is kept for the floor.

``python -m statespan.papers.bench.plot results/bench/*.json`` redraws the pictures from the records.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from statespan import _plotting
from statespan._io import replace_file
from statespan._machine import device_name
from statespan._plotting import COLORS, GREY
from statespan.papers.bench.case import OK, BenchRow
from statespan.papers.bench.dots import FLOOR, MODELS, draw_dots, model_of
from statespan.papers.bench.record import read_record
from statespan.papers.bench.report import number, short
from statespan.papers.bench.runner import BenchResult
from statespan.papers.bench.scaling import fitted

TIME, MEMORY = ("time, ms", "time_ms"), ("peak memory, MB", "memory_mb")
STEPS = {"none": "eager", "graph": "CUDA graph", "both": "torch.compile, CUDA graph"}
"""The names of a step's modes (``train.compile``) in a picture."""


def plot(result: BenchResult, path: Path, device: str | None = None) -> bool:
    """Draw a run to a PNG file atomically; returns whether there was anything to draw. Needs matplotlib.

    ``device`` is the name of the device it ran on; that of its options on this machine if not given.
    """
    figure = draw(result, device)
    if figure is not None:
        replace_file(path, _plotting.content(figure))
    return figure is not None


def draw(result: BenchResult, device: str | None = None) -> Any:
    """The figure of a run, or None if there is nothing to draw."""
    rows = [row for row in result.rows if row.status == OK and row.setting.get("part") != "copy"]
    if not rows:
        return None
    figure = _plotting.figure()
    figure.get_layout_engine().set(w_pad=0.12)
    if result.benchmark.dots:
        draw_dots(figure, rows, result.benchmark)
    elif result.benchmark.rate:
        _rates(figure, rows, result.benchmark.rate)
    else:
        (_lines if result.benchmark.lines else _bars)(figure, rows)
    about = [device or device_name(result.options.device), str(result.options.dtype).removeprefix("torch.")]
    about += ["--quick: toy sizes"] if result.options.quick else []
    _plotting.title(figure, f"{result.benchmark.name}: {result.benchmark.listing.summary}", ", ".join(about))
    return figure


def _lines(figure: Any, rows: Sequence[BenchRow]) -> None:
    """Time and memory over the length; the lengths that the exponents are fitted to are shaded."""
    from matplotlib.ticker import LogLocator

    figure.set_size_inches(9, 4.2)
    lengths = sorted({row.setting["length"] for row in rows})
    curves = {name: [row for row in rows if row.name == name] for name in dict.fromkeys(row.name for row in rows)}
    graphs = any(row.graph_ms for row in rows)
    for axes, (label, value) in zip(figure.subplots(1, 2), (TIME, MEMORY)):
        for color, (name, curve) in zip(MODELS, curves.items()):
            power = _power(curve, value)
            timed = [row for row in curve if row.graph_ms] if value == TIME[1] else []
            # the exponent is that of the line it was fitted to
            _line(axes, curve, value, color=color, label=name if timed else name + power)
            if timed:
                xs, ys = [row.setting["length"] for row in timed], [row.graph_ms for row in timed]
                axes.plot(xs, ys, ":", color=color, lw=1.2, label=f"{name}, CUDA graph{power}")
        axes.set(xscale="log", yscale="log")
        if (start := _fit_start(curves)) is not None:
            axes.axvspan(start, lengths[-1], color="#eeeeee", zorder=-1, label=f"fits: from {_binary(start)} on")
        ticks = lengths[:: -(-len(lengths) // 6)]
        axes.set_xticks(ticks, [_binary(length) for length in ticks])
        bottom, top = axes.get_ylim()
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if top < 50 * bottom else (1.0,), numticks=12))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        dotted = " (dotted: as CUDA graph)" if graphs and value == TIME[1] else ""
        _plotting.tidy(axes, "length", label + dotted, legend=True)


def _line(axes: Any, curve: Sequence[BenchRow], value: str, *, color: str, label: str) -> None:
    xs = [row.setting["length"] for row in curve]
    axes.plot(xs, [getattr(row, value) for row in curve], "o-", color=color, markersize=4, label=label)
    if value == TIME[1]:
        low, high = [row.low_ms for row in curve], [row.high_ms for row in curve]
        axes.fill_between(xs, low, high, color=color, alpha=0.2, lw=0)


def _power(curve: Sequence[BenchRow], value: str) -> str:
    slope = curve[0].extra.get(value.split("_")[0] + "_exponent")
    return "" if slope is None else f"  ~ L$^{{{slope:.2f}}}$"


def _fit_start(curves: Mapping[str, Sequence[BenchRow]]) -> int | None:
    """The least length that an exponent is fitted to; None if none is fitted."""
    starts = [fitted(curve)[0].setting["length"] for curve in curves.values() if "time_exponent" in curve[0].extra]
    return min(starts, default=None)


def _rates(figure: Any, rows: Sequence[BenchRow], rate: str) -> None:
    """Rates over the batch with their floors, beside the step time at one batch after each context."""
    after = [row for row in rows if row.setting.get("part") == "context"]
    figure.set_size_inches(9, 4.6)
    panels = figure.subplots(1, 2 if after else 1, squeeze=False, width_ratios=[5, 2] if after else None)[0]
    names = list(dict.fromkeys(row.name for row in rows if row not in after))
    for name, (color, marker) in _styles(names).items():
        curve = [(r.setting["batch"], r.extra[rate], r.ratio) for r in rows if r.name == name and r.ratio]
        batches, measured, ratios = zip(*curve)
        panels[0].plot(batches, measured, marker + "-", color=color, ms=4, label=name)
        floors = [y * ratio for y, ratio in zip(measured, ratios)]
        panels[0].plot(batches, floors, marker + ":", color=color, lw=1.0, ms=3, fillstyle="none")
    panels[0].set(xscale="log", yscale="log")
    unit = rate.replace("_per_s", " per second")
    _plotting.tidy(panels[0], "batch", f"{unit} (dotted: at the floor)", legend=True)
    if after:
        panels[1].plot([r.setting["context"] for r in after], [r.time_ms for r in after], "o-", color=COLORS[0], ms=4)
        panels[1].set(xscale="log", ylim=(0, 1.5 * max(r.time_ms or 0.0 for r in after)))
        _plotting.tidy(panels[1], "tokens before the step", "time per step, ms", "S4, batch 1")


def _styles(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """A colour for each model and a marker for each context, from names such as "Transformer at 1024"."""
    parts = {name: name.partition(" at ")[::2] for name in names}
    colors = dict(zip(dict.fromkeys(model for model, _ in parts.values()), MODELS))
    markers = dict(zip(dict.fromkeys(["", *(context for _, context in parts.values())]), "os^vDP*X"))
    return {name: (colors[model], markers[context]) for name, (model, context) in parts.items()}


def _bars(figure: Any, rows: Sequence[BenchRow]) -> None:
    """A row of panels for each setting: its parts of the benchmark, or else time and memory."""
    panels: dict[str, list[BenchRow]] = {}
    for row in rows:
        panels.setdefault(_title(row), []).append(row)
    columns = [_columns(panel) for panel in panels.values()]
    colors = dict(zip(dict.fromkeys(model_of(row) for row in rows), cycle(MODELS)))
    bars = [len(dict.fromkeys(map(_label, panel))) for panel in panels.values()]
    labelled = [index for index, own in enumerate(columns) if own not in columns[index + 1 : index + 2]]
    figure.set_size_inches(9, 0.8 + 0.26 * sum(bars) + 0.5 * len(bars) + 0.4 * len(labelled))
    key = f" (dark: as CUDA graph; {FLOOR}: floor)" if any(row.graph_ms for row in rows) else f" ({FLOOR}: floor)"
    most = max(map(len, columns))
    grid = figure.subplots(len(panels), most, squeeze=False, gridspec_kw={"height_ratios": bars})
    for index, (title, panel) in enumerate(panels.items()):
        line = grid[index]
        labels = list(dict.fromkeys(map(_label, panel)))
        for axes in line[len(columns[index]) :]:
            axes.remove()
        for axes, (label, value, part) in zip(line, columns[index]):
            shown = {_label(row): row for row in panel if part is None or row.setting["part"] == part}
            _panel(axes, [(labels.index(name), row) for name, row in shown.items()], value, colors)
            axes.set_ylim(len(labels) - 0.4, -0.6)
            axes.set_yticks(range(len(labels)), labels if axes is line[0] else [""] * len(labels), fontsize=8)
            if index in labelled:
                axes.set_xlabel(label + (key if value != MEMORY[1] else ""), fontsize=8)
        line[0].set_title(title, fontsize=8, loc="left", color=GREY)


def _columns(rows: Sequence[BenchRow]) -> list[tuple[str, str, str | None]]:
    """The label, the value and the part of each column."""
    if any("step_ms" in row.extra for row in rows):
        # a run is many steps, and replays a CUDA graph, which allocates its memory before: that is not shown
        return [("time per step, ms", "step_ms", None)]
    parts = list(dict.fromkeys(row.setting["part"] for row in rows if "part" in row.setting))
    return [(f"{part}: {TIME[0]}\n", TIME[1], part) for part in parts] or [(*TIME, None), (*MEMORY, None)]


def _panel(axes: Any, rows: Sequence[tuple[int, BenchRow]], value: str, colors: Mapping[str, str]) -> None:
    """Draw a bar at each position."""
    from matplotlib.ticker import MaxNLocator

    largest = max((_value(row, value) for _, row in rows), default=1.0)
    for y, row in rows:
        width, graph, color = _value(row, value), row.graph_ms if value == TIME[1] else None, colors[model_of(row)]
        text = short(width)
        axes.barh(y, width, color=color, height=0.72, alpha=0.45 if graph else 1.0)
        if graph:
            axes.barh(y, graph, color=color, height=0.72)
            text += f" ({short(graph)})"
        axes.text(max(width, graph or 0.0) + 0.015 * largest, y, text, va="center", fontsize=7)
        if value != MEMORY[1] and row.floor_ms is not None and row.time_ms:
            floor = row.floor_ms * width / row.time_ms
            axes.plot([floor] * 2, [y - 0.42, y + 0.42], color=FLOOR, lw=1.3, clip_on=False, label="floor")
    axes.set_xlim(0, 1.3 * largest)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=7)
    # a black axis on the left would hide the floors near 0
    axes.spines[["top", "right", "left"]].set_visible(False)


def _value(row: BenchRow, value: str) -> float:
    return row.extra[value] if value in row.extra else getattr(row, value)


def _label(row: BenchRow) -> str:
    return f"{row.name}, {STEPS[row.setting['step']]}" if "step" in row.setting else row.name


def _title(row: BenchRow) -> str:
    names = [name for name in ("recipe", "task", "batch", "heads", "length", "d_model") if name in row.setting]
    values = {name: row.setting[name] for name in names}
    return ", ".join(value if isinstance(value, str) else f"{name} {number(value)}" for name, value in values.items())


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
