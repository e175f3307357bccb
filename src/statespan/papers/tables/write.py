"""Writes reproduced tables and figures: for each a Markdown page, an HTML page, plots and a record."""

from __future__ import annotations

import datetime
import json
import platform
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from statespan import _plotting as _look
from statespan._io import replace_file
from statespan._machine import commit, device_name
from statespan._version import __version__
from statespan.papers.records.record import named_recipe
from statespan.papers.records.text_table import TextTable
from statespan.papers.runs.outcome import DONE, outcome
from statespan.papers.tables import charts, page
from statespan.papers.tables.claims import CLAIMS, RULE, TableNumbers, conclusions
from statespan.papers.tables.collect import NOT_RUN, PAPER_ONLY, Number, ReproduceOptions, cells_of, numbers
from statespan.papers.tables.figures import ReproducedFigure
from statespan.papers.tables.page import Block, bullets, heading, paragraph
from statespan.papers.tables.spec import Compared, Measured, PaperTable, Trained

MEAN = "Ours: mean ± standard deviation (seeds). "
WORDS = {"missing": "data missing", "waiting": "not run yet", "stopped": "not finished", "failed": "failed"}


def write_table(table: PaperTable, options: ReproduceOptions, out: Path) -> dict[str, Any]:
    """Write a table with the numbers known so far."""
    results = numbers(table, options)
    blocks = [paragraph(table.about)]
    has_trained = any(isinstance(result.entry, Trained) for result in results)
    if has_trained:
        blocks.append(paragraph(_budget(table, options)))
    blocks += [heading("Numbers"), page.table(_table(table, results))]
    if not all(isinstance(result.entry, Compared) for result in results):
        blocks.append(paragraph(f"{MEAN if has_trained else ''}Δ: ours minus the paper's.", note=True))
    if faults := _faults(results):
        blocks += [heading("What is missing"), bullets(faults)]
    claims = conclusions(TableNumbers(table, results))
    if claims:
        rows = [[claim.text, f"**{claim.verdict}**", "\n".join(claim.evidence) or "not run yet"] for claim in claims]
        evidence = TextTable(["the paper says", "here", "gains: ours (the paper's)"], rows, words=(0, 1, 2))
        blocks += [heading(f"{CLAIMS[table.name]['title']} of the paper"), paragraph(RULE), page.table(evidence)]
    pictures = {"numbers": charts.dots(table, results), "curves": charts.learning(table, options)}
    captions = {"numbers": "Our numbers and the paper's.", "curves": "Validation during training, first seed."}
    drawn = {name: figure for name, figure in pictures.items() if figure is not None}
    if drawn:
        blocks.append(heading("Pictures"))
    for name, figure in drawn.items():
        blocks.append(_save(figure, out, f"{table.name}-{name}", captions[name]))
    blocks.append(_footer(_machines(table, options, results)))
    record = {
        "name": table.name, "title": table.title, "budget": options.budget, "changes": list(options.changes),
        "numbers": [plain(result) for result in results],
        "claims": [{"text": c.text, "verdict": c.verdict, "evidence": list(c.evidence)} for c in claims],
    }  # fmt: skip
    _write(table.title, blocks, record, out)
    return Counter(result.status for result in results if result.status != PAPER_ONLY)


def write_figure(name: str, title: str, drawn: ReproducedFigure, out: Path) -> None:
    """Write a figure with its numbers."""
    blocks = [_save(drawn.figure, out, name, title), *map(paragraph, drawn.paragraphs)]
    blocks.append(_footer([device_name(torch.device("cpu"))]))
    _write(title, blocks, {"name": name, "title": title, "numbers": drawn.numbers}, out)


def _write(title: str, blocks: Sequence[Block], record: dict[str, Any], out: Path) -> None:
    name = record["name"]
    replace_file(out / f"{name}.md", page.to_markdown(title, blocks).encode())
    replace_file(out / f"{name}.html", page.to_html(title, blocks).encode())
    replace_file(out / f"{name}.json", (json.dumps(record, indent=1, allow_nan=False) + "\n").encode())


def _save(figure: Any, out: Path, name: str, caption: str) -> Block:
    for kind in _look.FORMATS:
        replace_file(out / f"{name}.{kind}", _look.content(figure, kind))
    return page.picture(out / f"{name}.png", caption)


def _budget(table: PaperTable, options: ReproduceOptions) -> str:
    """How long each dataset's cells are trained."""
    by_data: dict[str, str] = {}
    reduced = False
    for entry in table.entries:
        if isinstance(entry, Trained) and options.wanted(entry):
            recipe, planned = named_recipe(entry.recipe).train, options.cell(entry, 0).recipe.train
            same = (planned.epochs, planned.steps) == (recipe.epochs, recipe.steps)
            long = f"{planned.steps} steps" if planned.steps else f"{planned.epochs} epochs"
            full = f"{recipe.steps} steps" if recipe.steps else f"{recipe.epochs}{' epochs' if planned.steps else ''}"
            name = str(named_recipe(entry.recipe).data["name"])
            by_data[name] = f"{long}{' as in the recipe' if same else f' instead of {full}'}"
            reduced = reduced or not same
    seeds = options.seeds or table.seeds
    text = f"Budget `{options.budget}`, {seeds} seed{'s' if seeds > 1 else ''}: "
    text += "; ".join(f"{name} {long}" for name, long in sorted(by_data.items())) + "."
    if options.changes:
        text += f" All cells with `{' '.join(options.changes)}`."
    if options.only:
        text += f" Only recipes with {' or '.join(f'`{word}`' for word in options.only)} in their names were run."
    if reduced:
        text += (
            " These runs train for less than the paper's, so their numbers are worse; "
            "only the orderings are comparable."
        )
    return text


