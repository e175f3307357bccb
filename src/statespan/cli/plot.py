"""``statespan plot``: the command."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from statespan import _plugins
from statespan._fail import fail
from statespan.cli import common

KINDS = {
    "kernels": "convolution kernels of some heads",
    "basis": "the functions of time that kernels are made of",
    "eigenvalues": "eigenvalues of the state matrix",
    "response": "frequency responses",
    "impulse": "impulse responses of all heads over the logarithm of time",
    "steps": "the step sizes Δ, learned or fresh",
    "filters": "kernels as images, for models that read images row by row",
    "curves": "loss and metric of one or several runs",
    "forecasts": "forecasts of a run beside what came",
    "times": "validation of published runs against wall time, with the papers' numbers",
}
HELP = "\n".join(
    [
        "Draw a model, a run, or a layer that is not trained yet.",
        "",
        "SOURCE is the folder of a run or of a saved model, or the name of a published one (curves: one or several",
        "runs; times: a folder of records). Without one, a fresh layer is drawn: --layer and --init, and key=value",
        "for its other options.",
        "",
        "\b",
        "Kinds:",
        *(f"  {name:<12}{what}" for name, what in KINDS.items()),
        "",
        "\b",
        "Examples:",
        "  statespan plot kernels --layer s4d --init lin",
        "  statespan plot eigenvalues --layer s4d --init inv d_state=128 --out inv.svg",
        "  statespan plot response --layer s4 --init legs --length 16384",
        "  statespan plot steps runs/digits-s4d",
        "  statespan plot filters runs/digits-s4d --side 8",
        "  statespan plot curves runs/digits-s4d runs/digits-s4d-2",
        "  statespan plot times results/tasks",
        "",
        "Writes --out, .png or .svg; both where it has no ending.",
    ]
)


def plot(
    kind: Annotated[str | None, typer.Argument(metavar="KIND", help="What to draw.", show_default=False)] = None,
    source: Annotated[
        list[str] | None,
        typer.Argument(metavar="SOURCE | KEY=VALUE", help="Folders, or options of a layer.", show_default=False),
    ] = None,
    layer: Annotated[str, typer.Option(help="A fresh layer: s4, s4d, dss or lssl.")] = "s4d",
    init: Annotated[str | None, typer.Option(help="Its initialization. [default: the layer's own]")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to. [default: KIND.png and KIND.svg]")] = None,
    length: Annotated[int | None, typer.Option(help="Samples of a kernel.")] = None,
    heads: Annotated[int | None, typer.Option(help="Heads to draw.")] = None,
    side: Annotated[int | None, typer.Option(help="filters: pixels in a row. [default: from the run's data]")] = None,
    span: Annotated[float | None, typer.Option(help="basis: times 0 to this.")] = None,
    seed: Annotated[int, typer.Option(help="Of a fresh layer.")] = 0,
    data: common.DataFolder = None,
) -> None:
    """Draw; :data:`HELP` is the text for users."""
    if kind not in KINDS:
        what = "" if kind is None else f", got {kind!r}{common.guess(kind, KINDS)}"
        fail(f"KIND must be one of {', '.join(KINDS)}{what}")
    if find_spec("matplotlib") is None:
        fail('this command needs matplotlib: pip install "statespan[plot]"')
    common.need_training()
    words = source or []
    changes = [word for word in words if "=" in word]
    folders = [Path(word) for word in words if "=" not in word]
    given = {"length": length, "heads": heads, "side": side, "span": span}
    options = {key: value for key, value in given.items() if value is not None}
    with common.explained():
        from statespan import _plotting as _look

        try:
            files = _look.targets(Path(kind) if out is None else out)
            if not files[0].absolute().parent.is_dir():
                fail(f"--out must be in a folder that is there, got {out}")
            figure = _draw(kind, folders, changes, layer, init, seed, options, data)
        except (ValueError, TypeError) as error:
            if type(error).__name__ in ("ConfigError", "LoadError"):
                raise
            fail(str(error))
        from statespan import plot as drawing

        for path in drawing.save(figure, Path(kind) if out is None else out):
            common.terminal().print(f"picture  {path}", markup=False, soft_wrap=True)


def _draw(
    kind: str, folders: list[Path], changes: list[str], layer: str, init: str | None, seed: int,
    options: dict[str, Any], data: Path | None,
) -> Any:  # fmt: skip
    from statespan import plot as drawing

    if kind == "times":
        return _plugins.modules("statespan.plots")[kind].plot(folders)
    if kind in ("curves", "forecasts"):
        if not folders or (kind == "forecasts" and len(folders) > 1):
            fail(f"{kind} needs the folder of a run" + (", or several" if kind == "curves" else ""))
        runs = [common.find_run(folder) for folder in folders]
        if kind == "curves" and (bare := [run for run in runs if not (run / "log.csv").is_file()]):
            fail(f"curves needs the log of a run, and {bare[0]} has none; statespan plot times draws published runs")
        if kind == "curves":
            return drawing.curves({run.name if len(runs) > 1 else str(run): run for run in runs})
        return drawing.forecasts(runs[0], data=data, overrides=tuple(changes))
    if len(folders) > 1:
        fail(f"{kind} needs one folder, got {len(folders)}")
    if folders and changes:
        fail(f"{changes[0]} is an option of a fresh layer, and {folders[0]} is a folder: give one of the two")
    allowed = {
        "kernels": ("length", "heads"), "basis": ("span",), "impulse": ("length",), "filters": ("side", "heads"),
        "response": ("length", "heads"), "eigenvalues": (), "steps": (),
    }[kind]  # fmt: skip
    for key in options:
        if key not in allowed:
            fail(f"--{key} is not an option of {kind}" + (f": it has --{' and --'.join(allowed)}" if allowed else ""))
    if folders:
        folders = [common.locate(folders[0])]
        if not folders[0].is_dir():
            hint = common.published_hint(folders[0])
            fail(f"SOURCE must be the folder of a run or of a saved model, and {folders[0]} is none{hint}")
        parts = drawing.read_parts(folders[0])
    else:
        layer_options = {**({} if init is None else {"init": init}), **_options(changes)}
        parts = drawing.fresh(layer, layer_options, seed=seed)  # type: ignore[arg-type]
    if kind == "filters":
        options.setdefault("side", None)
        options["side"] = options["side"] or _side(folders)
        return drawing.filters(parts, **options)
    draw: Callable[..., Any] = getattr(drawing, kind)
    return draw(parts, **options)


def _options(changes: list[str]) -> dict[str, Any]:
    """Options of a layer from key=value, dots for those inside of others."""
    from statespan.train.strict import parse

    found: dict[str, Any] = {}
    for change in changes:
        key, _, text = change.partition("=")
        *above, last = key.split(".")
        place = found
        for part in above:
            place = place.setdefault(part, {})
        place[last] = parse(text, f"option {change}")
    return found


def _side(folders: list[Path]) -> int:
    """Pixels in a row, if the run's data are square images."""
    if folders and common.is_run(folders[0]):
        import statespan.data
        from statespan.train import read_recipe

        options = dict(read_recipe(folders[0] / "recipe.yaml").data)
        length = {"digits": 64, "smnist": 784, "pmnist": 784, "scifar": 1024, "image": 1024, "pathfinder": 1024}
        length |= {"path-x": 16384}
        if options["name"] in statespan.data.names() and options["name"] in length:
            return math.isqrt(length[options["name"]])
    fail("--side must say how many pixels a row of the images has, such as --side 32")
