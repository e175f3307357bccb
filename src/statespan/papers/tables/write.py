"""Writes reproduced tables and figures: for each a Markdown page, an HTML page, plots and a record."""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from statespan import _plotting as _look
from statespan._io import replace_file
from statespan._machine import commit, device_name
from statespan._version import __version__
from statespan.papers.records.text_table import TextTable
from statespan.papers.runs.outcome import DONE, outcome
from statespan.papers.tables import charts
from statespan.papers.tables.claims import CLAIMS, RULE, Book, Claim, conclusions
from statespan.papers.tables.collect import NOT_RUN, PAPER_ONLY, Number, ReproduceOptions, cells_of, numbers
from statespan.papers.tables.figures import Drawn
from statespan.papers.tables.page import Block, Bullets, Heading, Picture, Text, markdown, page
from statespan.papers.tables.spec import Compared, Measured, PaperTable, Trained, read

MEAN = "Ours: mean ± standard deviation (seeds). "
WORDS = {"missing": "data missing", "waiting": "not run yet", "stopped": "not finished", "failed": "failed"}


def write_table(table: PaperTable, options: ReproduceOptions, out: Path) -> dict[str, Any]:
    """Write a table with the numbers known so far."""
    results = numbers(table, options)
    blocks: list[Block] = [Text(table.about)]
    trained = any(isinstance(one.entry, Trained) for one in results)
    if trained:
        blocks += _budget(table, options)
    settings = all(isinstance(one.entry, Compared) for one in results)
    blocks += [Heading("Numbers"), _settings(table, results) if settings else _grid(table, results)]
    if not settings:
        blocks.append(Text(f"{MEAN if trained else ''}Δ: ours minus the paper's.", note=True))
    blocks += _faults(results)
    claims = conclusions(Book(table, results))
    if claims:
        blocks += _claims(CLAIMS[table.name]["title"], claims)
    pictures = {"numbers": charts.dots(table, results), "curves": charts.learning(table, options)}
    captions = {"numbers": "Our numbers and the paper's.", "curves": "Validation while training, first seed."}
    drawn = {name: figure for name, figure in pictures.items() if figure is not None}
    if drawn:
        blocks.append(Heading("Pictures"))
    for name, figure in drawn.items():
        blocks.append(_save(figure, out, f"{table.name}-{name}", captions[name]))
    blocks.append(Text(_made(_machines(table, options)), note=True))
    record = {
        "name": table.name, "title": table.title, "budget": options.budget, "changes": list(options.changes),
        "numbers": [plain(one) for one in results],
        "claims": [{"text": c.text, "verdict": c.verdict, "evidence": list(c.evidence)} for c in claims],
    }  # fmt: skip
    _write(table.title, blocks, record, out)
    counts: dict[str, int] = {}
    for one in results:
        if one.status != PAPER_ONLY:
            counts[one.status] = counts.get(one.status, 0) + 1
    return counts


def write_figure(name: str, title: str, drawn: Drawn, out: Path) -> None:
    """Write a figure with its numbers."""
    blocks: list[Block] = [_save(drawn.figure, out, name, title)]
    blocks += [Text(text) for text in drawn.says]
    blocks.append(Text(_made([device_name(torch.device("cpu"))]), note=True))
    _write(title, blocks, {"name": name, "title": title, "numbers": drawn.numbers}, out)


def _write(title: str, blocks: Sequence[Block], record: dict[str, Any], out: Path) -> None:
    name = record["name"]
    replace_file(out / f"{name}.md", markdown(title, blocks).encode())
    replace_file(out / f"{name}.html", page(title, blocks).encode())
    replace_file(out / f"{name}.json", (json.dumps(record, indent=1, allow_nan=False) + "\n").encode())


def _save(figure: Any, out: Path, name: str, caption: str) -> Picture:
    for kind in _look.FORMATS:
        replace_file(out / f"{name}.{kind}", _look.content(figure, kind))
    return Picture(out / f"{name}.png", caption)


def _budget(table: PaperTable, options: ReproduceOptions) -> list[Block]:
    by_data: dict[str, str] = {}
    reduced = False
    for entry in table.entries:
        if isinstance(entry, Trained) and options.wanted(entry):
            own, planned = read(entry.recipe).train, options.cell(entry, 0).recipe.train
            same = (planned.epochs, planned.steps) == (own.epochs, own.steps)
            long = f"{planned.steps} steps" if planned.steps else f"{planned.epochs} epochs"
            full = f"{own.steps} steps" if own.steps else f"{own.epochs}{' epochs' if planned.steps else ''}"
            name = str(read(entry.recipe).data["name"])
            by_data[name] = f"{long}{' as in the recipe' if same else f' instead of {full}'}"
            reduced = reduced or not same
    seeds = options.seeds or table.seeds
    text = f"Budget `{options.budget}`, {seeds} seed{'s' if seeds > 1 else ''}: "
    text += "; ".join(f"{name} {long}" for name, long in sorted(by_data.items())) + "."
    if options.changes:
        text += f" All cells with `{' '.join(options.changes)}`."
    if options.only:
        text += f" Only what has {' or '.join(f'`{word}`' for word in options.only)} in its recipe's name was run."
    if reduced:
        text += (
            " Trained for less than in the paper, numbers are worse than its own; what can be compared are orderings."
        )
    return [Text(text)]


