"""A run as a picture: bars of time and memory, lines over the length, or rates over the batch."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from statespan._machine import device_name
from statespan._plotting import COLORS, GREY
from statespan.papers.bench.case import OK, Row
from statespan.papers.bench.record import write
from statespan.papers.bench.report import number, short
from statespan.papers.bench.runner import Result

TIME, MEMORY = ("time, ms", "time_ms"), ("peak memory, MB", "memory_mb")


def plot(result: Result, path: Path, where: str | None = None) -> bool:
    """Draw a run to a PNG file, whole or not at all. Needs matplotlib.

    Args:
        result: The run.
        path: Where to.
        where: Name of the device it ran on; that of its settings' device on this machine if not given.

    Returns:
        Whether there was anything to draw.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in result.rows if row.status == OK and row.setting.get("part") != "copy"]
    if not rows:
        return False
    figure = Figure(dpi=130)
    figure.set_layout_engine("constrained", w_pad=0.12)
    FigureCanvasAgg(figure)
    if result.benchmark.rate:
        _rates(figure, rows, result.benchmark.rate)
    else:
        (_lines if result.benchmark.lines else _bars)(figure, rows)
    about = [where or device_name(result.settings.device), str(result.settings.dtype).removeprefix("torch.")]
    about += ["--quick: toy sizes"] if result.settings.quick else []
    figure.suptitle(f"{result.benchmark.name}: {result.benchmark.listing.summary}", fontsize=9.5, fontweight="bold")
    figure.supxlabel(", ".join(about), fontsize=7, color=GREY)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write(path, picture.getvalue())
    return True


