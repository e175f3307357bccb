"""A finished run as a record: what was trained, by which code, on what, for how long, and what came out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from statespan._machine import commit_of
from statespan.models.find import names as published
from statespan.train.config import ConfigError, Recipe, read_recipe

KEYS = (
    "recipe", "overrides", "seed", "test", "valid", "metric", "steps", "epochs", "best_step", "parameters",
    "wall_seconds", "hardware", "versions",
)  # fmt: skip
APART = {
    f"train.{key}" for key in ("seed", "tensorboard", "log_every", "save_every", "keep", "valid_batch", "resident")
}
_PLACE = re.compile(r"^(/|~|[A-Za-z]:\\)")


class PublishError(ValueError):
    """A run cannot be published; the message is one line."""


def read_result(run: Path) -> dict[str, Any]:
    """The result of a finished run.

    Raises:
        PublishError: It is not one.
    """
    if not (run / "recipe.yaml").is_file():
        raise PublishError(f"{run} must be the folder of a run, and has no recipe.yaml")
    path = run / "result.json"
    if not path.is_file():
        raise PublishError(f"{run} is not finished: go on with statespan train {run} --resume")
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        missing = [key for key in KEYS if key not in result]
    except (OSError, ValueError, TypeError) as error:
        raise PublishError(f"{path} cannot be read: {error}") from error
    if missing:
        raise PublishError(f"{path} must be what statespan train wrote, and has no {', '.join(missing)}")
    then, now = read_recipe(result["recipe"]), read_recipe(run / "recipe.yaml")
    if then.to_dict() != now.to_dict():  # gone on with, for more epochs, and not at its end yet
        raise PublishError(f"{run} is not finished: its recipe is no longer that of its result; go on with --resume")
    if result["metric"] not in result["test"]:
        raise PublishError(f"{run} has no test result")
    return result


def make_record(run: Path, given: str | None = None) -> dict[str, Any]:
    """The record of a finished run.

    Args:
        run: Its folder.
        given: The commit it was made with, where its result does not say so.

    Raises:
        PublishError: The run is not finished, or cannot be shown to others.
    """
    result = read_result(run)
    recipe = read_recipe(result["recipe"])
    for key, value in _flat("data", recipe.data):
        if isinstance(value, str) and _PLACE.match(value):
            raise PublishError(f"{run} was trained on files of this machine ({key}), which others do not have")
    start = result.get("start")
    if start is not None:
        if "recipe" not in start:
            raise PublishError(f"{run} began with weights of this machine (train.start), which others do not have")
        before = read_recipe(start["recipe"])
        if earlier := before.train.start:
            before = read_recipe(before, [f"train.start={_place(earlier, earlier)}"])
        said = {"recipe": before.to_dict(), "overrides": changes(before, start["overrides"])}
        start = {**start, **said, "recipe": before.name, "name": model_name(said)}
        recipe = read_recipe(recipe, [f"train.start={_place(recipe.train.start, start['name'])}"])
    record = {key: result[key] for key in KEYS} | {"recipe": recipe.to_dict()}
    record["overrides"] = changes(recipe, result["overrides"])
    record["versions"] = {**result["versions"], "commit": _commit(run, result["versions"], given)}
    record["date"] = result.get("date")
    record["rows"] = result.get("rows")
    record["first"] = result.get("first")
    record["history"] = result.get("history") or {}
    if start is not None:
        record["start"] = start
    return record


def seconds_before(record: Mapping[str, Any]) -> float:
    """The time that was spent on the weights a run began with."""
    return (record.get("start") or {}).get("wall_seconds", 0.0)


def stem(record: Mapping[str, Any]) -> str:
    """The name of a record's file: recipe, what was changed about the data, what it began with, and seed.

    Example:
        >>> stem({"recipe": {"name": "bidmc-hr-s4"}, "overrides": ['data.split="patients"', "train.lr=1"], "seed": 2})
        'bidmc-hr-s4-patients-seed2'
    """
    return f"{model_name(record)}-seed{record['seed']}"


def model_name(record: Mapping[str, Any]) -> str:
    """The name of a model if none is given: the recipe, what was changed about the data, and what it began with."""
    changed = [text.removeprefix("data.").partition("=") for text in record["overrides"] if text.startswith("data.")]
    said = {"true": "{}", "false": "no-{}"}  # a bare "true" would not say of what
    words = [said[value].format(key) if value in said else value.strip('"') for key, _, value in changed]
    words += [re.sub(r".*[=/]", "from-", text) for text in record["overrides"] if text.startswith("train.start=")]
    words = [re.sub(r"[^A-Za-z0-9-]+", "", word) for word in words]
    return "-".join([record["recipe"]["name"], *filter(None, words)])


def changes(recipe: Recipe, otherwise: list[str]) -> list[str]:
    """In what a recipe differs from the one of its name; what it says itself if there is none.

    The seed is left out, and so is what decides nothing but how a run is logged, saved and kept in memory.
    """
    from statespan.train import recipes

    if recipe.name not in recipes.names():
        return [text for text in otherwise if text.partition("=")[0] not in APART]
    return differences(recipe.name, recipe.to_dict())


def differences(name: str, now: Mapping[str, Any]) -> list[str]:
    """In what the sections of a recipe differ from those of the recipe with this name, as overrides.

    What a record does not say about training is what it was when there was no such setting: no difference.
    """
    was, found = _as_named(name), []
    for section in ("data", "model", "train"):
        old, new = dict(_flat(section, was[section])), dict(_flat(section, now[section]))
        keys = new if section == "train" else {**old, **new}
        found += [f"{key}={json.dumps(new.get(key))}" for key in keys if old.get(key, ...) != new.get(key, ...)]
    return [text for text in found if text.partition("=")[0] not in APART]


@cache  # reading YAML is slow, and many runs are of one recipe
def _as_named(name: str) -> dict[str, Any]:
    from statespan.train import recipes

    return recipes.read(name).to_dict()


def read_records(folder: Path) -> dict[str, dict[str, Any]]:
    """The records in a folder by the name of their file, in order; other files are passed over."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(record, dict) and all(key in record for key in KEYS):
            found[path.name] = record
    return found


def _place(start: str | None, name: str) -> str:
    """Where others have what a run began with: its published name, or the run of its recipe; not where it lay here."""
    return name if start in published() else f"runs/{name}"


def _commit(run: Path, versions: Mapping[str, Any], given: str | None) -> str:
    said = str(versions.get("commit") or "")
    if said and not said.endswith("+changes"):
        return said
    if found := commit_of(str(versions.get("source"))):
        return found  # whatever git knew where the run was made, the code was that of this commit
    if said:
        return said
    if given:
        if not re.fullmatch(r"[0-9a-f]{7,40}", given):
            raise PublishError(f"the commit must be 7 to 40 hexadecimal digits, got {given!r}")
        return given
    raise PublishError(f"{run} does not say which commit made it, and none of the latest here has its code: --commit")


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}.{key}", value)
        else:
            yield f"{prefix}.{key}", value


__all__ = [
    "ConfigError", "PublishError", "changes", "differences", "make_record", "model_name", "read_records", "read_result",
    "seconds_before", "stem",
]  # fmt: skip
