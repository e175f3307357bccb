"""Which model a command means: the folder of a run, or one that ``save_pretrained`` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from statespan._fail import fail
from statespan.commands import common

if TYPE_CHECKING:
    from rich.console import Console

    from statespan.data import Dataset

ARGUMENT = "The folder of a run, or of a saved model."


class Opened(NamedTuple):
    """A model, and the run it comes from, if any."""

    model: Any
    run: Path | None


def open_model(where: Path, device: str | None) -> Opened:
    """Load a model in evaluation mode.

    Args:
        where: The folder of a run or of a saved model.
        device: Where to put it; CUDA where there is some, if not given.
    """
    from statespan.models import from_pretrained
    from statespan.train.device import pick_device

    place = pick_device(device)
    if (where / "config.json").is_file():
        return Opened(from_pretrained(where, device=place), None)
    if not common.is_run(where):
        what = "a file" if where.is_file() else "a folder without either" if where.is_dir() else "not there"
        fail(f"MODEL must be the folder of a run or of a saved model, and {where} is {what}")
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