def _lines(figure: Any, rows: Sequence[Row]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    figure.set_size_inches(9, 3.8)
    lengths = sorted({row.setting["length"] for row in rows})
    for axes, (label, value) in zip(figure.subplots(1, 2), (TIME, MEMORY)):
        for color, name in zip(COLORS, dict.fromkeys(row.name for row in rows)):
            mine = [row for row in rows if row.name == name]
            xs = [row.setting["length"] for row in mine]
            slope = mine[0].extra.get(value.split("_")[0] + "_exponent")
            fitted = name if slope is None else f"{name}  ~ L$^{{{slope:.2f}}}$"
            axes.plot(xs, [getattr(row, value) for row in mine], "o-", color=color, markersize=4, label=fitted)
            if value == TIME[1]:
                axes.fill_between(xs, [r.low_ms for r in mine], [r.high_ms for r in mine], color=color, alpha=0.2, lw=0)
                graphs = [(r.setting["length"], r.graph_ms) for r in mine if r.graph_ms]
                if graphs:
                    axes.plot(*zip(*graphs), ":", color=color, lw=1.2)
                    label = f"{TIME[0]} (dotted: as CUDA graph)"
        axes.set(xscale="log", yscale="log", xlabel="length", ylabel=label)
        axes.xaxis.set_major_locator(FixedLocator(lengths[:: -(-len(lengths) // 6)]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda length, _: _binary(int(length))))
        low, high = axes.get_ylim()
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 50 * low else (1.0,), numticks=12))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        _gridded(axes)
        axes.legend(frameon=False, fontsize=8)


def _rates(figure: Any, rows: Sequence[Row], rate: str) -> None:
    """Rates over the batch with their floors, and beside them the time of a step at one batch after each context."""
    after = [row for row in rows if row.setting.get("part") == "context"]
    figure.set_size_inches(9, 4.6)
    panels = figure.subplots(1, 2 if after else 1, squeeze=False, width_ratios=[5, 2] if after else None)[0]
    names = list(dict.fromkeys(row.name for row in rows if row not in after))
    for index, name in enumerate(names):
        again, place = divmod(index, len(COLORS))
        mine = [(r.setting["batch"], r.extra[rate], r.ratio) for r in rows if r.name == name and r.ratio]
        panels[0].plot(*zip(*[m[:2] for m in mine]), "os^v"[again % 4] + "-", color=COLORS[place], ms=4, label=name)
        panels[0].plot([x for x, _, _ in mine], [y * ratio for _, y, ratio in mine], ":", color=COLORS[place], lw=1.0)
    unit = rate.replace("_per_s", " a second")
    panels[0].set(xscale="log", yscale="log", xlabel="batch", ylabel=f"{unit} (dotted: at the floor)")
    panels[0].legend(frameon=False, fontsize=7)
    if after:
        panels[1].plot([r.setting["context"] for r in after], [r.time_ms for r in after], "o-", color=COLORS[0], ms=4)
        panels[1].set(xscale="log", xlabel="tokens before", ylabel="ms a step, batch 1")
        panels[1].set_ylim(0, 1.5 * max(r.time_ms or 0.0 for r in after))
    for axes in panels:
        _gridded(axes)


def _bars(figure: Any, rows: Sequence[Row]) -> None:
    """A row of panels for each setting; in it the parts of the benchmark, or else time and memory."""
    parts = list(dict.fromkeys(row.setting["part"] for row in rows if "part" in row.setting))
    columns = [(f"{part}: {TIME[0]}\n", TIME[1], part) for part in parts] or [(*TIME, None), (*MEMORY, None)]
    panels: dict[str, list[Row]] = {}
    for row in rows:
        panels.setdefault(_title(row), []).append(row)
    color = {name: COLORS[i % len(COLORS)] for i, name in enumerate(dict.fromkeys(row.name for row in rows))}
    bars = [len(dict.fromkeys(row.name for row in panel)) for panel in panels.values()]
    figure.set_size_inches(9, 1.2 + 0.26 * sum(bars) + 0.5 * len(bars))
    key = " (dark: as CUDA graph; black: floor)" if any(row.graph_ms for row in rows) else " (black: floor)"
    grid = figure.subplots(len(panels), len(columns), squeeze=False, gridspec_kw={"height_ratios": bars})
    for index, (title, panel) in enumerate(panels.items()):
        line = grid[index]
        names = list(dict.fromkeys(row.name for row in panel))
        for axes, (label, value, part) in zip(line, columns):
            mine = {row.name: row for row in panel if part is None or row.setting["part"] == part}
            _panel(axes, names, mine, value, color)
            axes.set_yticks(range(len(names)), names if axes is line[0] else [""] * len(names), fontsize=8)
            if index == len(panels) - 1:
                axes.set_xlabel(label + (key if value == TIME[1] else ""), fontsize=8)
        line[0].set_title(title, fontsize=8, loc="left", color=GREY)


def _panel(axes: Any, names: Sequence[str], rows: dict[str, Row], value: str, color: dict[str, str]) -> None:
    from matplotlib.ticker import MaxNLocator

    values = {name: getattr(row, value) for name, row in rows.items()}
    largest = max(values.values(), default=1.0)
    for y, name in enumerate(names):
        if name not in rows:
            continue
        row, text = rows[name], short(values[name])
        graph = row.graph_ms if value == TIME[1] else None
        axes.barh(y, values[name], color=color[name], height=0.72, alpha=0.45 if graph else 1.0)
        if graph:
            axes.barh(y, graph, color=color[name], height=0.72)
            text += f" ({short(graph)})"
        axes.text(max(values[name], graph or 0.0) + 0.015 * largest, y, text, va="center", fontsize=7)
        if value == TIME[1]:
            axes.plot([row.floor_ms] * 2, [y - 0.36, y + 0.36], color="black", lw=1.5)
    axes.set(xlim=(0, 1.3 * largest), ylim=(len(names) - 0.4, -0.6))
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=7)
    _plain(axes)


def _title(row: Row) -> str:
    names = [name for name in ("task", "batch", "heads", "length", "d_model") if name in row.setting]
    return ", ".join(row.setting[name] if name == "task" else f"{name} {number(row.setting[name])}" for name in names)


def _binary(length: int) -> str:
    for unit, name in ((1 << 20, "M"), (1 << 10, "K")):
        if length >= unit and length % unit == 0:
            return f"{length // unit}{name}"
    return f"{length:,}"


def _gridded(axes: Any) -> None:
    axes.tick_params(labelsize=8)
    axes.grid(True, color="#e4e4e4")
    axes.set_axisbelow(True)
    _plain(axes)


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
