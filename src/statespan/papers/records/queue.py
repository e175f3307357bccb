"""The queue of runs by the papers' own protocol, from queue.yaml: which of them have a record, and which are next.

A run has a record if a published run has its recipe, its overrides and its seed. Settings of speed, and whether data
was generated, do not count.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from statespan.papers.records.matching import PublishedRuns, base_recipe
from statespan.papers.records.record import named_recipe

_FILE = Path(__file__).with_suffix(".yaml")
_CHOICE = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class QueueRun:
    """A run of the queue: a recipe with overrides, trained once for each seed.

    Example:
        >>> run = QueueRun("smnist-s4", ("train.epochs=100",), seeds=(0, 1), minutes=90.0)
        >>> run.command(seed=1)
        'statespan train smnist-s4 train.epochs=100 train.seed=1'
    """

    recipe: str
    overrides: tuple[str, ...]
    seeds: tuple[int, ...]
    minutes: float  # of one seed on one H200, estimated

    def __str__(self) -> str:
        """The recipe and its overrides."""
        return " ".join((self.recipe, *self.overrides))

    def command(self, seed: int, speed: Sequence[str] = ()) -> str:
        """The command that trains it."""
        return " ".join(("statespan train", str(self), f"train.seed={seed}", *speed))


@dataclass(frozen=True)
class QueueLine:
    """A line of the queue.

    Example:
        >>> run = QueueRun("smnist-s4", (), seeds=(0,), minutes=90.0)
        >>> QueueLine(1, "sequential MNIST", "99.6", (run,)).runs[0].recipe
        'smnist-s4'
    """

    number: int
    what: str
    aim: str
    runs: tuple[QueueRun, ...]
    form: str = ""  # why these forms of the recipes


@dataclass(frozen=True)
class QueueState:
    """Which seeds of a run have a record.

    Example:
        >>> run = QueueRun("smnist-s4", (), seeds=(0, 1, 2), minutes=90.0)
        >>> state = QueueState(run, files={0: "smnist-s4.json"})
        >>> state.missing, state.minutes_left
        ([1, 2], 180.0)
    """

    run: QueueRun
    files: Mapping[int, str]  # the records' files by seed

    @property
    def missing(self) -> list[int]:
        """The seeds without a record."""
        return [seed for seed in self.run.seeds if seed not in self.files]

    @property
    def minutes_left(self) -> float:
        """The estimated minutes of the missing seeds, one after the other."""
        return len(self.missing) * self.run.minutes


@dataclass(frozen=True)
class LineState:
    """The runs of a line, with their records.

    Example:
        >>> run = QueueRun("smnist-s4", (), seeds=(0, 1, 2), minutes=90.0)
        >>> line = QueueLine(1, "sequential MNIST", "99.6", (run,))
        >>> state = LineState(line, (QueueState(run, files={0: "smnist-s4.json"}),))
        >>> state.done, state.count
        (1, 3)
    """

    line: QueueLine
    runs: tuple[QueueState, ...]

    @property
    def count(self) -> int:
        """The number of runs, each seed on its own."""
        return sum(len(state.run.seeds) for state in self.runs)

    @property
    def done(self) -> int:
        """The number of those with a record."""
        return self.count - sum(len(state.missing) for state in self.runs)

    @property
    def minutes_left(self) -> float:
        """The estimated minutes of the missing ones."""
        return sum(state.minutes_left for state in self.runs)


def expanded(text: str) -> list[str]:
    """All texts that a text with choices stands for.

    Example:
        >>> expanded("lra-{text,image}-s4 train.lr={0.1,0.2}")[:3]
        ['lra-text-s4 train.lr=0.1', 'lra-text-s4 train.lr=0.2', 'lra-image-s4 train.lr=0.1']
    """
    parts = _CHOICE.split(text)  # every other part is a list of choices
    choices = [part.split(",") if place % 2 else [part] for place, part in enumerate(parts)]
    return ["".join(words) for words in itertools.product(*choices)]


@cache
def queue() -> tuple[QueueLine, ...]:
    """The lines of the queue, in order."""
    lines = _content()["lines"]
    return tuple(
        QueueLine(number, line["what"], line["aim"], tuple(_runs(line["groups"])), line.get("form", "").strip())
        for number, line in enumerate(lines, 1)
    )


def speed() -> list[str]:
    """The overrides of speed that every command has."""
    return list(_content()["speed"])


def states(published: PublishedRuns, lines: Sequence[QueueLine] | None = None) -> list[LineState]:
    """Lines of the queue, by default all, with the records of published runs."""
    return [
        LineState(line, tuple(_state(run, published) for run in line.runs))
        for line in (queue() if lines is None else lines)
    ]


def next_command(line_states: Sequence[LineState]) -> str | None:
    """The command of the first run without a record; None if all have one."""
    for state in (run for line in line_states for run in line.runs):
        if state.missing:
            return state.run.command(state.missing[0], speed())
    return None


@cache
def preferred() -> dict[str, str]:
    """The form of a recipe that the queue trains, by the recipe that it is a form of.

    Example:
        >>> preferred()["lra-text-s4"], preferred()["lra-pathx-s4"]
        ('lra-text-s4-code', 'lra-pathx-s4')
    """
    chosen: dict[str, str] = {}
    for run in (run for line in queue() for run in line.runs):
        chosen.setdefault(base_recipe(run.recipe), run.recipe)
    return chosen


@cache
def _content() -> dict[str, Any]:
    return yaml.safe_load(_FILE.read_text(encoding="utf-8"))


def _runs(groups: Sequence[Mapping[str, Any]]) -> Iterator[QueueRun]:
    for group in groups:
        for text in (text for pattern in group["runs"] for text in expanded(pattern)):
            recipe, *overrides = text.split()
            first = named_recipe(recipe).train.seed
            seeds = tuple(range(first, first + group["seeds"]))
            yield QueueRun(recipe, tuple(overrides), seeds, float(group["minutes"]))


def _state(run: QueueRun, published: PublishedRuns) -> QueueState:
    found = published.exact(run.recipe, run.overrides)
    return QueueState(run, {seed: found[seed][0] for seed in run.seeds if seed in found})
