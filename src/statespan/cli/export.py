"""``statespan export``: the command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from statespan._fail import fail
from statespan.cli import common
from statespan.cli.locate import Model, open_model

HELP = """Export a trained model for other programs.

The step view maps one sample and the state to the output and the new state, for streaming and generation on any device.
The sequence view maps whole sequences. Both use real arithmetic only, accept any batch and length, and are checked
against the model before the command ends.

A trained model is exported with the scaling of its training data: recorded values in, classes or values in their own
units out. The last line says what the file reads. Class names and units are in its metadata.

\b
Examples:
  statespan export runs/digits-s4d                                     model-step.onnx
  statespan export runs/digits-s4d --view sequence --out digits.onnx
  statespan export runs/digits-s4d --to torch-export                   for torch.export.load

ONNX needs: pip install "statespan[export]"
"""


def export(
    where: Model,
    *,
    to: Annotated[str, typer.Option(help="onnx or torch-export.")] = "onnx",
    view: Annotated[str, typer.Option(help="step or sequence.")] = "step",
    out: Annotated[
        Path | None, typer.Option(help="The file to write. [default: model-VIEW.onnx or .pt2]", show_default=False)
    ] = None,
    dt_scale: common.DtScale = None,
    sampling_rate: common.SamplingRate = None,
    scale: Annotated[
        bool, typer.Option("--scale/--no-scale", help="Put the scaling of the training data into the file.")
    ] = True,
    state: Annotated[str, typer.Option(help="Precision of the states of a step: float64 or float32.")] = "float64",
) -> None:
    """Export; :data:`HELP` is the text for users."""
    import torch

    from statespan.export.views import VIEWS
    from statespan.export.write import FORMATS, SUFFIX, ExportError, describe_inputs
    from statespan.export.write import export as write

    for name, value, allowed in (("to", to, FORMATS), ("view", view, VIEWS), ("state", state, ("float64", "float32"))):
        common.check_choice(f"--{name}", value, allowed)
    common.relative_step(1.0, dt_scale, sampling_rate)
    path = Path(f"model-{view}{SUFFIX[to]}") if out is None else out
    common.check_output("--out", path)
    if to == "onnx":
        common.need("export", "safetensors", "onnx", "onnxscript", "onnxruntime")
    with common.explained():
        model = open_model(where, "cpu").model
        step = common.relative_step(model.config.sampling_rate, dt_scale, sampling_rate)
        dtype = {"float64": torch.float64, "float32": torch.float32}[state]
        options: dict[str, Any] = {"to": to, "view": view, "dt_scale": step, "state_dtype": dtype, "scale": scale}
        try:
            error = write(model, path, **options)
        except ExportError as problem:
            common.give_up(f"{path} was written but is wrong: {problem}")
        except ValueError as problem:
            fail(str(problem))
    common.say(f"written: {path}")
    common.say(f"compared with the model: differs by at most {error:.1e} of the peak")
    common.say(f"inputs: {describe_inputs(model, scale=scale)}")
