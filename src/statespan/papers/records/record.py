"""Makes the record of a finished run: recipe, code, machine, time and results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from statespan.models.find import names as published
from statespan.papers.records import schema
from statespan.papers.records.schema import PublishError
from statespan.train import recipes
from statespan.train.config import Recipe, read_recipe

NOT_LEARNED_FROM = {
    f"train.{key}" for key in ("seed", "tensorboard", "log_every", "save_every", "keep", "valid_batch", "resident")
}
_LOCAL_PATH = re.compile(r"^(/|~|[A-Za-z]:\\)")


def read_result(run: Path) -> dict[str, Any]:
    """Read the result of a finished run, or raise a PublishError."""
    if not (run / "recipe.yaml").is_file():
        raise PublishError(f"{run} must be the folder of a run, but has no recipe.yaml")
    path = run / "result.json"
    if not path.is_file():
        raise PublishError(f"{run} is not finished: resume it with statespan train {run} --resume")
    try:
        result = schema.read(path)
    except (OSError, ValueError) as error:
        raise PublishError(f"{path} cannot be read: {error}") from error
    if missing := [key for key in schema.RUN_KEYS if key not in result]:
        raise PublishError(f"{path} must be what statespan train wrote, but has no {', '.join(missing)}")
    then, now = read_recipe(result["recipe"]), read_recipe(run / "recipe.yaml")
    if then.to_dict() != now.to_dict():  # resumed for more epochs, and not at its end yet
        raise PublishError(f"{run} is not finished: its recipe has changed since its result; pass --resume")
    if result["metric"] not in result["test"]:
        raise PublishError(f"{run} has no test result")
    return result


def make_record(run: Path, given: str | None = None) -> dict[str, Any]:
    """Make the record of a finished run.

    Raises:
        PublishError: The run is not finished, or cannot be shown to others.
    """
    result = read_result(run)
    recipe = read_recipe(result["recipe"])
    for key, value in _flat("data", recipe.data):
        if isinstance(value, str) and _LOCAL_PATH.match(value):
            raise PublishError(f"{run} was trained on files of this machine ({key}), which others do not have")
    start = result.get("start")
    if start is not None:
        if "recipe" not in start:
            raise PublishError(f"{run} started from weights of this machine (train.start), which others do not have")
        before = read_recipe(start["recipe"])
        if earlier := before.train.start:
            before = read_recipe(before, [f"train.start={_place(earlier, earlier)}"])
        earlier_run = {"recipe": before.to_dict(), "overrides": changes(before, start["overrides"])}
        start = {**start, **earlier_run, "recipe": before.name, "name": model_name(earlier_run)}
        recipe = read_recipe(recipe, [f"train.start={_place(recipe.train.start, start['name'])}"])
    record = {key: result[key] for key in schema.RUN_KEYS} | {
        "recipe": recipe.to_dict(),
        "overrides": changes(recipe, result["overrides"]),
        "versions": {**result["versions"], "commit": schema.find_commit(run, result["versions"], given)},
        **{key: result.get(key) for key in ("date", "rows", "first")},
        "history": result.get("history") or {},
    }
    return record if start is None else {**record, "start": start}


def seconds_before(record: Mapping[str, Any]) -> float:
    """The training time of the weights a run started from."""
    return (record.get("start") or {}).get("wall_seconds", 0.0)


def stem(record: Mapping[str, Any]) -> str:
    """The name of a record's file: recipe, changes to the data, starting weights and seed.

    Example:
        >>> stem({"recipe": {"name": "bidmc-hr-s4"}, "overrides": ['data.split="patients"', "train.lr=1"], "seed": 2})
        'bidmc-hr-s4-patients-seed2'
    """
    return f"{model_name(record)}-seed{record['seed']}"


def model_name(record: Mapping[str, Any]) -> str:
    """The default name of a model: recipe, changes to the data and starting weights."""
    changed = [text.removeprefix("data.").partition("=") for text in record["overrides"] if text.startswith("data.")]
    switches = {"true": "{}", "false": "no-{}"}  # a bare "true" would not say of what
    words = [switches[value].format(key) if value in switches else value.strip('"') for key, _, value in changed]
    words += [re.sub(r".*[=/]", "from-", text) for text in record["overrides"] if text.startswith("train.start=")]
    words = [re.sub(r"[^A-Za-z0-9-]+", "", word) for word in words]
    return "-".join([record["recipe"]["name"], *filter(None, words)])


def changes(recipe: Recipe, otherwise: list[str]) -> list[str]:
    """The overrides that turn the named recipe into this one; ``otherwise`` if no recipe has that name.

    The seed is left out, and so is what only decides how a run is logged, saved and kept in memory.
    """
    if recipe.name not in recipes.names():
        return [text for text in otherwise if text.partition("=")[0] not in NOT_LEARNED_FROM]
    return differences(recipe.name, recipe.to_dict())


def differences(name: str, now: Mapping[str, Any]) -> list[str]:
    """The overrides that turn the recipe of this name into ``now``.

    A training setting that an old record does not have did not exist then: no difference.
    """
    was, overrides = named_recipe(name).to_dict(), []
    for section in ("data", "model", "train"):
        old, new = dict(_flat(section, was[section])), dict(_flat(section, now[section]))
        keys = new if section == "train" else {**old, **new}
        overrides += [f"{key}={json.dumps(new.get(key))}" for key in keys if old.get(key, ...) != new.get(key, ...)]
    return [text for text in overrides if text.partition("=")[0] not in NOT_LEARNED_FROM]


@cache  # reading YAML is slow, and tables ask for the same recipes many times
def named_recipe(name: str) -> Recipe:
    """Read a recipe without overrides."""
    return recipes.read(name)


def _place(start: str | None, name: str) -> str:
    """A portable name for a run's starting weights: their published name or their recipe, not a local path."""
    return name if start in published() else f"runs/{name}"


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}.{key}", value)
        else:
            yield f"{prefix}.{key}", value
