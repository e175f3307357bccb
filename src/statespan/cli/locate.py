"""Finds the run or model of a command (a folder or a published name) and the preparation of its inputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from statespan._fail import fail
from statespan._suggest import suggest
from statespan.cli import common

if TYPE_CHECKING:
    from statespan.data import Dataset
    from statespan.data.inputs import Preparation

MODEL = "The folder of a run or of a saved model, or the name of a published model."
Model = Annotated[Path, typer.Argument(metavar="MODEL", help=MODEL, show_default=False)]


class Opened(NamedTuple):
    """A model, and the run or published model it comes from, if any.

    Example:
        >>> opened = Opened(model=None, run=Path("runs/smnist"))
        >>> opened.run.name
        'smnist'
    """

    model: Any
    run: Path | None


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run."""
    return (folder / "recipe.yaml").is_file()


def locate(where: Path) -> Path:
    """Resolve a folder, or the name of a published model, to a folder."""
    from statespan.models import find

    try:
        return find.resolve(where)
    except find.UnknownModelError:
        return where


def missing_hint(where: Path) -> str:
    """What to do about a run or model that is not there: the nearest names, or how to train one."""
    from statespan.models.find import names
    from statespan.train import recipes

    if where.exists():
        return ""
    known = names()
    if len(where.parts) == 1 and (near := suggest(str(where), known, most=3)):
        return near
    if len(where.parts) == 1 and recipes.find(str(where)) is not None:
        return f"; train this recipe first: statespan train {where}"
    return (
        f"; make one with: statespan train digits-s4d, or name one of the {len(known)} published models, which "
        "statespan models lists"
    )


def find_run(folder: Path, argument: str = "RUN") -> Path:
    """The folder of an existing run or published model; ``argument`` names the command-line argument."""
    given, folder = folder, locate(folder)
    if is_run(folder):
        return folder
    near = [path for path in folder.parent.glob("*") if is_run(path)] if folder.parent.is_dir() else []
    near = near or [path for path in common.RUNS.glob("*") if is_run(path)]
    hint = f"; runs are {', '.join(sorted(map(str, near))[:6])}" if near else ""
    hint += "" if near and len(given.parts) != 1 else missing_hint(given)
    fail(f"{argument} must be the folder of a run, but {folder} is {_kind(folder)}{hint}")


def open_model(where: Path, device: str | None) -> Opened:
    """Load a model, by folder or published name, in evaluation mode; on CUDA if available unless a device is given."""
    from statespan.models import from_pretrained
    from statespan.train.device import pick_device

    place = pick_device(device)
    where = locate(where)
    if (where / "config.json").is_file():
        return Opened(from_pretrained(where, device=place), where if is_run(where) else None)
    if not is_run(where):
        hint = missing_hint(where)
        fail(f"MODEL must be the folder of a run or of a saved model, but {where} is {_kind(where)}{hint}")
    if not (where / "model" / "config.json").is_file():
        fail(f"the run {where} has no model yet; finish it with: statespan train {where} --resume")
    return Opened(from_pretrained(where / "model", device=place), where)


def dataset_of(opened: Opened, data: Path | None, changes: Sequence[str] = ()) -> Dataset | None:
    """The dataset of a run, with overrides of its recipe; None without a run."""
    if opened.run is None:
        return None
    from statespan.train import read_recipe

    return common.load_data(read_recipe(opened.run / "recipe.yaml", changes), data)


def inputs_of(opened: Opened, data: Path | None, changes: Sequence[str] = ()) -> Preparation | None:
    """The input preparation of a model: as stored with it, or else, if it is more than scaling, by a run's dataset."""
    from statespan.data import inputs

    stored: Preparation | None = opened.model.inputs
    if stored is not None and stored.prepare is not None:
        return stored
    dataset = dataset_of(opened, data, changes)
    return stored if dataset is None else inputs.of_dataset(dataset)


def trained_rate(run: Path) -> float | None:
    """The sampling rate of a run's training data, from the config of its saved model; None if unknown."""
    try:
        place = run if (run / "config.json").is_file() else run / "model"
        rate = json.loads((place / "config.json").read_text(encoding="utf-8"))["config"].get("sampling_rate")
    except (OSError, ValueError, KeyError, AttributeError, TypeError):  # loading the model reports the fault
        return None
    return float(rate) if isinstance(rate, (int, float)) else None


def _kind(path: Path) -> str:
    return "a file" if path.is_file() else "a folder without a run" if path.is_dir() else "not there"
