"""The tasks that results are shown for: which data, what the papers reached, what we aim at; they are in tasks.yaml.

The papers' numbers are those of the recipes' headers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from statespan.papers.records.signs import CHANGES
from statespan.train import recipes


@dataclass(frozen=True, eq=False)
class ResultTask:
    """A task."""

    name: str  # as tables show it
    key: str  # as files are called
    data: str  # name of the dataset
    metric: str = "accuracy"  # what is reported
    aim: float | None = None  # the number to reach, in per cent for an accuracy; None where it is to be reported
    options: Mapping[str, Any] = field(default_factory=dict)  # of the dataset, with the values that make it this task
    dt_scale: float = 1.0  # step of the test data relative to that of training
    published: bool = True  # whether the papers have a number for it
    note: str = ""  # what a reader must know to compare
    epochs: int | None = None  # of the reference's configuration
    after: Sequence[float] | None = None  # accuracy in per cent that the reference says it has after some epochs
    above: bool = False  # whether anything better than the aim, which is chance, will do
    whole: int = 0  # training rows below which the data is only a part of the papers'
    part: str = ""  # what that part consists of
    scratch: str = ""  # what became of training it from random weights, as long as no record shows it

    @property
    def larger(self) -> bool:
        """Whether larger numbers are better."""
        return self.metric == "accuracy"

    def holds(self, record: Mapping[str, Any]) -> bool:
        """Whether a record belongs to this task."""
        data = record["recipe"]["data"]
        if data["name"] != self.data or value(record, self) is None:
            return False
        return all(data.get(key, DEFAULTS.get(key)) == wanted for key, wanted in self.options.items())


DEFAULTS = {"split": "windows", "features": "raw", "contour": 14}  # what the datasets do if a recipe does not say
_FILE = Path(__file__).with_suffix(".yaml")
TASKS = tuple(ResultTask(**task) for task in yaml.safe_load(_FILE.read_text(encoding="utf-8")))


def value(record: Mapping[str, Any], task: ResultTask) -> float | None:
    """A record's number for a task, in per cent for an accuracy; None if it has none."""
    tests = record["test"] if task.dt_scale == 1.0 else record.get("rates", {}).get(f"{task.dt_scale:g}", {})
    number = tests.get(task.metric)
    return number if number is None or task.metric != "accuracy" else 100 * number


def judged(record: Mapping[str, Any], task: ResultTask) -> float:
    """The validation number by which runs are ranked, independent of test scores."""
    return float(record["valid"].get(task.metric, float("-inf") if task.larger else float("inf")))


def other(record: Mapping[str, Any], key: str) -> ResultTask:
    """A task for a record that belongs to none of the list, such as a small one of our own."""
    data = record["recipe"]["data"]
    name = data["name"] + (", hidden tokens" if data.get("find") else "")
    if (contour := data.get("contour", DEFAULTS["contour"])) != DEFAULTS["contour"]:
        name += f", contours of {contour} dashes"
    return ResultTask(name, key, data["name"], record["metric"], published=False)


@cache
def _paper_numbers() -> list[tuple[str, str, str]]:
    """Dataset, number and note of every recipe with a paper's number, except ablations and other input features."""
    paper_recipes = [recipes.read(name) for name in recipes.names() if not name.startswith("ablation")]
    return [
        (recipe.data["name"], str(recipe.about.number), recipe.about.note)
        for recipe in paper_recipes
        if recipe.about.number is not None and recipe.data.get("features", "raw") == "raw"
    ]


@cache
def _augmented_numbers() -> list[tuple[str, str]]:
    """Dataset and number of every row of the papers that recipes reach only by augmentation."""
    options = {f"data.{option}=true" for option, nothing in CHANGES.items() if nothing is False}
    return [
        (recipes.read(name).data["name"], row.number)
        for name in recipes.names()
        for row in recipes.rows(name)
        if len(row.overrides) == 1 and row.overrides[0] in options
    ]


def paper(task: ResultTask) -> str:
    """The papers' best number of S4 and S4D without augmentation, as printed; "" if there is none."""
    numbers = []
    for data, number, note in _paper_numbers() if task.published else []:
        half = re.search(r"([\d.]+) at half the rate", note)
        text = number if task.dt_scale == 1.0 else half[1] if half else ""
        if data == task.data and re.fullmatch(r"\d+(\.\d+)?", text):
            numbers.append(text)
    return _best(task, numbers)


def paper_augmented(task: ResultTask) -> str:
    """The papers' best number with augmentation; "" if there is none.

    Example:
        >>> {task.name: paper_augmented(task) for task in TASKS if paper_augmented(task)}
        {'sCIFAR': '93.16'}
    """
    if not task.published or task.dt_scale != 1.0:
        return ""
    return _best(task, [number for data, number in _augmented_numbers() if data == task.data])


def _best(task: ResultTask, printed: list[str]) -> str:
    return (max if task.larger else min)(printed, key=float) if printed else ""