def _grid(table: PaperTable, results: Sequence[Number]) -> TextTable:
    by_place = {(one.entry.row, one.entry.column): one for one in results}
    heads = [""]
    for column in table.columns:
        heads += [f"{column.name}, paper", "ours", "Δ"]
    rows = []
    for row in table.rows:
        cells = [row]
        for column in table.columns:
            one = by_place.get((row, column.name))
            cells += ["", "", ""] if one is None else [one.entry.paper, *_cell(one)]
        rows.append(cells)
    return TextTable(heads, rows)


def _settings(table: PaperTable, results: Sequence[Number]) -> TextTable:
    """The settings: one value if ours equals the paper's, else two."""
    by_place = {(one.entry.row, one.entry.column): one.entry for one in results}
    rows = []
    for row in table.rows:
        cells = [row]
        for column in table.columns:
            entry = by_place[row, column.name]
            assert isinstance(entry, Compared)
            cells.append(entry.paper if entry.ours == entry.paper else f"{entry.paper} (ours {entry.ours})")
        rows.append(cells)
    return TextTable(["", *(column.name for column in table.columns)], rows)


def _cell(one: Number) -> tuple[str, str]:
    """Our number and the difference as text."""
    if one.status in (PAPER_ONLY, NOT_RUN):
        return "" if one.status == PAPER_ONLY else "not run", ""
    if one.ours is None:
        return WORDS.get(one.status, one.status), ""
    digits = _digits(one)
    sign = "+" if one.is_difference else ""
    text = f"{one.ours:{sign}.{digits}f}" if abs(one.ours) < 1e4 else f"{one.ours:,.0f}"
    if one.deviation is not None:
        text += f" ± {one.deviation:.{digits}f}"
    if isinstance(one.entry, Trained):
        text += f" ({len(one.values)})"
    if one.status == "partly":
        text += ", more to run"
    delta = "" if one.delta is None else f"{one.delta:+.{digits}f}" if abs(one.delta) < 1e4 else f"{one.delta:+,.0f}"
    return text, delta


def _digits(one: Number) -> int:
    """As many decimals as the paper prints, at least two for small numbers; by magnitude if the paper has none."""
    printed = one.entry.paper.split(" ")[0].lstrip("+-")
    digits = len(printed.partition(".")[2].rstrip("K")) if "." in printed else 0
    if printed:
        return max(digits, 2) if one.ours is not None and abs(one.ours) < 100 else digits
    size = 0.0 if one.ours is None else abs(one.ours)
    return 4 if size < 2 else 2 if size < 1000 else 0


def _faults(results: Sequence[Number]) -> list[Block]:
    lines: dict[str, list[str]] = {}
    for one in results:
        if one.status not in (DONE, PAPER_ONLY, NOT_RUN) and one.why:
            lines.setdefault(one.why, []).append(f"{one.entry.row} / {one.entry.column}")
    if not lines:
        return []
    items = []
    for why, places in lines.items():
        shown = ", ".join(places[:4]) + (f" and {len(places) - 4} more" if len(places) > 4 else "")
        items.append(f"{shown}: {why}")
    return [Heading("What is missing"), Bullets(items)]


def _claims(title: str, claims: Sequence[Claim]) -> list[Block]:
    rows = [[claim.text, f"**{claim.verdict}**", "\n".join(claim.evidence) or "not run yet"] for claim in claims]
    heads = ["the paper says", "here", "gains: ours (the paper's)"]
    return [Heading(f"{title} of the paper"), Text(RULE), TextTable(heads, rows, words=(0, 1, 2))]


def _machines(table: PaperTable, options: ReproduceOptions) -> list[str]:
    """The machines that produced the numbers, from the records."""
    machines: dict[str, None] = {}
    for cell in cells_of([table], options):
        if record := outcome(cell, options.cells).record:
            machines[f"{record['machine']['device']}, torch {record['versions']['torch']}"] = None
    for one in numbers(table, options):
        if isinstance(one.entry, Measured) and one.status == DONE:
            machines[one.why] = None
    return list(machines)


def _made(machines: Sequence[str]) -> str:
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    where = f" Made on {'; '.join(machines)}." if machines else ""
    version = f"statespan {__version__}, {(commit() or '')[:10]}".rstrip(", ")
    return f"Page written {today} by `statespan reproduce` ({version}, Python {platform.python_version()}).{where}"


def plain(one: Number) -> dict[str, Any]:
    """A number as stored in the record."""
    entry = one.entry
    row: dict[str, Any] = {"row": entry.row, "column": entry.column, "paper": entry.paper, "status": one.status}
    if isinstance(entry, Compared):
        return {**row, "ours": entry.ours}
    if isinstance(entry, Trained):
        row |= {"recipe": entry.recipe, "overrides": list(entry.overrides), "value": entry.value}
    if one.status != PAPER_ONLY:
        row |= {"ours": one.ours, "std": one.deviation, "delta": one.delta, "values": list(one.values)}
    return {**row, "why": one.why} if one.why else row
