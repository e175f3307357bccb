"""Finds the published runs of a row of a table: those of its recipe, in any form, that are nearest to its settings.

A recipe may have other forms for the same number (:data:`FORMS`), and a run may have overrides of its own. A run
belongs to the row of its recipe whose overrides it differs from least, so that an ablation never fills another row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from statespan.papers.records.record import differences, named_recipe
from statespan.papers.records.schema import Record, read_runs
from statespan.papers.records.signs import CHANGES, is_plain, selected
from statespan.train import recipes

# other forms of a recipe, for the same number: as printed, as in the code, and selected on the test data as in the code
FORMS = ("-text", "-code", "-published")
FIRST_VERSION = "-reference"  # the settings of the code's first version, for the same number
SPEED = {"train.precision", "train.compile", "train.threads"}  # settings of speed, which do not affect what is learned
GENERATED = "data.generate"  # where there are no files, the data is generated without it
TRICKS = {"train.start", *(f"data.{option}" for option in CHANGES)}

Settings = frozenset[str]


class RunMatch(NamedTuple):
    """Published runs with the same settings: a row's recipe in some form, and how they differ from the row.

    Example:
        >>> match = RunMatch("smnist-s4", changes=("train.epochs=100",), runs={})
        >>> match.is_exact, match.other_settings
        (False, ['train.epochs=100'])
    """

    recipe: str
    changes: tuple[str, ...]  # settings that only one of them has
    runs: dict[str, Record]  # by file, one for each seed

    @property
    def is_exact(self) -> bool:
        """Whether the runs have the settings of the row."""
        return not self.changes

    @property
    def other_settings(self) -> list[str]:
        """The changes that no sign stands for."""
        return [change for change in self.changes if change.partition("=")[0] not in TRICKS]


class PublishedRuns:
    """The records of published runs in a folder.

    Args:
        runs: Records by file name; those whose recipe is not known here are left out.

    Example:
        >>> runs = PublishedRuns.read(None)
        >>> runs.exact("smnist-s4"), runs.nearest("smnist-s4")
        ({}, None)
    """

    def __init__(self, runs: Mapping[str, Record]) -> None:
        known = set(recipes.names())
        self.by_recipe: dict[str, dict[Settings, dict[str, Record]]] = {}
        for file, record in runs.items():
            if (name := record["recipe"]["name"]) in known:
                changes = learned(differences(name, record["recipe"]))
                self.by_recipe.setdefault(name, {}).setdefault(changes, {})[file] = record

    @classmethod
    def read(cls, folder: Path | None) -> PublishedRuns:
        """The records of a folder; none without one."""
        return cls({} if folder is None else read_runs(folder))

    def exact(self, recipe: str, overrides: Sequence[str] = ()) -> dict[int, tuple[str, Record]]:
        """The runs of this recipe with exactly these overrides: file and record by seed."""
        if recipe not in self.by_recipe:
            return {}
        runs = self.by_recipe[recipe].get(settings(recipe, tuple(overrides)), {})
        return {int(record["seed"]): (file, record) for file, record in runs.items()}

    def nearest(
        self, recipe: str, overrides: Sequence[str] = (), *, has: Callable[[Record], bool] = lambda record: True
    ) -> RunMatch | None:
        """The runs that stand for a row, of those with the number that is asked for (``has``); None without any.

        Runs on other data, such as another split, do not count.
        Plain runs come first, then those that the test data did not select, then those with the fewest changes, then
        the best validation.
        """
        matches = []
        for form in forms(recipe):
            row = settings(form, tuple(overrides)) if form in self.by_recipe else frozenset()
            for changes, runs in self.by_recipe.get(form, {}).items():
                kept = {file: record for file, record in runs.items() if has(record)}
                if kept and _row_of(form, changes, row) == row and not any(map(_is_other_data, changes ^ row)):
                    matches.append(RunMatch(form, tuple(sorted(changes ^ row)), kept))
        return min(matches, key=_rank, default=None)


def forms(recipe: str) -> list[str]:
    """A recipe and its other forms.

    Example:
        >>> forms("lra-text-s4"), forms("sc10-s4")
        (['lra-text-s4', 'lra-text-s4-code', 'lra-text-s4-published'], ['sc10-s4', 'sc10-s4-reference'])
    """
    return [recipe, *(name for form in (*FORMS, FIRST_VERSION) if (name := recipe + form) in recipes.names())]


def learned(changes: Iterable[str]) -> Settings:
    """The changes that affect what is learned."""
    return frozenset(text for text in changes if text.partition("=")[0] not in {*SPEED, GENERATED})


@cache  # reading YAML is slow
def settings(recipe: str, overrides: tuple[str, ...]) -> Settings:
    """Overrides of a recipe in the form in which records have them.

    Example:
        >>> settings("smnist-s4", ("data.warp=false", "train.precision=bf16", "train.seed=3"))
        frozenset({'data.warp=false'})
    """
    return learned(differences(recipe, recipes.read(recipe, overrides).to_dict())) if overrides else frozenset()


@cache
def _rows(recipe: str) -> list[Settings]:
    return [frozenset(), *(settings(recipe, row.overrides) for row in recipes.rows(recipe))]


def _row_of(recipe: str, changes: Settings, row: Settings) -> Settings:
    """The row of the recipe that differs least from these changes; of several, the first.

    A row that the recipe does not list takes the place of the recipe itself.
    """
    rows = _rows(recipe) if row in _rows(recipe) else [row, *_rows(recipe)[1:]]
    return min(rows, key=lambda one: len(one ^ changes))


def _is_other_data(change: str) -> bool:
    """Whether a change is of the data itself, such as another split, for which no sign stands."""
    key = change.partition("=")[0]
    return key.startswith("data.") and key not in TRICKS


def _rank(match: RunMatch) -> tuple[bool, bool, int, float]:
    records = list(match.runs.values())
    metric = records[0]["metric"]
    score = fmean(float(record["valid"].get(metric, 0.0)) for record in records)
    is_tricked, is_selected = not all(map(is_plain, records)), any(map(selected, records))
    return is_tricked, is_selected, len(match.changes), -score if metric == "accuracy" else score


def base_recipe(name: str) -> str:
    """The recipe that a form is a form of.

    Example:
        >>> base_recipe("lra-text-s4-published"), base_recipe("sc10-s4-reference"), base_recipe("scifar-s4")
        ('lra-text-s4', 'sc10-s4', 'scifar-s4')
    """
    for form in (*FORMS, FIRST_VERSION):
        if name.endswith(form) and name.removesuffix(form) in recipes.names():
            return name.removesuffix(form)
    return name


def seeds_of(recipe: str, count: int) -> list[int]:
    """The first seeds of a recipe, its own one first."""
    first = named_recipe(recipe).train.seed
    return list(range(first, first + count))
