"""``statespan eval``: the command."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from statespan._fail import fail
from statespan.commands import common

HELP = """Measure a trained model on its data.

RUN is the folder that `statespan train` made. After it, key=value changes what its recipe says about the data.

\b
Examples:
  statespan eval runs/digits-s4d
  statespan eval runs/digits-s4d --split valid
  statespan eval runs/digits-s4d data.subsample=2 --rate 2    every second sample, the step twice as long
"""


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.", show_default=False)],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Changes, such as data.subsample=2.", show_default=False),
    ] = None,
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    rate: Annotated[float, typer.Option(help="Step relative to training: 2.0 for data sampled half as often.")] = 1.0,
    data: common.DataFolder = None,
    device: common.Device = None,
) -> None:
    """Evaluate; :data:`HELP` is the text for users."""
    common.need_training()
    if split not in ("train", "valid", "test"):
        fail(f"--split must be train, valid or test, got {split!r}{common.guess(split, ('train', 'valid', 'test'))}")
    check_rate(rate)
    run = common.find_run(run)
    console = common.terminal()
    with common.explained():
        from statespan.train import evaluate as measure
        from statespan.train import read_recipe

        recipe = read_recipe(run / "recipe.yaml", changes or [])
        dataset = common.load_data(recipe, data, console)
        found = measure(run, split, rate, overrides=changes or [], data=dataset, device=device)
    rows = len(getattr(dataset, split))
    at = "" if rate == 1.0 else f", rate {rate:g}"
    console.print(f"{run}: {recipe.data['name']} {split}, {rows:,} rows{at}", markup=False, soft_wrap=True)
    if not found:
        fail(f"the {split} split of {recipe.data['name']} has no rows")
    for name, value in common.metric_rows(found):
        console.print(f"  {name:<12} {value:>10}", markup=False)


def check_rate(rate: float) -> None:
    """Refuse a step that is none."""
    if not (math.isfinite(rate) and rate > 0):
        fail(f"--rate must be a number > 0, such as 2.0 for data sampled half as often, got {rate:g}")
