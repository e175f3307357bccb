"""The tasks of the results tables: their data, the papers' numbers and our targets.

The papers' numbers are those of the recipes' headers. What the reference code needed is what its published
configurations and notes say: epochs, and the accuracy after some of them. Its times are not published.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from statespan.papers.records.signs import CHANGES
from statespan.train import recipes


@dataclass(frozen=True, eq=False)
class Task:
    """A task.

    Args:
        name: As tables show it.
        key: As files are called.
        data: Name of the dataset.
        metric: What is reported.
        aim: The number to reach, in per cent for an accuracy; None where it is to be reported.
        options: Options of the dataset that make it this task, with their values.
        dt_scale: Step of the test data relative to that of training.
        published: Whether the papers have a number for it.
        note: What a reader must know to compare.
        epochs: Of the reference's configuration.
        after: Accuracy in per cent that the reference says it has after some epochs.
        above: Whether anything better than the aim, which is chance, will do.
        whole: Training rows below which the data is only a part of the papers'.
        part: What that part consists of.
        scratch: What became of training it from random weights, as long as no record shows it.
    """

    name: str
    key: str
    data: str
    metric: str = "accuracy"
    aim: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    dt_scale: float = 1.0
    published: bool = True
    note: str = ""
    epochs: int | None = None
    after: tuple[float, int] | None = None
    above: bool = False
    whole: int = 0
    part: str = ""
    scratch: str = ""

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


WINDOWS, PATIENTS, RAW = {"split": "windows"}, {"split": "patients"}, {"features": "raw"}
LONG = {"contour": 14}
DEFAULTS = {**WINDOWS, **RAW, **LONG}  # what the datasets do if a recipe does not say
SPEECH = "clips of Speech Commands v0.01 instead of all of v0.02"
CHANCE = (
    "on an earlier version of the images, which did not match the release, training from random weights stayed at "
    "chance; on the current images it had reached 88.8 in validation after 13 of 45 epochs when the run was cut short "
    "(`results/tasks/unfinished.json`)"
)
WORDS = 20_000  # all clips of ten words make more training rows than this in v0.02, and fewer in v0.01
LABELS = (
    "training and test windows of the same patient overlap, as in the papers; labels are means over windows, because "
    "the papers' rule is not published"
)
TASKS = (
    Task("sMNIST", "smnist", "smnist", aim=99.6),
    Task("pMNIST", "pmnist", "pmnist", aim=98.7, note="pixels in bit-reversed order"),
    Task("LRA ListOps", "listops", "listops", aim=60.0, epochs=40, after=(50.0, 10)),
    Task("LRA Image", "image", "image", aim=88.5, epochs=200, after=(80.0, 20)),
    Task("sCIFAR", "scifar", "scifar", aim=91.0, epochs=200),
    Task("LRA Text", "text", "text", aim=87.0, epochs=32, after=(80.0, 10)),
    Task(
        "LRA Pathfinder",
        "pathfinder",
        "pathfinder",
        aim=94.0,
        options=LONG,
        epochs=200,
        after=(90.0, 20),
        scratch=CHANCE,
    ),
    Task("LRA Path-X", "path-x", "path-x", aim=50.0, options=LONG, epochs=50, after=(92.0, 10), above=True),
    Task("BIDMC HR", "bidmc-hr", "bidmc-hr", "rmse", 0.332, WINDOWS, epochs=500, note=LABELS),
    Task("BIDMC RR", "bidmc-rr", "bidmc-rr", "rmse", 0.163, WINDOWS, epochs=500, note=LABELS),
    Task("BIDMC SpO2", "bidmc-spo2", "bidmc-spo2", "rmse", 0.068, WINDOWS, epochs=500, note=LABELS),
    Task("BIDMC HR, new patients", "bidmc-hr-patients", "bidmc-hr", "rmse", None, PATIENTS, published=False),
    Task("BIDMC RR, new patients", "bidmc-rr-patients", "bidmc-rr", "rmse", None, PATIENTS, published=False),
    Task("BIDMC SpO2, new patients", "bidmc-spo2-patients", "bidmc-spo2", "rmse", None, PATIENTS, published=False),
    Task("Speech, raw", "speech", "sc10", options=RAW, epochs=200, whole=WORDS, part=SPEECH),
    Task(
        "Speech, raw, 0.5×",
        "speech-half",
        "sc10",
        options=RAW,
        dt_scale=2.0,
        note="not trained at this sampling rate",
        whole=WORDS,
        part=SPEECH,
    ),
    Task("WikiText-2", "wikitext2", "wikitext2", "perplexity", None, note="a small model"),
    Task("MNIST density", "mnist-density", "mnist-density", "bits_per_dim", None),
)


def value(record: Mapping[str, Any], task: Task) -> float | None:
    """A record's number for a task, in per cent for an accuracy; None if it has none."""
    tests = record["test"] if task.dt_scale == 1.0 else record.get("rates", {}).get(f"{task.dt_scale:g}", {})
    number = tests.get(task.metric)
    return number if number is None or task.metric != "accuracy" else 100 * number


def judged(record: Mapping[str, Any], task: Task) -> float:
    """The validation number by which runs are ranked, independent of test scores."""
    return float(record["valid"].get(task.metric, float("-inf") if task.larger else float("inf")))


def other(record: Mapping[str, Any], key: str) -> Task:
    """A task for a record that belongs to none of the list, such as a small one of our own."""
    data = record["recipe"]["data"]
    name = data["name"] + (", hidden tokens" if data.get("find") else "")
    if (contour := data.get("contour", LONG["contour"])) != LONG["contour"]:
        name += f", contours of {contour} dashes"
    return Task(name, key, data["name"], record["metric"], published=False)


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


def paper(task: Task) -> str:
    """The papers' best number of S4 and S4D without augmentation, as printed; "" if there is none."""
    numbers = []
    for data, number, note in _paper_numbers() if task.published else []:
        half = re.search(r"([\d.]+) at half the rate", note)
        text = number if task.dt_scale == 1.0 else half[1] if half else ""
        if data == task.data and re.fullmatch(r"\d+(\.\d+)?", text):
            numbers.append(text)
    return _best(task, numbers)


def paper_augmented(task: Task) -> str:
    """The papers' best number with augmentation; "" if there is none.

    Example:
        >>> {task.name: paper_augmented(task) for task in TASKS if paper_augmented(task)}
        {'sCIFAR': '93.16'}
    """
    if not task.published or task.dt_scale != 1.0:
        return ""
    return _best(task, [number for data, number in _augmented_numbers() if data == task.data])


def _best(task: Task, printed: list[str]) -> str:
    return (max if task.larger else min)(printed, key=float) if printed else ""
