"""The tasks in the tables of results, from tasks.yaml: their data, the papers' numbers and our aims.

The papers' numbers are those of the recipes' headers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from statespan.models.config import LAYERS
from statespan.models.registry import ADDED_MODELS
from statespan.papers.records.record import named_recipe
from statespan.papers.records.signs import CHANGES
from statespan.train import recipes


@dataclass(frozen=True, eq=False)
class ResultTask:
    """A task.

    Example:
        >>> task = ResultTask("sMNIST", "smnist", data="smnist", aim=99.6)
        >>> task.metric, task.larger
        ('accuracy', True)
    """

    name: str  # as tables show it
    key: str  # as files are called
    data: str  # name of the dataset
    metric: str = "accuracy"  # what is reported
    aim: float | None = None  # the number to reach, in per cent for an accuracy; None where it is to be reported
    options: Mapping[str, Any] = field(default_factory=dict)  # of the dataset, with the values that make it this task
    dt_scale: float = 1.0  # step of the test data relative to that of training
    published: bool = True  # whether the papers have a number for it
    recipes: Sequence[str] = ()  # patterns of the recipes that it is for; empty for all but those of the ablations
    validated: bool = False  # whether the papers report the best validation score instead of a test
    printed: str = ""  # the papers' number where no recipe has it
    short: bool = True  # whether it is in the tables without a record; the overview has all
    note: str = ""  # what to know before comparing
    epochs: int | None = None  # of the reference's configuration
    after: Sequence[float] | None = None  # the reference's accuracy in per cent, and after how many epochs
    above: bool = False  # whether the aim is chance, to be exceeded
    whole: int = 0  # training rows of the papers; with fewer, the data is only a part of theirs
    part: str = ""  # what that part consists of
    known: Mapping[int, str] = field(default_factory=dict)  # numbers of training rows of other whole data: which it is
    scratch: str = ""  # how training from random weights ended, until a record shows it

    @property
    def larger(self) -> bool:
        """Whether larger numbers are better."""
        return self.metric == "accuracy"

    def holds(self, record: Mapping[str, Any]) -> bool:
        """Whether a record belongs to this task."""
        recipe = record["recipe"]
        if is_baseline(recipe) or value(record, self) is None:
            return False
        return self.is_of(recipe["name"], recipe["data"])

    def is_of(self, recipe: str, data: Mapping[str, Any]) -> bool:
        """Whether a recipe of this name with this data belongs to this task."""
        fits = any(fnmatchcase(recipe, pattern) for pattern in self.recipes or ("*",))
        if data["name"] != self.data or not fits or (not self.recipes and recipe.startswith(ABLATION)):
            return False
        return all(data.get(key, DEFAULTS.get(key)) == wanted for key, wanted in self.options.items())


ABLATION = "ablation-"  # how the names of the ablations' recipes begin
DEFAULTS = {"split": "windows", "features": "raw", "contour": 14}  # of the datasets
_FILE = Path(__file__).with_suffix(".yaml")
TASKS = tuple(ResultTask(**task) for task in yaml.safe_load(_FILE.read_text(encoding="utf-8")))


def value(record: Mapping[str, Any], task: ResultTask) -> float | None:
    """A record's number for a task, in per cent for an accuracy; None if it has none."""
    tests = record["test"] if task.dt_scale == 1.0 else (record.get("rates") or {}).get(f"{task.dt_scale:g}", {})
    tests = record["valid"] if task.validated else tests
    number = tests.get(task.metric)
    return number if number is None or task.metric != "accuracy" else 100 * number


def other(record: Mapping[str, Any], key: str) -> ResultTask:
    """A task for a record that belongs to none of the list, such as a small one of our own."""
    data = record["recipe"]["data"]
    name = data["name"] + (", hidden tokens" if data.get("find") else "")
    if is_baseline(record["recipe"]):
        name += f", {record['recipe']['model']['name']}"
    if (contour := data.get("contour", DEFAULTS["contour"])) != DEFAULTS["contour"]:
        name += f", contours of {contour} dashes"
    return ResultTask(name, key, data["name"], record["metric"], published=False)


def is_baseline(recipe: Mapping[str, Any]) -> bool:
    """Whether a recipe is of a model that the papers compare with: neither a built-in one, nor of built-in layers.

    Example:
        >>> is_baseline(recipes.read("sc35-convnet").to_dict()), is_baseline(recipes.read("sc35-s4-legs").to_dict())
        (True, False)
    """
    model = recipe.get("model", {})
    return model.get("name", "classifier") not in ADDED_MODELS.built_in or model.get("layer", "s4") not in LAYERS


@cache
def paper(task: ResultTask) -> str:
    """The papers' best number of S4 and S4D without augmentation, as printed; "" if there is none."""
    printed = []
    for name in _recipes() if task.published else []:
        recipe = named_recipe(name)
        about, data = recipe.about, recipe.data
        if about.number is None or not task.is_of(name, data) or recipe.model.get("layer", "s4") not in ("s4", "s4d"):
            continue
        half = re.search(r"([\d.]+) at (?:half the rate|8,000 Hz)", about.note)
        printed.append(str(about.number) if task.dt_scale == 1.0 else half[1] if half else "")
    return task.printed or _best(task, printed)


@cache
def paper_augmented(task: ResultTask) -> str:
    """The papers' best number with augmentation, from rows that recipes reach by it alone; "" if there is none.

    Example:
        >>> {task.name: paper_augmented(task) for task in TASKS if paper_augmented(task)}
        {'sCIFAR': '93.16', 'sCIFAR, S4 with 7.9M parameters': '93.16'}
    """
    options = {f"data.{option}=true" for option, nothing in CHANGES.items() if nothing is False}
    names = _recipes() if task.published and task.dt_scale == 1.0 else []
    rows = [row for name in names if task.is_of(name, named_recipe(name).data) for row in recipes.rows(name)]
    return _best(task, [row.number for row in rows if len(row.overrides) == 1 and row.overrides[0] in options])


@cache
def _recipes() -> tuple[str, ...]:
    """The recipes of S4, S4D and other SSMs."""
    return tuple(name for name in recipes.names() if not is_baseline({"model": named_recipe(name).model}))


def _best(task: ResultTask, printed: list[str]) -> str:
    numbers = [number for number in printed if re.fullmatch(r"\d+(\.\d+)?", number)]
    return (max if task.larger else min)(numbers, key=float, default="")
