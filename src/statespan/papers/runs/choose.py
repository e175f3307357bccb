"""The cells of a sweep: all combinations of values of some recipe keys."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from statespan.papers.runs.cell import Cell
from statespan.train.config import ConfigError, Recipe, read_recipe
from statespan.train.run import check_data, check_model
from statespan.train.strict import KEY, dump, show


@dataclass(frozen=True)
class Axis:
    """A key of a recipe and the values it takes, as text.

    Example:
        >>> Axis("train.lr", ("0.001", "0.004")).values
        ('0.001', '0.004')
    """

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Combination:
    """One combination of values, a line of the table, and its cells, one per seed.

    Example:
        >>> Combination(values=("0.001",), cells=()).values
        ('0.001',)
    """

    values: tuple[str, ...]
    cells: tuple[Cell, ...]


def parse_axis(text: str) -> Axis:
    """Parse an axis, or raise a ConfigError; commas inside brackets or quotes do not separate values.

    Example:
        >>> parse_axis("train.betas=[0.9,0.99],[0.9,0.999]")
        Axis(key='train.betas', values=('[0.9,0.99]', '[0.9,0.999]'))
    """
    key, equals, rest = text.partition("=")
    key = key.strip()
    values = [value.strip() for value in _split(rest)]
    if not equals or not all(KEY.match(part) for part in key.split(".")) or "" in values:
        raise ConfigError(f"--grid must be key=value,value such as model.ssm.init=legs,inv,lin, got {show(text)}")
    if key == "train.seed":
        raise ConfigError("--grid must not contain train.seed: --seeds sets the seeds of every combination")
    repeated = [value for value in values if values.count(value) > 1]
    if repeated:
        raise ConfigError(f"--grid {key} has the value {show(repeated[0])} twice")
    return Axis(key, tuple(values))


def _split(text: str) -> list[str]:
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def product(recipe: Recipe, axes: Sequence[Axis], seeds: int) -> list[Combination]:
    """All combinations, with the last axis varying fastest, each with its seeds; a ConfigError if one is no recipe.

    Example:
        >>> from statespan.train import recipes
        >>> rows = product(recipes.read("digits-s4d"), [parse_axis("model.ssm.init=lin,inv")], seeds=2)
        >>> [(row.values, [cell.seed for cell in row.cells]) for row in rows]
        [(('lin',), [0, 1]), (('inv',), [0, 1])]
    """
    if seeds < 1:
        raise ConfigError(f"--seeds must be an integer >= 1, got {seeds}")
    keys = [axis.key for axis in axes]
    twice = [key for key in keys if keys.count(key) > 1]
    if twice:
        raise ConfigError(f"--grid must name each key once, got {twice[0]} twice")
    rows = []
    recipe = replace(recipe, sweep={})  # a cell is one of its combinations
    for values in itertools.product(*(axis.values for axis in axes)):
        changes = [f"{key}={value}" for key, value in zip(keys, values)]
        cells = [
            Cell(read_recipe(recipe, [*changes, f"train.seed={recipe.train.seed + number}"])) for number in range(seeds)
        ]
        rows.append(Combination(values, tuple(cells)))
    return rows


def check_rows(axes: Sequence[Axis], rows: Sequence[Combination]) -> None:
    """Reject a sweep with a value that is invalid for the model or dataset, before anything is trained.

    Raises:
        ConfigError: In the first combination that has one; it says which, and what is allowed.

    Example:
        >>> from statespan.train import recipes
        >>> axes = [parse_axis("model.d_state=4,5")]
        >>> check_rows(axes, product(recipes.read("digits-s4d"), axes, seeds=1))
        Traceback (most recent call last):
        ...
        statespan.train.strict.ConfigError: model: d_state must be an even integer >= 2, got 5 (with model.d_state=5)
    """
    check_values = partial(check_model, values=True)
    seen = set()
    for row in rows:
        recipe = row.cells[0].recipe
        for check, section in ((check_values, recipe.model), (check_data, recipe.data)):
            key = (check, dump(dict(section)))
            try:
                if key not in seen:
                    check(recipe)
            except ConfigError as error:
                which = " ".join(f"{axis.key}={value}" for axis, value in zip(axes, row.values))
                raise ConfigError(f"{error} (with {which})") from error
            seen.add(key)
