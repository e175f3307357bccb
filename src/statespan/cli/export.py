"""``statespan export``: the command."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from statespan._fail import fail
from statespan.cli import common
from statespan.cli.eval import check_dt_scale
from statespan.cli.models import ARGUMENT, open_model

HELP = """Write a trained model for other programs.

The step takes one sample and the state, and gives the answer and the new state: for streaming and generation on any
device. The sequence takes whole sequences. Both are real arithmetic only, with any batch and any length, and are
compared with the model before the command ends.

\b
Examples:
  statespan export runs/digits-s4d                                     model-step.onnx
  statespan export runs/digits-s4d --view sequence --out digits.onnx
  statespan export runs/digits-s4d --to torch-export                   for torch.export.load

ONNX needs: pip install "statespan[export]"
"""


def export(
    where: Annotated[Path, typer.Argument(metavar="MODEL", help=ARGUMENT, show_default=False)],
    to: Annotated[str, typer.Option(help="onnx or torch-export.")] = "onnx",
    view: Annotated[str, typer.Option(help="step or sequence.")] = "step",
    out: Annotated[
        Path | None, typer.Option(help="The file to write. [default: model-VIEW.onnx or .pt2]", show_default=False)
    ] = None,
    dt_scale: Annotated[
        float, typer.Option(help="Step relative to training: 2.0 for data sampled half as often.")
    ] = 1.0,
    state: Annotated[str, typer.Option(help="Precision of the states of a step: float64 or float32.")] = "float64",
) -> None:
    """Export; :data:`HELP` is the text for users."""
    import torch

    from statespan.export.views import VIEWS
    from statespan.export.write import FORMATS, SUFFIX, ExportError
    from statespan.export.write import export as write

    for name, value, allowed in (("to", to, FORMATS), ("view", view, VIEWS), ("state", state, ("float64", "float32"))):
        if value not in allowed:
            fail(f"--{name} must be {' or '.join(allowed)}, got {value!r}{common.guess(value, allowed)}")
    check_dt_scale(dt_scale)
    path = Path(f"model-{view}{SUFFIX[to]}") if out is None else out
    if not path.absolute().parent.is_dir() or path.is_dir():
        fail(f"--out must be a file in a folder that is there, got {path}")
    if to == "onnx" and (
        missing := [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    ):
        fail(f'--to onnx needs {" and ".join(missing)}: pip install "statespan[export]"')
    with common.explained():
        model = open_model(where, "cpu").model
        dtype = {"float64": torch.float64, "float32": torch.float32}[state]
        try:
            error = write(model, path, to=to, view=view, dt_scale=dt_scale, state_dtype=dtype)  # type: ignore[arg-type]
        except ExportError as problem:
            common.give_up(f"{path} was written, and is wrong: {problem}")
        except ValueError as problem:
            fail(str(problem))
    console = common.terminal()
    console.print(f"written: {path}", markup=False, soft_wrap=True)
    console.print(f"compared with the model: differs by at most {error:.1e} of the peak", markup=False)
