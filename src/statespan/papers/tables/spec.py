"""The specification of a paper's table: rows, columns, and the source of our number for each entry."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from statespan.papers.runs.cell import Evaluation

HALF = Evaluation("half", ("data.subsample=2",), 2.0)
"""Test data sampled half as often, without retraining."""


@dataclass(frozen=True)
class Column:
    """A column: its heading, whether smaller is better, and the unit of its numbers for pictures.

    Example:
        >>> Column("HR", lower=True, unit="RMSE").lower
        True
    """

    name: str
    lower: bool = False
    unit: str = ""  # empty where the heading says it
    is_text: bool = False  # whether its entries are words or settings, shown once


@dataclass(frozen=True)
class TableEntry:
    """A number of a table.

    Example:
        >>> TableEntry(row="S4", column="sMNIST", paper="99.63").paper
        '99.63'
    """

    row: str
    column: str
    paper: str  # as the paper prints it; "" where it has none


@dataclass(frozen=True)
class Trained(TableEntry):
    """A number from training.

    Example:
        >>> entry = Trained("S4", "SC10", "98.32", recipe="sc10-s4")
        >>> [evaluation.name for evaluation in entry.evaluations]
        ['half']
    """

    recipe: str  # the recipe's name
    overrides: tuple[str, ...] = ()  # its changes
    value: str = "test"
    """One of "test", "valid" (best validation), "first" (first validation), "half" (at half the rate) and "mae"."""
    against: str = ""  # the paper prints the difference from this row of the same column

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """Further evaluations, the same for all entries of a recipe, so that they share its cell."""
        of_words = self.recipe.startswith(("sc10-", "sc35-"))
        return (HALF,) if of_words and "-mfcc-" not in self.recipe and "-ar-" not in self.recipe else ()


@dataclass(frozen=True)
class Measured(TableEntry):
    """A number from a benchmark: the largest or only one among the rows with this name and these settings.

    ``memory_mb`` leaves out the rows that need more. With ``over``, the number is that of the rows with this other name
    divided by it: how many times as fast, for rates of the one or times of the other. With ``per``, it is divided by
    that of the rows with this other name.

    Example:
        >>> Measured("S4", "speed", "", benchmark="op", name="S4 chunks", figure="time_ms").figure
        'time_ms'
    """

    benchmark: str
    name: str
    figure: str
    setting: Mapping[str, Any] = field(default_factory=dict)
    memory_mb: float | None = None
    over: str = ""
    per: str = ""
    is_ratio: bool = False  # whether its row is a ratio of two others, which pictures leave out


@dataclass(frozen=True)
class Printed(TableEntry):
    """A number of the paper for a model that is not trained here.

    Example:
        >>> Printed("Transformer", "sMNIST", "98.9").row
        'Transformer'
    """


@dataclass(frozen=True)
class RowMean(TableEntry):
    """The mean of a row's numbers in other columns, if all of them are known.

    Example:
        >>> RowMean("S4", "mean", "", columns=("sMNIST", "pMNIST")).columns
        ('sMNIST', 'pMNIST')
    """

    columns: tuple[str, ...]


@dataclass(frozen=True)
class Counted(TableEntry):
    """The number of parameters of a recipe's model.

    Example:
        >>> Counted("S4", "parameters", "", recipe="smnist-s4", info={"length": 784}).recipe
        'smnist-s4'
    """

    recipe: str
    info: Mapping[str, Any]  # of the dataset: fields of statespan.data.base.Info


@dataclass(frozen=True)
class Compared(TableEntry):
    """A setting of a recipe beside the one the paper prints.

    Example:
        >>> entry = Compared("sMNIST", "learning rate", "0.01", ours="0.004")
        >>> entry.paper, entry.ours
        ('0.01', '0.004')
    """

    ours: str


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper.

    Example:
        >>> entries = (Printed("LSTM", "sMNIST", "98.9"), Trained("S4", "sMNIST", "99.63", recipe="smnist-s4"))
        >>> PaperTable("t", "Table", "", columns=(Column("sMNIST"),), entries=entries).rows
        ['LSTM', 'S4']
    """

    name: str  # on the command line
    title: str  # what the paper calls it
    about: str  # what its numbers are and what ours differ in
    columns: tuple[Column, ...]  # the columns, in order
    entries: tuple[TableEntry, ...]  # the numbers, in the order of the rows
    seeds: int = 1  # of each cell, by default
    main: tuple[str, ...] = ()  # rows that are run first
    published: bool = False  # whether published runs stand in it whatever their settings, with signs
    cited: frozenset[str] = frozenset()  # rows whose numbers the paper cites from others

    @property
    def rows(self) -> list[str]:
        """The rows in order."""
        return list(dict.fromkeys(entry.row for entry in self.entries))


def number(text: str) -> float | None:
    """The number as printed, without spread, failure sign or unit.

    Example:
        >>> number("85.04 (0.22)"), number("-7.27"), number("48K"), number("26.2M"), number("X")
        (85.04, -7.27, 48000.0, 26200000.0, None)
    """
    match = re.match(r"([-+]?\d+(?:\.\d+)?)([KM]?)", text)
    return None if match is None else float(match[1]) * {"": 1.0, "K": 1e3, "M": 1e6}[match[2]]
