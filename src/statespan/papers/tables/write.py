"""Writes reproduced tables and figures: for each a Markdown page, an HTML page, plots and a record."""

from __future__ import annotations

import datetime
import json
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from statespan import _plotting as _look
from statespan._io import replace_file
from statespan._machine import commit, device_name
from statespan._version import __version__
from statespan.papers.records.record import named_recipe
from statespan.papers.records.signs import MEANINGS
from statespan.papers.records.text_table import TextTable
from statespan.papers.runs.outcome import DONE, outcome
from statespan.papers.tables import charts, page
from statespan.papers.tables.cells import NONE, missing, numbers_table
from statespan.papers.tables.claims import CLAIMS, RULE, TableNumbers, conclusions
from statespan.papers.tables.collect import PAPER_ONLY, Number, ReproduceOptions, cells_of, numbers
from statespan.papers.tables.figures import ReproducedFigure
from statespan.papers.tables.page import Block, bullets, heading, paragraph
from statespan.papers.tables.spec import Compared, Measured, PaperTable, Trained

MEAN = "Ours: mean ± standard deviation (seeds). "
PUBLISHED = (
    "Ours are published runs, with the signs of docs/results.md: for each row the one nearest to the paper's protocol. "
    f"{NONE}: no run; the list below says which recipe makes it."
)


def write_table(table: PaperTable, options: ReproduceOptions, out: Path) -> dict[str, Any]:
    """Write a table with the numbers known so far."""
    results = numbers(table, options)
    blocks = [paragraph(table.about)]
    has_trained = any(isinstance(result.entry, Trained) for result in results)
    if table.published:
        blocks.append(paragraph(PUBLISHED))
    if any(isinstance(one.entry, Trained) and (not table.published or _is_of_cell(one)) for one in results):
        blocks.append(paragraph(_budget(table, options)))
    blocks += [heading("Numbers"), page.table(numbers_table(table, results))]
    if not all(isinstance(result.entry, Compared) for result in results):
        blocks.append(
            paragraph(f"{MEAN if has_trained else ''}Δ: ours minus the paper's.{_notes(table, results)}", note=True)
        )
    if sources := [f"{one.entry.row} / {one.entry.column}: {one.source}" for one in results if one.source]:
        blocks += [heading("Published runs"), bullets(sources)]
    if lines := missing(table, results):
        blocks += [heading("What is missing"), bullets(lines)]
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


def write_note(name: str, note: Mapping[str, Any], out: Path) -> None:
    """Write the page of a table or figure without numbers to reproduce."""
    blocks = [*map(paragraph, note["text"]), _footer([])]
    _write(note["title"], blocks, {"name": name, "title": note["title"], "numbers": []}, out)


def _write(title: str, blocks: Sequence[Block], record: dict[str, Any], out: Path) -> None:
    name = record["name"]
    replace_file(out / f"{name}.md", page.to_markdown(title, blocks).encode())
    replace_file(out / f"{name}.html", page.to_html(title, blocks).encode())
    replace_file(out / f"{name}.json", (json.dumps(record, indent=1, allow_nan=False) + "\n").encode())


def _save(figure: Any, out: Path, name: str, caption: str) -> Block:
    for kind in _look.FORMATS:
        replace_file(out / f"{name}.{kind}", _look.content(figure, kind))
    return page.picture(out / f"{name}.png", caption)


def _is_of_cell(result: Number) -> bool:
    return result.ours is not None and not result.source


def _notes(table: PaperTable, results: Sequence[Number]) -> str:
    """What the signs and words of a table mean."""
    used = "".join(result.signs for result in results)
    signs = "".join(f" {sign}: {meaning}." for sign, meaning in MEANINGS.items() if sign in used)
    cited = " cited: a number that the paper takes from earlier work." if table.cited & {*table.rows} else ""
    return f"{signs}{cited}"


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
    notes = {"why": result.why, "signs": result.signs, "source": result.source}
    return {**row, **{key: text for key, text in notes.items() if text}}
