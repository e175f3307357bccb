"""Which model a command means: the folder of a run, one that ``save_pretrained`` wrote, or a published name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from statespan._fail import fail
from statespan.cli import common

if TYPE_CHECKING:
    from rich.console import Console

    from statespan.cli.inputs import Inputs
    from statespan.data import Dataset

ARGUMENT = "The folder of a run or of a saved model, or the name of a published one."


class Opened(NamedTuple):
    """A model, and the run or the published model it comes from, if any."""

    model: Any
    run: Path | None


def open_model(where: Path, device: str | None) -> Opened:
    """Load a model in evaluation mode.

    Args:
        where: The folder of a run or of a saved model, or the name of a published one.
        device: Where to put it; CUDA where there is some, if not given.
    """
    from statespan.models import from_pretrained
    from statespan.train.device import pick_device

    place = pick_device(device)
    where = common.locate(where)
    if (where / "config.json").is_file():
        return Opened(from_pretrained(where, device=place), where if common.is_run(where) else None)
    if not common.is_run(where):
        what = "a file" if where.is_file() else "a folder without either" if where.is_dir() else "not there"
        hint = common.published_hint(where)
        fail(f"MODEL must be the folder of a run or of a saved model, and {where} is {what}{hint}")
    if not (where / "model" / "config.json").is_file():
        fail(f"the run {where} has no model yet; finish it with: statespan train {where} --resume")
    return Opened(from_pretrained(where / "model", device=place), where)


def dataset_of(opened: Opened, data: Path | None, console: Console) -> Dataset | None:
    """The dataset of a run; None without a run."""
    if opened.run is None:
        return None
    common.need_training()
    from statespan.train import read_recipe

    return common.load_data(read_recipe(opened.run / "recipe.yaml"), data, console)


def inputs_of(opened: Opened, data: Path | None, console: Console) -> Inputs | None:
    """How the samples of a run are prepared; of a published model without its data. None without a run."""
    from statespan.cli import inputs

    if opened.run is not None and (found := stored_inputs(opened.run)) is not None:
        return found
    dataset = dataset_of(opened, data, console)
    return None if dataset is None else inputs.of_dataset(dataset)


def stored_inputs(folder: Path) -> Inputs | None:
    """What a published model keeps about its inputs, if that is all that is needed."""
    from statespan.cli import inputs

    if not (folder / "inputs.json").is_file():
        return None
    try:
        found = inputs.read(folder / "inputs.json")
    except ValueError as error:
        fail(str(error))
    return found if found.prepare is not None else None
