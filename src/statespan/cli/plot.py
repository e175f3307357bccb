"""``statespan plot``: the command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from statespan import _plugins
from statespan._fail import fail
from statespan._suggest import suggest
from statespan.cli import common
from statespan.cli.locate import find_run, is_run, locate, missing_hint

KINDS = {
    "kernels": "convolution kernels of some heads",
    "basis": "basis functions of time, which kernels are sums of",
    "eigenvalues": "eigenvalues of the state matrix",
    "response": "frequency responses",
    "impulse": "impulse responses of all heads over the logarithm of time",
    "accuracy": "error of each discretization over the step size",
    "steps": "step sizes Δ, learned or fresh",
    "filters": "kernels as images, for models that read images row by row",
    "curves": "loss and metric of one or several runs",
    "forecasts": "forecasts of a run and the true values",
    "times": "validation of published runs against wall time, with the papers' numbers",
}
OPTIONS: dict[str, tuple[str, ...]] = {
    "kernels": ("length", "heads"), "basis": ("span",), "impulse": ("length",), "filters": ("side", "heads"),
    "response": ("length", "heads"), "eigenvalues": (), "steps": (), "accuracy": (),
}  # fmt: skip
"""Options of the kinds that plot layers; the others plot runs."""
SIDES = {"digits": 8, "smnist": 28, "pmnist": 28, "scifar": 32, "image": 32, "pathfinder": 32, "path-x": 128}
"""Pixels per row of the datasets of square images."""
KIND_LINES = "\n".join(f"  {name:<12}{what}" for name, what in KINDS.items())
HELP = f"""Plot a model, a run, or an untrained layer.

SOURCE is the folder of a run or of a saved model, or the name of a published model (curves: one or several
runs; times: a folder of records). Without one, an untrained layer is plotted: --layer, --init, and key=value
for its other options.

\b
Kinds:
{KIND_LINES}

\b
Examples:
  statespan plot kernels --layer s4d --init lin
  statespan plot eigenvalues --layer s4d --init inv d_state=128 --out inv.svg
  statespan plot response --layer s4 --init legs --length 16384
  statespan plot steps runs/digits-s4d
  statespan plot filters runs/digits-s4d --side 8
  statespan plot curves runs/digits-s4d runs/digits-s4d-2
  statespan plot times results/tasks

Writes --out, .png or .svg; both if it has no ending.
"""


def plot(
    kind: Annotated[str | None, typer.Argument(metavar="KIND", help="What to plot.", show_default=False)] = None,
    source: Annotated[
        list[str] | None,
        typer.Argument(metavar="SOURCE | KEY=VALUE", help="Folders, or options of a layer.", show_default=False),
    ] = None,
    *,
    layer: Annotated[str, typer.Option(help="An untrained layer: s4, s4d, dss, lssl, s5 or lru.")] = "s4d",
    init: Annotated[str | None, typer.Option(help="Its initialization. [default: the layer's own]")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write. [default: KIND.png and KIND.svg]")] = None,
    length: Annotated[int | None, typer.Option(help="Length of a kernel, in samples.")] = None,
    heads: Annotated[int | None, typer.Option(help="Number of heads to plot.")] = None,
    side: Annotated[int | None, typer.Option(help="filters: pixels in a row. [default: from the run's data]")] = None,
    span: Annotated[float | None, typer.Option(help="basis: end of the time axis.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of an untrained layer.")] = 0,
    data: common.DataFolder = None,
) -> None:
    """Plot; :data:`HELP` is the text for users."""
    if kind not in KINDS:
        hint = "" if kind is None else f", got {kind!r}{suggest(kind, KINDS)}"
        fail(f"KIND must be one of {', '.join(KINDS)}{hint}")
    common.need("plot", "matplotlib", "lightning", "safetensors", "yaml")
    words = source or []
    changes = [word for word in words if "=" in word]
    folders = [Path(word) for word in words if "=" not in word]
    given = {"length": length, "heads": heads, "side": side, "span": span}
    options = {key: value for key, value in given.items() if value is not None}
    target = Path(kind) if out is None else out
    with common.explained():
        from statespan import _plotting
        from statespan import plot as drawing
        from statespan.train.config import apply_override

        with common.rejected():
            common.check_output("--out", _plotting.targets(target)[0])
            if kind not in OPTIONS:
                figure = _of_runs(kind, folders, changes, data)
            else:
                _check(kind, folders, changes, options)
                if folders:
                    folders = [_located(folders[0])]
                    parts = drawing.read_parts(folders[0])
                else:
                    chosen: dict[str, Any] = {} if init is None else {"init": init}
                    for change in changes:
                        apply_override(chosen, change, "option")
                    parts = drawing.fresh(layer, chosen, seed=seed)  # type: ignore[arg-type]
                if kind == "filters":
                    options["side"] = options.get("side") or _side(folders)
                figure = getattr(drawing, kind)(parts, **options)
        for path in drawing.save(figure, target):
            common.say(f"picture  {path}")


def _of_runs(kind: str, folders: list[Path], changes: list[str], data: Path | None) -> Any:
    from statespan import plot as drawing

    if kind == "times":
        return _plugins.modules("statespan.plots")[kind].plot(folders)
    if not folders or (kind == "forecasts" and len(folders) > 1):
        fail(f"{kind} needs the folder of a run" + (", or several" if kind == "curves" else ""))
    runs = [find_run(folder) for folder in folders]
    if kind == "forecasts":
        return drawing.forecasts(runs[0], data=data, overrides=tuple(changes))
    if bare := [run for run in runs if not (run / "log.csv").is_file()]:
        fail(f"curves needs the log of a run, but {bare[0]} has none; statespan plot times draws published runs")
    return drawing.curves({run.name if len(runs) > 1 else str(run): run for run in runs})


def _check(kind: str, folders: list[Path], changes: list[str], options: dict[str, Any]) -> None:
    """Reject options that the plot of a layer cannot use."""
    if len(folders) > 1:
        fail(f"{kind} needs one folder, got {len(folders)}")
    if folders and changes:
        fail(f"{changes[0]} is an option of an untrained layer, but {folders[0]} is a folder: give one or the other")
    allowed = OPTIONS[kind]
    for key in options:
        if key not in allowed:
            fail(f"--{key} is not an option of {kind}" + (f": it has --{' and --'.join(allowed)}" if allowed else ""))


def _located(where: Path) -> Path:
    folder = locate(where)
    if not folder.is_dir():
        fail(f"SOURCE must be the folder of a run or of a saved model, got {folder}{missing_hint(folder)}")
    return folder


def _side(folders: list[Path]) -> int:
    """Pixels per row, if the run's data are square images."""
    if folders and is_run(folders[0]):
        from statespan.train import read_recipe

        name = read_recipe(folders[0] / "recipe.yaml").data["name"]
        if name in SIDES:
            return SIDES[name]
    fail("--side must be the number of pixels in a row of the images, such as --side 32")
