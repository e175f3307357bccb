"""``statespan eval``: the command."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from statespan._fail import fail
from statespan.cli import common

if TYPE_CHECKING:
    from rich.console import Console

ARGUMENT = "The folder of a run, or the name of a published model."
HELP = """Measure a trained model on its data.

RUN is the folder that `statespan train` made, or the name of a published model (statespan models). After it, key=value
changes what its recipe says about the data.

\b
Examples:
  statespan eval runs/digits-s4d
  statespan eval digits-s4d                                   a published model, and what its record says
  statespan eval runs/digits-s4d --split valid
  statespan eval runs/digits-s4d data.subsample=2 --dt-scale 2  every second sample, twice the step
"""


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help=ARGUMENT, show_default=False)],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Changes, such as data.subsample=2.", show_default=False),
    ] = None,
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    dt_scale: Annotated[
        float, typer.Option(help="Step relative to training: 2.0 for data sampled half as often.")
    ] = 1.0,
    data: common.DataFolder = None,
    device: common.Device = None,
) -> None:
    """Evaluate; :data:`HELP` is the text for users."""
    common.need_training()
    if split not in ("train", "valid", "test"):
        fail(f"--split must be train, valid or test, got {split!r}{common.guess(split, ('train', 'valid', 'test'))}")
    check_dt_scale(dt_scale)
    given, run = run, common.find_run(run)
    console = common.terminal()
    with common.explained():
        from statespan.train import evaluate as measure
        from statespan.train import read_recipe
        from statespan.train.device import pick_device
        from statespan.train.run import without_others

        recipe = read_recipe(run / "recipe.yaml", changes or [])
        dataset = common.load_data(read_recipe(recipe, without_others(recipe, split)), data, console)
        published = (run / "config.json").is_file()
        exact = ["train.precision=fp32"] if published and pick_device(device).type == "cpu" else []
        found = measure(run, split, dt_scale, overrides=[*(changes or []), *exact], data=dataset, device=device)
    rows = len(getattr(dataset, split))
    at = "" if dt_scale == 1.0 else f", dt_scale {dt_scale:g}"
    console.print(f"{given}: {recipe.data['name']} {split}, {rows:,} rows{at}", markup=False, soft_wrap=True)
    if not found:
        fail(f"the {split} split of {recipe.data['name']} has no rows")
    for name, value in common.metric_rows(found):
        console.print(f"  {name:<12} {value:>10}", markup=False)
    if published and split == "test" and not changes and dt_scale == 1.0:
        _recorded(run, console)


def _recorded(folder: Path, console: Console) -> None:
    """What the record of a published model says, which is what was measured when it had been trained."""
    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    name = record["metric"]
    ((_, value),) = common.metric_rows({name: record["test"][name]})
    where = f"{record['hardware']['device']}, {record['recipe']['train']['precision']}"
    console.print(
        f"  {'its record':<12} {value:>10}  {name.replace('_', ' ')} on {where}", markup=False, soft_wrap=True
    )


def check_dt_scale(dt_scale: float) -> None:
    """Refuse a step that is none."""
    if not (math.isfinite(dt_scale) and dt_scale > 0):
        fail(f"--dt-scale must be a number > 0, such as 2.0 for data sampled half as often, got {dt_scale:g}")
