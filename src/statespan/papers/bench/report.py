"""Prints a run on the terminal: one table, then its findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from statespan._machine import device_name
from statespan.papers.bench.case import FAILED, OK, SKIPPED, WRONG, BenchRow
from statespan.papers.bench.measure import MEMORY_HOW
from statespan.papers.bench.runner import BenchResult

STYLE = {OK: "none", WRONG: "bold red", FAILED: "yellow", SKIPPED: "dim"}
SECTIONS = ("task", "part", "length", "batch", "heads", "d_model")


def show(result: BenchResult, console: Console) -> None:
    """Print a run."""
    options, rates, rows = result.options, result.rates, result.rows
    sections = [name for name in SECTIONS if len({str(row.setting.get(name)) for row in rows}) > 1]
    same = {k: v for k, v in rows[0].setting.items() if all(row.setting.get(k, v) == v for row in rows)}
    about = [str(options.dtype).removeprefix("torch."), *(f"{name} {number(value)}" for name, value in same.items())]
    console.print(f"\n[bold]{result.benchmark.name}[/bold]: {escape(result.benchmark.listing.caption)}")
    console.print(
        f"[dim]{escape(device_name(options.device))}; {', '.join(about)}; copy {rates.bandwidth / 1e9:.4g} GB/s, "
        f"matmul {rates.matmul / 1e12:.3g} TFLOP/s[/dim]"
    )
    console.print(_table(rows, sections, result.benchmark.lines))
    for row in rows:
        if row.status != OK:
            place = ", ".join([row.name, *_words(row, sections)])
            console.print(f"[{STYLE[row.status]}]{row.status}[/]: {escape(place)}: {escape(row.reason)}")
    for finding in result.findings:
        console.print(escape(finding))
    for how, of in _floors(rows).items():
        console.print(f"[dim]floor{escape(of)}: {escape(how)}[/dim]")
    console.print(f"[dim]memory: {MEMORY_HOW[options.device.type]}[/dim]")


def _floors(rows: Sequence[BenchRow]) -> dict[str, str]:
    """How floors were computed, each with the rows it belongs to; nothing where there is one for all."""
    labels = ("task", "part"), ("name",), ("task", "part", "name")
    for keys in labels:
        floors: dict[str, dict[str, None]] = {}  # a dictionary keeps the order
        for row in rows:
            if row.floor_how:
                words = [*_words(row, keys), *([row.name] if "name" in keys else [])]
                floors.setdefault(row.floor_how.partition(":")[0], {})[", ".join(words)] = None
        if len({word for words in floors.values() for word in words}) == sum(map(len, floors.values())):
            break  # no label has two floors
    return {how: f" of {'; '.join(words)}" if len(floors) > 1 else "" for how, words in floors.items()}


def _table(rows: Sequence[BenchRow], sections: Sequence[str], lines: bool) -> Table:
    """Rows grouped by setting; for line plots, lengths grouped by name."""
    extras = [] if lines else list(dict.fromkeys(name for row in rows for name in row.extra))
    graphs = any(row.graph_ms for row in rows)
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("")
    figures = ["ms", "20-80 %", *(["as graph"] if graphs else []), "floor", "x floor", "MB", "error"]
    for name in (*figures, *(name.replace("_", " ") for name in extras)):
        table.add_column(name, justify="right", no_wrap=True)
    heading = ""
    for row in rows:
        words, style = ", ".join(_words(row, sections)), STYLE[row.status]
        above, label = (row.name, words) if lines else (words, row.name)
        if above and above != heading:
            table.add_row(f"[bold cyan]{escape(above)}[/]")
            heading = above
        cells = _figures(row, extras, graphs) if row.status == OK else [f"[{style}]{row.status}[/]"]
        table.add_row(f"{'  ' if above else ''}[{style}]{escape(label)}[/]", *cells)
    return table


def _figures(row: BenchRow, extras: Sequence[str], graphs: bool) -> list[str]:
    spread = f"{short(row.low_ms)}-{short(row.high_ms)}"
    error = "" if row.error is None else f"{row.error:.0e}" if row.error else "0"
    graph = [short(row.graph_ms) or "-"] if graphs else []
    rest = [short(row.floor_ms), short(row.ratio), short(row.memory_mb), error]
    return [short(row.time_ms), spread, *graph, *rest, *(short(row.extra.get(name)) for name in extras)]


def short(value: float | None) -> str:
    """A figure with three digits."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def number(value: Any) -> str:
    """Format a setting's value."""
    return f"{value:,}" if isinstance(value, int) else str(value)


def _words(row: BenchRow, names: Sequence[str]) -> list[str]:
    """The named settings as text; a task or part is shown without its key."""
    values = {name: row.setting[name] for name in names if name in row.setting}
    return [value if isinstance(value, str) else f"{name} {number(value)}" for name, value in values.items()]
