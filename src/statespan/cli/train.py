"""``statespan train``: the command."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statespan._fail import complain, fail
from statespan.cli import common, installed
from statespan.cli.locate import is_run

if TYPE_CHECKING:
    from torch import nn

    from statespan.data import Dataset
    from statespan.train import Recipe, Result

HELP = """Train a recipe and test the model.

RECIPE is a name that `statespan recipes` lists, a YAML file of your own, or with --resume the folder of a run.
After it, key=value overrides the recipe.

\b
Examples:
  statespan train digits-s4d                          a minute on a CPU, nothing to download
  statespan train digits-s4d train.epochs=5 model.layer=s4 model.ssm.init=legs
  statespan train smnist-s4d --data ~/data --device cuda
  statespan train mine.yaml train.lr=0.004 train.batch=32
  statespan train mine.yaml train.start=runs/other    start from another run's weights
  statespan train runs/digits-s4d --resume            resume a run that was stopped
  statespan train --plugins                           list what installed packages add
  torchrun --nproc-per-node 8 -m statespan train smnist-s4d

Ctrl-C or SIGTERM saves the run and exits with 130 or 143; --resume then gives the same bits as an uninterrupted run.
Each run has its own folder in --folder: recipe.yaml, log.csv, curve.png, result.json, checkpoints/ and model/.
"""


def train(
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="Name, YAML file or folder of a run.", show_default=False)
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Overrides, such as train.lr=0.001.", show_default=False),
    ] = None,
    *,
    plugins: Annotated[bool, typer.Option("--plugins", help="List what installed packages add, and exit.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the newest run of this recipe.")] = False,
    folder: Annotated[Path, typer.Option(help="Folder of the runs.")] = common.RUNS,
    data: common.DataFolder = None,
    device: common.Device = None,
) -> None:
    """Train; :data:`HELP` is the text for users."""
    common.need_training("train")
    if plugins:
        installed.show()
        return
    with common.explained():
        from statespan.train import Interrupted, fit
        from statespan.train.device import pick_device
        from statespan.train.run import build_model, check_model, check_train
        from statespan.train.start import find_weights

        pick_device(device)
        chosen, run = _choose(recipe, changes or [], resume, folder)
        check_train(chosen)
        check_model(chosen)
        if chosen.train.start is not None and not resume:
            find_weights(chosen.train.start)
        dataset = common.load_data(chosen, data)
        model = build_model(chosen, dataset)
        _announce(chosen, dataset, model)
        common.say(f"  {'resume' if resume else 'folder'}  {run}")
        try:
            result = fit(chosen, run, resume=resume, data=dataset, model=model, progress=True, device=device)
        except (Interrupted, KeyboardInterrupt) as stopped:
            command = shlex.join(["statespan", "train", str(run), "--resume"])
            status = "saved" if isinstance(stopped, Interrupted) else "stopped; earlier checkpoints are kept"
            complain(f"{status} in {run}; resume with: {command}")
            sys.exit(stopped.code if isinstance(stopped, Interrupted) else 130)
    _show(result, chosen)


def _choose(text: str | None, changes: list[str], resume: bool, runs: Path) -> tuple[Recipe, Path]:
    """The recipe and the folder of its run."""
    from statespan.train import read_recipe

    if text is None or "=" in text:
        fail("name a recipe first, such as digits-s4d: statespan recipes lists them all")
    for change in changes:
        if "=" not in change:
            fail(f"overrides must be key=value, such as train.lr=0.001, got {change!r}; see statespan train --help")
    where = Path(text)
    if where.is_dir():
        if not is_run(where):
            fail(f"RECIPE must be a name, a YAML file or the folder of a run, but {text} is a folder without a run")
        if not resume:
            fail(f"{text} is the folder of a run: add --resume to continue it, or name a recipe to start another")
        return read_recipe(where / "recipe.yaml", changes), where
    if len(where.parts) > 1 and not where.exists() and where.suffix not in (".yaml", ".yml"):
        fail(f"RECIPE must be a name, a YAML file or the folder of a run, but {text} does not exist")
    recipe = common.named_recipe(text, changes)
    common.check_writable(runs)
    numbered = _runs(runs, recipe.name)
    if not resume:
        number = max(numbered, default=0) + 1
        return recipe, runs / (recipe.name if number == 1 else f"{recipe.name}-{number}")
    if not numbered:
        fail(f"there is no run of {recipe.name} in {runs} to resume; start one without --resume")
    run = numbered[max(numbered)]
    return read_recipe(run / "recipe.yaml", changes), run


def _runs(runs: Path, name: str) -> dict[int, Path]:
    """The runs of a recipe by number, among those that have written their recipe."""
    pattern = re.compile(rf"{re.escape(name)}(?:-(\d+))?\Z")
    folders = {int(match[1] or 1): path for path in runs.glob(f"{name}*") if (match := pattern.match(path.name))}
    return {number: path for number, path in folders.items() if is_run(path)}


def _announce(recipe: Recipe, dataset: Dataset, model: nn.Module) -> None:
    from rich.markup import escape

    info, train, number = dataset.info, recipe.train, _paper(recipe)
    paper = "" if number is None else ", ".join(part for part in (recipe.about.table, f"paper: {number}") if part)
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    rows = f"{len(dataset.train):,} / {len(dataset.valid):,} / {len(dataset.test):,}"
    length = f"train/valid/test {rows}, {info.task}, length {info.length:,}"
    config: Any = getattr(model, "config", None)
    is_stack = config is None or hasattr(config, "layer")
    kind = f" of {str(recipe.model.get('layer', 's4')).upper()}" if is_stack else ""
    shape = f", {config.n_layers} layers, {config.d_model} features" if config and is_stack else ""
    duration = f"{train.steps:,} steps" if train.steps else f"{train.epochs} epochs"
    common.terminal().print(f"[bold]{escape(recipe.name)}[/bold]  {escape(paper)}".rstrip())
    common.say(f"  data    {recipe.data['name']}: {length}")
    if dataset.note:
        common.say(f"          {dataset.note}")
    common.say(f"  model   {recipe.model['name']}{kind}{shape}, {parameters:,} parameters")
    common.say(f"  train   {duration}, batch {train.batch}, lr {train.lr:g}, {train.precision}")
    if train.start is not None:
        common.say(f"  start   the weights of {train.start}")
    if recipe.overrides:
        common.say(f"  changed {' '.join(recipe.overrides)}")


def _paper(recipe: Recipe) -> str | float | int | None:
    """The paper's number for the row of the table that the overrides give; None if they change the data otherwise."""
    from statespan.train import recipes

    changes = {change.replace(" ", "") for change in recipe.overrides}
    other = {change for change in changes if change.partition("=")[0].partition(".")[0] in ("name", "data")}
    rows = recipes.rows(recipe.name) if recipe.name in recipes.names() else []
    fitting = [row for row in rows if other <= {*row.overrides} <= changes]
    if fitting:
        return max(fitting, key=lambda row: len(row.overrides)).number
    return None if other else recipe.about.number


def _show(result: Result, recipe: Recipe) -> None:
    table = common.table("", "test", "valid", right=["test", "valid"])
    valid = dict(common.metric_rows(result.valid))
    for name, value in common.metric_rows(result.test):
        best = name == result.metric.replace("_", " ")
        table.add_row(name, value, valid.get(name, ""), style="bold" if best else None)
    common.say("")
    common.terminal().print(table)
    number = _paper(recipe)
    paper = "" if number is None else f"; the paper has {number}"
    weights = f"weights of step {result.best_step} of {result.steps}"
    if recipe.train.select == "test":
        weights += ", selected on the test data"
    common.say(f"{weights}, {common.duration(result.seconds)}{paper}")
    if result.start is not None:
        fitted = f"{result.start['tensors']} of {result.start['of']} tensors"
        common.say(f"start    {fitted} from {result.start['name']}")
    common.say(f"run      {result.folder}")
    for picture in sorted(result.folder.glob("*.png")):
        common.say(f"picture  {picture}")
    common.say(f"next     statespan eval {shlex.quote(str(result.folder))}")
