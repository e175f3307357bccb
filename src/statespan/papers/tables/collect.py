"""Turns tables into cells, and finished cells and records into numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from statespan.papers.records.record import named_recipe
from statespan.papers.runs.cell import Cell, Evaluation
from statespan.papers.runs.outcome import DONE, FAILED, MISSING, STOPPED, WAITING, Outcome, outcome
from statespan.papers.runs.stats import spread
from statespan.papers.tables.budget import overrides
from statespan.papers.tables.spec import Measured, PaperTable, Printed, TableEntry, Trained, number
from statespan.train.config import read_recipe

PAPER_ONLY, NOT_RUN = "paper only", "not run"


@dataclass(frozen=True)
class ReproduceOptions:
    """Which tables' cells to run, how long, and where they are."""

    budget: str  # "minutes" or "full"
    seeds: int | None  # of each cell; None for the table's own number
    only: tuple[str, ...]  # run only recipes with one of these words in their names; empty for all
    changes: tuple[str, ...]  # further overrides of all cells
    cells: Path  # the folder of all cells
    records: Path  # the folder of the benchmarks' records
    tasks: Path | None = None  # the folder of the published runs; None for none

    def wanted(self, entry: Trained) -> bool:
        """Whether a cell is to be run."""
        return not self.only or any(word in entry.recipe for word in self.only)

    def cell(self, entry: Trained, seed: int) -> Cell:
        """The cell of an entry."""
        changes = (*entry.overrides, *overrides(named_recipe(entry.recipe), self.budget), *self.changes)
        return _cell(entry.recipe, changes, seed, entry.evaluations)


@cache  # a table asks for each of its cells many times
def _cell(name: str, changes: tuple[str, ...], seed: int, evaluations: tuple[Evaluation, ...]) -> Cell:
    recipe = named_recipe(name)
    return Cell(read_recipe(recipe, [*changes, f"train.seed={recipe.train.seed + seed}"]), evaluations)


@dataclass(frozen=True)
class Number:
    """A number of a table: the paper's and ours."""

    entry: TableEntry  # where it stands
    status: str  # "done", "paper only", "not run", "waiting", "stopped", "failed", "missing" (its data) or "partly"
    values: tuple[float, ...] = ()
    """Ours, one for each seed, in the paper's unit; of a row that is printed as a difference, the number itself."""
    base: tuple[float, ...] = ()  # the same for the row that it is a difference from
    why: str = ""  # one line, where something is missing or failed

    @property
    def ours(self) -> float | None:
        """Our number as the paper prints it."""
        if not self.values or (self.is_difference and not self.base):
            return None
        return fmean(self.values) - (fmean(self.base) if self.is_difference else 0.0)

    @property
    def is_difference(self) -> bool:
        """Whether the paper prints a difference here."""
        return isinstance(self.entry, Trained) and bool(self.entry.against)

    @property
    def deviation(self) -> float | None:
        """The standard deviation over the seeds; for a difference, the combined one."""
        ours = spread(self.values)
        base = spread(self.base) if self.is_difference else 0.0
        return None if ours is None or base is None else math.hypot(ours, base)

    @property
    def delta(self) -> float | None:
        """Ours minus the paper's."""
        paper = number(self.entry.paper)
        return None if paper is None or self.ours is None else self.ours - paper


def cells_of(tables: Iterable[PaperTable], options: ReproduceOptions) -> list[Cell]:
    """The cells of all tables, each once: main rows first, then the first seed of all others, then the next."""
    by_priority: dict[tuple[bool, int], list[Cell]] = {}
    for table in tables:
        entries = [entry for entry in table.entries if isinstance(entry, Trained) and options.wanted(entry)]
        for entry in entries:
            for seed in range(options.seeds or table.seeds):
                by_priority.setdefault((entry.row not in table.main, seed), []).append(options.cell(entry, seed))
    ordered = [cell for key in sorted(by_priority) for cell in by_priority[key]]
    return list({cell.key: cell for cell in ordered}.values())


def numbers(table: PaperTable, options: ReproduceOptions) -> list[Number]:
    """All known numbers of a table."""
    bases = {
        (entry.row, entry.column): entry for entry in table.entries if isinstance(entry, Trained) and not entry.against
    }
    results = []
    for entry in table.entries:
        if isinstance(entry, Measured):
            results.append(_measured(entry, options.records))
        elif isinstance(entry, Trained):
            base = bases.get((entry.against, entry.column))
            results.append(_trained(entry, base, table, options))
        else:
            results.append(Number(entry, PAPER_ONLY if isinstance(entry, Printed) else DONE))
    return results


def _trained(entry: Trained, base: Trained | None, table: PaperTable, options: ReproduceOptions) -> Number:
    if not options.wanted(entry):
        return Number(entry, NOT_RUN)
    outcomes = _outcomes(entry, table, options)
    values = _values(entry, outcomes)
    base_values = () if base is None else _values(base, _outcomes(base, table, options))
    statuses = [result.status for result in outcomes]
    why = next((result.why for result in outcomes if result.why), "")
    status = next((status for status in (FAILED, MISSING, STOPPED, WAITING) if status in statuses), DONE)
    if values and len(values) < len(outcomes):
        status = "partly"
    elif status == DONE and not values:
        status, why = FAILED, "its result has no finite number"
    return Number(entry, status, values, base_values, why)


def _outcomes(entry: Trained, table: PaperTable, options: ReproduceOptions) -> list[Outcome]:
    return [outcome(options.cell(entry, seed), options.cells) for seed in range(options.seeds or table.seeds)]


def _values(entry: Trained, outcomes: Sequence[Outcome]) -> tuple[float, ...]:
    values = []
    for result in outcomes:
        value = result.record.get("test", {}).get("mae") if entry.value == "mae" else result.value(entry.value)
        if value is not None:
            values.append(100.0 * value if result.metric == "accuracy" else value)
    return tuple(values)


def _measured(entry: Measured, records: Path) -> Number:
    """A number from the record of a benchmark run on a GPU."""
    path = records / f"{entry.benchmark}-cuda.json"
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Number(entry, WAITING, why=f"not measured yet: statespan bench {entry.benchmark} --device cuda")
    value, base = (_largest(record, entry, name) for name in (entry.name, entry.over or entry.name))
    if value is None or base is None:
        return Number(entry, FAILED, why=f"the record {path.name} has no such row")
    where = f"{record['machine']['device']}, {record['date'][:10]}"
    return Number(entry, DONE, (base / value if entry.over else value,), why=where)


def _largest(record: Mapping[str, Any], entry: Measured, name: str) -> float | None:
    """The largest number among the rows with the entry's name."""
    values = []
    for row in record["rows"]:
        fits = all(row["setting"].get(key) == value for key, value in entry.setting.items())
        fits = fits and (entry.memory_mb is None or row["memory_mb"] is None or row["memory_mb"] <= entry.memory_mb)
        if row["name"] == name and row["status"] == "ok" and fits:
            value = row.get(entry.figure, row["extra"].get(entry.figure))
            values += [] if value is None else [float(value)]
    return max(values, default=None)
