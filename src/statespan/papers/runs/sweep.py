"""The sweep of a recipe: its combinations, the one that is best in validation, and their table.

The table has the validation of every combination and the test of the best one alone, so that the test data choose
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from statespan.papers.records.text_table import TextTable
from statespan.papers.runs.choose import Axis, Combination
from statespan.papers.runs.outcome import STOPPED, WAITING
from statespan.papers.runs.stats import spread
from statespan.papers.runs.table import SweepLine, faults, lines, text
from statespan.train.config import ConfigError, Recipe
from statespan.train.strict import parse

RULE = "The combination with the best mean in validation is chosen; of the others the test is not shown."


class Choice(NamedTuple):
    """The lines of a sweep in validation, the number of the best one, and its test.

    Example:
        >>> Choice(lines=[], best=None, test=None).best is None  # not all cells are done
        True
    """

    lines: list[SweepLine]
    best: int | None  # None until every cell is done or has failed
    test: SweepLine | None


def axes_of(recipe: Recipe) -> list[Axis]:
    """The keys of a recipe's sweep and their values as text.

    Example:
        >>> from statespan.train import read_recipe
        >>> text = "{name: a, data: {name: digits}, model: {name: classifier}, sweep: {train.lr: [0.01, 1e-3]}}"
        >>> axes_of(read_recipe(text))
        [Axis(key='train.lr', values=('0.01', '0.001'))]
    """
    if not recipe.sweep:
        raise ConfigError(f"the recipe {recipe.name} has no sweep; give the values with --grid, or add a section sweep")
    changed = [change.partition("=")[0].strip() for change in recipe.overrides]
    twice = [key for key in recipe.sweep if key in changed]
    if twice:
        raise ConfigError(f"{twice[0]} is a key of the sweep; give sweep.{twice[0]}=[…] instead of {twice[0]}=…")
    return [Axis(key, tuple(map(_as_text, values))) for key, values in recipe.sweep.items()]


def _as_text(value: Any) -> str:
    """A value as an override has it."""
    return value if isinstance(value, str) and parse(value) == value else json.dumps(value)


def choose(rows: Sequence[Combination], cells: Path) -> Choice:
    """The lines of all combinations and, if no cell is left to run, the best one by the mean over its seeds."""
    valid = lines(rows, cells, "valid")
    is_left = any(result.status in (WAITING, STOPPED) for line in valid for result in line.outcomes)
    whole = [number for number, line in enumerate(valid) if len(line.numbers) == len(line.outcomes)]
    if is_left or not whole:
        return Choice(valid, None, None)
    largest = valid[whole[0]].metric == "accuracy"
    best = (max if largest else min)(whole, key=lambda number: fmean(valid[number].numbers))
    return Choice(valid, best, lines([rows[best]], cells, "test")[0])


def grid(axes: Sequence[Axis], choice: Choice) -> TextTable:
    """The table as plain text."""
    metric = next((line.metric for line in choice.lines if line.metric), "metric").replace("_", " ")
    unit = " %" if metric == "accuracy" else ""
    heads = [*(axis.key for axis in axes), f"valid {metric}{unit}", f"test {metric}{unit}", "seeds", "left"]
    rows = []
    for number, line in enumerate(choice.lines):
        test = "" if choice.test is None or number != choice.best else text(choice.test.numbers, line.metric)
        rows.append([*line.values, text(line.numbers, line.metric), test, str(len(line.numbers)), line.state])
    return TextTable(heads, rows, (*range(len(axes)), len(axes) + 3))


def summary(axes: Sequence[Axis], choice: Choice) -> str:
    """The best combination in one line, as overrides."""
    if choice.best is None:
        return "best     not known before all cells are done"
    values = choice.lines[choice.best].values
    return "best     " + " ".join(f"{axis.key}={value}" for axis, value in zip(axes, values))


def markdown(title: str, axes: Sequence[Axis], choice: Choice, notes: Sequence[str] = ()) -> str:
    """The table as a Markdown page."""
    page = [f"# {title}", "", *notes, *([""] if notes else []), *grid(axes, choice).markdown(), "", RULE, ""]
    return "\n".join([*page, f"`{summary(axes, choice)}`", *(f"- {fault}" for fault in faults(choice.lines))]) + "\n"


def record(title: str, axes: Sequence[Axis], choice: Choice) -> bytes:
    """The table as JSON."""
    plain: list[dict[str, Any]] = []
    for number, line in enumerate(choice.lines):
        values = dict(zip((axis.key for axis in axes), line.values))
        test = list(choice.test.numbers) if choice.test is not None and number == choice.best else None
        plain.append(
            {
                "values": values, "metric": line.metric, "valid": list(line.numbers),
                "mean": fmean(line.numbers) if line.numbers else None, "std": spread(line.numbers),
                "test": test, "left": line.state, "faults": line.faults,
            }
        )  # fmt: skip
    whole = {"title": title, "rule": RULE, "best": choice.best, "lines": plain}
    return (json.dumps(whole, indent=2, allow_nan=False) + "\n").encode()
