"""The specification of a paper's table: rows, columns, and the source of our number for each entry."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from statespan.papers.runs.cell import Evaluation
from statespan.train import recipes
from statespan.train.config import Recipe

HALF = Evaluation("half", ("data.subsample=2",), 2.0)
"""Test data sampled half as often, without new training."""


@dataclass(frozen=True)
class Column:
    """A column: its heading, and whether smaller is better."""

    name: str
    lower: bool = False


@dataclass(frozen=True)
class Trained:
    """A number from training.

    Args:
        row: Of the table.
        column: Of the table.
        paper: As the paper prints it; "" where it has none.
        recipe: The recipe's name.
        overrides: Its changes.
        value: "test", "valid" (best validation), "first" (first validation), "half" (at half the rate), or "mae".
        against: The paper prints the difference from this row of the same column.
    """

    row: str
    column: str
    paper: str
    recipe: str
    overrides: tuple[str, ...] = ()
    value: str = "test"
    against: str = ""

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """Further evaluations, the same for all entries of a recipe, so that they share its cell."""
        halved = self.recipe == "sc10-s4" or (self.recipe.startswith("sc35-") and "-ar-" not in self.recipe)
        return (HALF,) if halved else ()


@dataclass(frozen=True)
class Measured:
    """A number from a benchmark: the largest or only one among the rows with this name and these settings.

    ``memory_mb`` leaves out the rows that need more. With ``over``, the number is that of the rows with this other name
    divided by it: how many times as fast, for rates of the one or times of the other.
    """

    row: str
    column: str
    paper: str
    benchmark: str
    name: str
    figure: str
    setting: Mapping[str, Any] = field(default_factory=dict)
    memory_mb: float | None = None
    over: str = ""


@dataclass(frozen=True)
class Printed:
    """A number of the paper for a model that is not trained here."""

    row: str
    column: str
    paper: str


@dataclass(frozen=True)
class Compared:
    """A setting of a recipe beside the one the paper prints."""

    row: str
    column: str
    paper: str
    ours: str


Entry = Trained | Measured | Printed | Compared


@dataclass(frozen=True)
class Table:
    """A table of a paper.

    Args:
        name: On the command line.
        title: What the paper calls it.
        about: What its numbers are and what ours differ in.
        columns: The columns, in order.
        entries: The numbers, in the order of the rows.
        seeds: Of each cell, by default.
        main: Rows that are run first.
    """

    name: str
    title: str
    about: str
    columns: tuple[Column, ...]
    entries: tuple[Entry, ...]
    seeds: int = 1
    main: tuple[str, ...] = ()

    @property
    def rows(self) -> list[str]:
        """The rows in order."""
        return list(dict.fromkeys(entry.row for entry in self.entries))


def number(text: str) -> float | None:
    """The number as printed, without spread, failure sign or unit.

    Example:
        >>> number("85.04 (0.22)"), number("-7.27"), number("48K"), number("X")
        (85.04, -7.27, 48000.0, None)
    """
    match = re.match(r"[-+]?\d+(?:\.\d+)?(K?)", text)
    if match is None:
        return None
    return float(match[0].removesuffix("K")) * (1000 if match[1] else 1)


@cache  # tables ask for the same recipes many times, and reading YAML is slow
def read(recipe: str) -> Recipe:
    """Read a recipe without overrides."""
    return recipes.read(recipe)


@cache
def printed(section: str) -> dict[str, list[str]]:
    """Numbers by row as printed in a paper, from printed.yaml."""
    return dict(yaml.safe_load((Path(__file__).parent / "printed.yaml").read_text(encoding="utf-8"))[section])


def others(section: str, columns: Sequence[Column]) -> list[Entry]:
    """The entries of models that are not trained here."""
    rows = printed(section).items()
    return [Printed(row, column.name, text) for row, numbers in rows for column, text in zip(columns, numbers)]


def paper_number(recipe: str, label: str = "") -> tuple[str, tuple[str, ...]]:
    """The paper's number and the overrides for it: the recipe's own, or those of its row with this label."""
    if not label:
        reported = read(recipe).about.number
        return "" if reported is None else str(reported), ()
    for row in recipes.rows(recipe):
        if row.label == label:
            return row.number, row.overrides
    raise KeyError(f"{recipe} has no row {label!r}")
