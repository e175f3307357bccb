"""``statespan eval``: the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from statespan._fail import fail
from statespan.cli import common
from statespan.cli.locate import find_run, trained_rate

RUN = "The folder of a run, or the name of a published model."
HELP = """Evaluate a trained model on its data.

RUN is the folder that `statespan train` made, or the name of a published model (statespan models). After it, key=value
overrides the data settings of its recipe.

\b
Examples:
  statespan eval runs/digits-s4d
  statespan eval digits-s4d                                   a published model, beside its record
  statespan eval runs/digits-s4d --split valid
  statespan eval runs/digits-s4d data.subsample=2 --dt-scale 2  every second sample, twice the step
  statespan eval sc10-s4-augment data.subsample=2 --sampling-rate 8000
"""


def eval(
    run: Annotated[Path, typer.Argument(metavar="RUN", help=RUN, show_default=False)],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Overrides, such as data.subsample=2.", show_default=False),
    ] = None,
    *,
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    dt_scale: common.DtScale = None,
    sampling_rate: common.SamplingRate = None,
    data: common.DataFolder = None,
    device: common.Device = None,
) -> None:
    """Evaluate; :data:`HELP` is the text for users."""
    common.need_training("eval")
    common.check_choice("--split", split, ("train", "valid", "test"))
    common.relative_step(1.0, dt_scale, sampling_rate)  # a mistake is reported before anything is loaded
    given, run = run, find_run(run)
    step = common.relative_step(trained_rate(run), dt_scale, sampling_rate)
    with common.explained():
        from statespan.train import evaluate, read_recipe
        from statespan.train.device import pick_device
        from statespan.train.run import without_others

        recipe = read_recipe(run / "recipe.yaml", changes or [])
        dataset = common.load_data(read_recipe(recipe, without_others(recipe, split)), data)
        published = (run / "config.json").is_file()
        exact = ["train.precision=fp32"] if published and pick_device(device).type == "cpu" else []
        with common.rejected():  # a registered layer may have no dt_scale
            metrics = evaluate(run, split, step, overrides=[*(changes or []), *exact], data=dataset, device=device)
    rows = len(getattr(dataset, split))
    at = "" if step == 1.0 else f", dt_scale {step:g}"
    common.say(f"{given}: {recipe.data['name']} {split}, {rows:,} rows{at}")
    if not metrics:
        fail(f"the {split} split of {recipe.data['name']} has no rows")
    for name, value in common.metric_rows(metrics):
        common.say(f"  {name:<12} {value:>10}")
    if (run / "record.json").is_file() and split == "test" and not changes and step == 1.0:
        _recorded(run)


def _recorded(folder: Path) -> None:
    """Print the recorded results of a published model, which were measured after its training."""
    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    name = record["metric"]
    ((_, value),) = common.metric_rows({name: record["test"][name]})
    where = f"{record['machine']['device']}, {record['recipe']['train']['precision']}"
    common.say(f"  {'its record':<12} {value:>10}  {name.replace('_', ' ')} on {where}")
