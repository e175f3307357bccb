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

from statespan import models
from statespan.data.base import Info
from statespan.papers.bench import s4_table7
from statespan.papers.records.record import named_recipe
from statespan.papers.records.signs import AUGMENTED, CHANGED, CHANGES, DIFFERENT, SIGNS, STARTED
from statespan.papers.runs.cell import Cell, Evaluation
from statespan.papers.runs.outcome import DONE, FAILED, MISSING, STOPPED, WAITING, Outcome, outcome
from statespan.papers.runs.stats import spread
from statespan.papers.tables.budget import overrides
from statespan.papers.tables.published import match_of, outcome_of, published_runs, signs_of, source_of, values_of
from statespan.papers.tables.spec import Counted, Measured, PaperTable, Printed, RowMean, TableEntry, Trained, number
from statespan.train.config import read_recipe

PAPER_ONLY, NOT_RUN = "paper only", "not run"
AUGMENTATIONS = {f"data.{option}=true" for option in CHANGES}  # of rows whose data the papers augmented


@dataclass(frozen=True)
class ReproduceOptions:
    """Which tables' cells to run, how long, and where they are.

    Example:
        >>> folders = {"cells": Path("cells"), "records": Path("results/bench")}
        >>> options = ReproduceOptions("minutes", seeds=None, only=("smnist",), changes=(), **folders)
        >>> options.wanted(Trained("S4", "sMNIST", "99.63", recipe="smnist-s4"))
        True
    """

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
    """A number of a table: the paper's and ours.

    Example:
        >>> entry = Trained("S4", "sMNIST", "99.63", recipe="smnist-s4")
        >>> number = Number(entry, "done", values=(99.5, 99.7))
        >>> round(number.ours, 2), round(number.delta, 2)
        (99.6, -0.03)
    """

    entry: TableEntry  # where it stands
    status: str  # "done", "paper only", "not run", "waiting", "stopped", "failed", "missing" (its data) or "partly"
    values: tuple[float, ...] = ()
    """Ours, one for each seed, in the paper's unit; of a row that is printed as a difference, the number itself."""
    base: tuple[float, ...] = ()  # the same for the row that it is a difference from
    why: str = ""  # one line, where something is missing or failed
    signs: str = ""  # of the published runs it comes from
    source: str = ""  # these runs, with recipe, seeds, times and machine; empty for a cell

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
        """Ours minus the paper's, where they can be compared."""
        paper = number(self.entry.paper)
        return None if paper is None or self.ours is None or not self.is_comparable else self.ours - paper

    @property
    def is_comparable(self) -> bool:
        """Whether no sign stands against comparing it with the paper's number."""
        is_augmented_row = any(change in AUGMENTATIONS for change in getattr(self.entry, "overrides", ()))
        return not {STARTED, DIFFERENT} & {*self.signs} and (AUGMENTED not in self.signs or is_augmented_row)


def cells_of(tables: Iterable[PaperTable], options: ReproduceOptions) -> list[Cell]:
    """The cells of all tables, each once: main rows first, then the first seed of all others, then the next.

    Those whose number is known from published runs with the same settings are left out.
    """
    by_priority: dict[tuple[bool, int], list[Cell]] = {}
    runs = published_runs(options.tasks)
    for table in tables:
        entries = [entry for entry in table.entries if isinstance(entry, Trained) and options.wanted(entry)]
        for entry in entries:
            match = match_of(entry, table, runs)
            for seed in range(0 if match is not None and match.is_exact else options.seeds or table.seeds):
                cell = options.cell(entry, seed)
                if cell.seed not in runs.exact(entry.recipe, cell.recipe.overrides):
                    by_priority.setdefault((entry.row not in table.main, seed), []).append(cell)
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
        elif isinstance(entry, Counted):
            results.append(Number(entry, DONE, (float(_parameters(entry.recipe, tuple(entry.info.items()))),)))
        else:
            results.append(Number(entry, PAPER_ONLY if isinstance(entry, Printed) else DONE))
    return [_average(one.entry, results) if isinstance(one.entry, RowMean) else one for one in results]


def _average(entry: RowMean, results: Sequence[Number]) -> Number:
    """The mean of a row; nothing as long as one of its numbers is missing."""
    row = [one for one in results if one.entry.row == entry.row and one.entry.column in entry.columns]
    ours = [one.ours for one in row if one.ours is not None]
    if len(ours) < len(entry.columns):
        return Number(entry, WAITING)
    every = "".join(one.signs for one in row)
    return Number(entry, DONE, (fmean(ours),), signs="".join(sign for sign in (*SIGNS, CHANGED) if sign in every))


@cache
def _parameters(name: str, info: tuple[tuple[str, Any], ...]) -> int:
    """The number of parameters of a recipe's model."""
    options = dict(named_recipe(name).model)
    model = models.build(options.pop("name"), Info(**dict(info)), options, device="meta")
    return sum(parameter.numel() for parameter in model.parameters())


def _trained(entry: Trained, base: Trained | None, table: PaperTable, options: ReproduceOptions) -> Number:
    match = match_of(entry, table, published_runs(options.tasks))
    outcomes = _outcomes(entry, table, options) if options.wanted(entry) else []
    if match is not None and (match.is_exact or not any(result.status == DONE for result in outcomes)):
        return Number(entry, DONE, values_of(entry, match), signs=signs_of(match), source=source_of(match))
    if not outcomes:
        return Number(entry, NOT_RUN)
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
    """The outcome of each cell; of those that are not done, that of a published run with the same settings."""
    runs, outcomes = published_runs(options.tasks), []
    for cell in (options.cell(entry, seed) for seed in range(options.seeds or table.seeds)):
        result = outcome(cell, options.cells)
        found = {} if result.status == DONE else runs.exact(entry.recipe, cell.recipe.overrides)
        outcomes.append(outcome_of(found[cell.seed][1]) if cell.seed in found else result)
    return outcomes


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
    value, base = (_largest(record, entry, name) for name in (entry.name, entry.over or entry.per or entry.name))
    if value is None or base is None:
        return Number(entry, FAILED, why=f"the record {path.name} has no such row")
    where = f"{record['machine']['device']}, {record['date'][:10]}"
    return Number(entry, DONE, (base / value if entry.over else value / base if entry.per else value,), why=where)


def _largest(record: Mapping[str, Any], entry: Measured, name: str) -> float | None:
    """The largest number among the rows with the entry's name."""
    if name == s4_table7.TRANSFORMER and entry.benchmark == "s4_table7":  # measured at several contexts of an image
        sizes = record.get("settings", {}).get("sizes")
        return s4_table7.whole_image_rate(record["rows"], sizes) or None if sizes else None
    values = []
    for row in record["rows"]:
        fits = all(row["setting"].get(key) == value for key, value in entry.setting.items())
        fits = fits and (entry.memory_mb is None or row["memory_mb"] is None or row["memory_mb"] <= entry.memory_mb)
        if row["name"] == name and row["status"] == "ok" and fits:
            value = row.get(entry.figure, row["extra"].get(entry.figure))
            values += [] if value is None else [float(value)]
    return max(values, default=None)
