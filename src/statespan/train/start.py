"""Starts from trained weights: those of another run, a published model or a saved one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from statespan import _io as io
from statespan.train.config import ConfigError

FILE = "start.json"
BODY = "backbone."  # the part that two models must share; encoder and head may differ


def find_weights(start: str) -> Path:
    """The folder with the weights that a recipe starts from."""
    from statespan.models.find import UnknownModelError, resolve
    from statespan.models.pretrained import CONFIG

    try:
        folder = resolve(start)
    except UnknownModelError as error:
        if Path(start).parent.name == "runs" and not Path(start).exists():
            make = f"statespan train {Path(start).name}"
            raise ConfigError(f"train.start is {start}, which does not exist; create it with {make}") from error
        raise ConfigError(
            f"train.start is {start}; allowed: the folder of a finished run or of a saved model, or the name of a "
            f"published one: {error}"
        ) from error
    for place in (folder, folder / "model"):
        if (place / CONFIG).is_file():
            return place
    raise ConfigError(f"train.start is {start}, an unfinished run; finish it with statespan train {start} --resume")


def begin(network: nn.Module, start: str) -> dict[str, Any]:
    """Copy trained weights into a network wherever names and shapes agree, as those of its layers must.

    Returns for the record how many tensors fitted, and which run they are from.
    """
    from statespan.models.pretrained import LoadError, read

    folder = find_weights(start)
    try:
        trained = read(folder).tensors
    except LoadError as error:
        raise ConfigError(f"train.start is {start}; it cannot be read: {error}") from error
    weights = network.state_dict()
    fitting = [name for name, tensor in weights.items() if name in trained and trained[name].shape == tensor.shape]
    different = [name for name in {**weights, **trained} if name.startswith(BODY) and name not in fitting]
    if different:
        example = f"{different[0]} is {_shape(trained, different[0])} there and {_shape(weights, different[0])} here"
        raise ConfigError(f"train.start is {start}; allowed: weights of the same layers ({example})")
    with torch.no_grad():
        for name in fitting:
            weights[name].copy_(trained[name])
    return {"tensors": len(fitting), "of": len(weights), **_origin(folder)}


def remember(folder: Path, facts: dict[str, Any]) -> None:
    """Record in a run's folder which weights it started from."""
    io.replace_file(folder / FILE, (json.dumps(facts, indent=2) + "\n").encode())


def remembered(folder: Path) -> dict[str, Any] | None:
    """The weights a run started from, as recorded."""
    path = folder / FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _origin(folder: Path) -> dict[str, Any]:
    """The run that trained some weights and its total time, including earlier runs; a name if unknown."""
    records = [path for path in (folder / "record.json", folder.parent / "result.json") if path.is_file()]
    if not records:
        return {"name": folder.resolve().name}
    record = json.loads(records[0].read_text(encoding="utf-8"))
    before = record.get("start") or {}
    recipe = record["recipe"]
    if before:
        recipe["train"]["start"] = before["name"]  # not its path
    return {
        "name": recipe["name"],
        "recipe": recipe,
        "overrides": [text for text in record["overrides"] if not text.startswith("train.start=")],
        "seed": record["seed"],
        "steps": record["steps"],
        "wall_seconds": round(record["wall_seconds"] + before.get("wall_seconds", 0.0), 2),
    }


def _shape(tensors: dict[str, torch.Tensor], name: str) -> str:
    return str(tuple(tensors[name].shape)) if name in tensors else "not"