def _table(table: PaperTable, results: Sequence[Number]) -> TextTable:
    """The paper's numbers and ours; settings that are equal are shown once."""
    by_place = {(result.entry.row, result.entry.column): result for result in results}
    is_settings = all(isinstance(result.entry, Compared) for result in results)
    heads = [""]
    for column in table.columns:
        heads += [column.name] if is_settings else [f"{column.name}, paper", "ours", "Δ"]
    rows = []
    for row in table.rows:
        cells = [row]
        for column in table.columns:
            result = by_place.get((row, column.name))
            cells += ["", "", ""] if result is None else _cells(result)
        rows.append(cells)
    return TextTable(heads, rows)


def _cells(result: Number) -> list[str]:
    """The paper's number, ours and the difference as text; for settings, both in one cell."""
    entry = result.entry
    if isinstance(entry, Compared):
        return [entry.paper if entry.ours == entry.paper else f"{entry.paper} (ours {entry.ours})"]
    if result.status in (PAPER_ONLY, NOT_RUN):
        return [entry.paper, "" if result.status == PAPER_ONLY else "not run", ""]
    if result.ours is None:
        return [entry.paper, WORDS.get(result.status, result.status), ""]
    digits = _digits(result)
    sign = "+" if result.is_difference else ""
    text = f"{result.ours:{sign}.{digits}f}" if abs(result.ours) < 1e4 else f"{result.ours:,.0f}"
    if result.deviation is not None:
        text += f" ± {result.deviation:.{digits}f}"
    if isinstance(entry, Trained):
        text += f" ({len(result.values)})"
    if result.status == "partly":
        text += ", more to run"
    if result.delta is None:
        return [entry.paper, text, ""]
    return [entry.paper, text, f"{result.delta:+.{digits}f}" if abs(result.delta) < 1e4 else f"{result.delta:+,.0f}"]


def _digits(result: Number) -> int:
    """As many decimals as the paper prints, at least two for small numbers; by magnitude if the paper has none."""
    printed = result.entry.paper.split(" ")[0].lstrip("+-")
    digits = len(printed.partition(".")[2].rstrip("K")) if "." in printed else 0
    if printed:
        return max(digits, 2) if result.ours is not None and abs(result.ours) < 100 else digits
    size = 0.0 if result.ours is None else abs(result.ours)
    return 4 if size < 2 else 2 if size < 1000 else 0


def _faults(results: Sequence[Number]) -> list[str]:
    """Why numbers are missing, one line for each reason."""
    places_by_reason: dict[str, list[str]] = {}
    for result in results:
        if result.status not in (DONE, PAPER_ONLY, NOT_RUN) and result.why:
            places_by_reason.setdefault(result.why, []).append(f"{result.entry.row} / {result.entry.column}")
    lines = []
    for why, places in places_by_reason.items():
        shown = ", ".join(places[:4]) + (f" and {len(places) - 4} more" if len(places) > 4 else "")
        lines.append(f"{shown}: {why}")
    return lines


def _machines(table: PaperTable, options: ReproduceOptions, results: Sequence[Number]) -> list[str]:
    """The machines that produced the numbers, from the records."""
    machines: dict[str, None] = {}
    for cell in cells_of([table], options):
        if record := outcome(cell, options.cells).record:
            machines[f"{record['machine']['device']}, torch {record['versions']['torch']}"] = None
    machines |= {result.why: None for result in results if isinstance(result.entry, Measured) and result.status == DONE}
    return list(machines)


def _footer(machines: Sequence[str]) -> Block:
    """When and how the page was written, and the machines behind its numbers."""
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    where = f" Made on {'; '.join(machines)}." if machines else ""
    version = f"statespan {__version__}, {(commit() or '')[:10]}".rstrip(", ")
    text = f"Page written {today} by `statespan reproduce` ({version}, Python {platform.python_version()}).{where}"
    return paragraph(text, note=True)


def plain(result: Number) -> dict[str, Any]:
    """A number as stored in the record."""
    entry = result.entry
    row: dict[str, Any] = {"row": entry.row, "column": entry.column, "paper": entry.paper, "status": result.status}
    if isinstance(entry, Compared):
        return {**row, "ours": entry.ours}
    if isinstance(entry, Trained):
        row |= {"recipe": entry.recipe, "overrides": list(entry.overrides), "value": entry.value}
    if result.status != PAPER_ONLY:
        row |= {"ours": result.ours, "std": result.deviation, "delta": result.delta, "values": list(result.values)}
    return {**row, "why": result.why} if result.why else row
