"""Prints a run on the terminal: one table, then its findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    known = result.benchmark.sections or SECTIONS
    sections = [name for name in known if len({str(row.setting.get(name)) for row in rows}) > 1]
    same = {k: v for k, v in rows[0].setting.items() if all(row.setting.get(k, v) == v for row in rows)}
    about = [
        str(options.dtype).removeprefix("torch."),
        *(f"{name} {number(same[name])}" for name in same if name != "dtype"),
    ]
    console.print(f"\n[bold]{result.benchmark.name}[/bold]: {escape(result.benchmark.listing.caption)}")
    console.print(
        f"[dim]{escape(device_name(options.device))}; {', '.join(about)}; copy {rates.bandwidth / 1e9:.4g} GB/s, "
        f"matmul {rates.matmul / 1e12:.3g} TFLOP/s[/dim]"
    )
    console.print(_table(result, sections))
    for row in rows:
        if row.status != OK:
            place = ", ".join([row.name, *_words(row, sections)])
            console.print(f"[{STYLE[row.status]}]{row.status}[/]: {escape(place)}: {escape(row.reason)}")
    for note in dict.fromkeys(row.notes for row in rows if row.notes):
        names = dict.fromkeys(row.name for row in rows if row.notes == note)
        console.print(f"[dim]{escape('; '.join(names))}: {escape(note)}[/dim]")
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


Columns = Mapping[str, Callable[[BenchRow], str]]


def _columns(result: BenchResult) -> Columns:
    """The text of a row's figure for each heading: the benchmark's own columns, or all."""
    benchmark, rows = result.benchmark, result.rows
    if benchmark.columns:
        present = {name: heading for name, heading in benchmark.columns.items() if any(r.figure(name) for r in rows)}
        return {heading: _shown(name) for name, heading in present.items()}
    columns: dict[str, Callable[[BenchRow], str]] = {"ms": _shown("time_ms")}
    columns["20-80 %"] = lambda row: f"{short(row.low_ms)}-{short(row.high_ms)}"
    if any(row.graph_ms for row in rows):
        columns["as graph"] = lambda row: short(row.graph_ms) or "-"
    columns |= {"floor": _shown("floor_ms"), "x floor": _shown("ratio"), "MB": _shown("memory_mb")}
    columns["error"] = lambda row: "" if row.error is None else f"{row.error:.0e}" if row.error else "0"
    extras = [] if benchmark.lines else dict.fromkeys(name for row in rows for name in row.extra)
    return columns | {name.replace("_", " "): _shown(name) for name in extras}


def _shown(name: str) -> Callable[[BenchRow], str]:
    return lambda row: short(row.figure(name))


def _table(result: BenchResult, sections: Sequence[str]) -> Table:
    """Rows grouped by setting; for line plots, lengths grouped by name."""
    rows, lines, columns = result.rows, result.benchmark.lines, _columns(result)
    gap = 0 if result.benchmark.columns else 1  # these have long names in front of them
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False, padding=(0, gap, 0, 0))
    table.add_column("")
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    above = ""
    for row in rows:
        words, style = ", ".join(_words(row, sections)), STYLE[row.status]
        heading, label = (row.name, words) if lines else (words, row.name)
        if heading and heading != above:
            table.add_row(f"[bold cyan]{escape(heading)}[/]")
            above = heading
        cells = [text(row) for text in columns.values()] if row.status == OK else [f"[{style}]{row.status}[/]"]
        table.add_row(f"{'  ' if heading else ''}[{style}]{escape(label)}[/]", *cells)
    return table


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
