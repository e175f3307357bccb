"""``statespan import-reference``: the command."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statespan._fail import fail
from statespan.cli import common

if TYPE_CHECKING:
    from statespan.models.base import Model
    from statespan.models.reference.options import ReferenceOptions
    from statespan.train import Recipe

HELP = """Convert weights of the papers' public code.

FILE is a checkpoint of the repository state-spaces/s4: .pt, .pth, .ckpt or .bin of torch.save, or .safetensors. No code
in it runs. The folder then contains a model for stream, export, predict and statespan.load, and also for eval if
--recipe names its data. A single layer, or a stack of layers without an encoder and a decoder, is saved as a model with
an output at every sample.

\b
Examples:
  statespan import-reference model.ckpt --out models/mine
  statespan import-reference s4.pt --out models/mine --dt-transform softplus
  statespan import-reference cifar.pt --out models/mine --recipe scifar-s4-legs

Settings that the weights do not contain (docs/reference.md) are given by options, or read from the config in a
Lightning checkpoint. The command prints the main ones that it used.
"""
FILE = "A checkpoint: .pt, .pth, .ckpt, .bin or .safetensors."
TRANSFORM = "exp, softplus, relu, sigmoid or none."


def import_reference(
    file: Annotated[Path, typer.Argument(metavar="FILE", help=FILE, show_default=False)],
    *,
    out: Annotated[Path, typer.Option(help="Folder to write; it must not contain a model.", show_default=False)],
    recipe: Annotated[str | None, typer.Option(help="Recipe that names the model's data, for eval.")] = None,
    prefix: Annotated[str, typer.Option(help="Read only names with this prefix.")] = "",
    dt_transform: Annotated[str | None, typer.Option(help=f"How inv_dt becomes Δ: {TRANSFORM}")] = None,
    real_transform: Annotated[str | None, typer.Option(help=f"How A_real becomes -Re A: {TRANSFORM}")] = None,
    imag_transform: Annotated[str | None, typer.Option(help=f"How A_imag becomes -Im A: {TRANSFORM}")] = None,
    disc: Annotated[str | None, typer.Option(help="Discretization of a diagonal SSM: zoh or bilinear.")] = None,
    activation: Annotated[str | None, typer.Option(help="Activation after the SSM: gelu or none.")] = None,
    l_kernel: Annotated[int | None, typer.Option(help="Length of S4's kernel, if not in the weights.")] = None,
    pool: Annotated[str | None, typer.Option(help="Pooling of the decoder: mean, last, first or none.")] = None,
    task: Annotated[str | None, typer.Option(help="Task: classification or regression.")] = None,
    dtype: Annotated[str, typer.Option(help="Dtype of the model: float32, as datasets need, or float64.")] = "float32",
) -> None:
    """Convert; :data:`HELP` is the text for users."""
    import torch

    common.need_training("import-reference")
    if not file.is_file():
        fail(f"FILE must be a checkpoint, and {file} is not a file")
    if any((out / name).exists() for name in ("config.json", "recipe.yaml")):
        fail(f"--out must be a folder without a model, and {out} has one")
    common.check_writable(out, "--out")
    common.check_choice("--dtype", dtype, ("float32", "float64"))
    with common.explained(), common.rejected():
        from statespan.models.reference.convert import read_model
        from statespan.models.reference.options import ReferenceOptions

        named = None if recipe is None else common.named_recipe(recipe, [])
        options = ReferenceOptions(
            dt_transform=dt_transform, real_transform=real_transform, imag_transform=imag_transform, disc=disc,
            activation=activation, l_kernel=l_kernel, pool=pool, task=task,
        )  # fmt: skip
        model, options = read_model(file, options, prefix=prefix, dtype=getattr(torch, dtype))
        _save(model, out, named)
    _report(model, options, out)


def _save(model: Model, out: Path, recipe: Recipe | None) -> None:
    """Write the model, and what other commands need to know about its data."""
    from statespan._io import replace_file
    from statespan.train.config import write_recipe

    model.save_pretrained(out)
    config = model.config
    if recipe is not None:
        of_data = ("d_input", "vocabulary", "d_output", "sampling_rate")
        fields = {key: value for key, value in config.to_dict().items() if key not in of_data}
        written = dataclasses.replace(recipe, model={"name": model.name, **fields})
        replace_file(out / "recipe.yaml", write_recipe(written).encode())
    elif model.name in ("classifier", "regressor") and config.d_input is not None:
        from statespan.data.scale import ScaledInfo

        info = ScaledInfo(model.tasks[0], 1, config.d_input, None, config.d_output)
        scale = {"scale": [1.0] * config.d_input, "shift": [0.0] * config.d_input, "order": []}
        content = {"info": dataclasses.asdict(info), "whole": False, "prepare": scale}
        replace_file(out / "inputs.json", json.dumps(content, indent=1).encode() + b"\n")


def _report(model: Model, options: ReferenceOptions, out: Path) -> None:
    config: Any = model.config
    weights = sum(p.numel() for p in model.parameters())
    common.say(
        f"{model.name}: {config.n_layers} × {config.layer}, d_model {config.d_model}, d_state {config.d_state}, "
        f"{weights:,} parameters"
    )
    used = {
        "dt_transform": options.dt_transform or "exp", "real_transform": options.real_transform or "exp",
        "disc": config.ssm.get("discretization", "bilinear"), "activation": options.activation or "gelu",
    }  # fmt: skip
    if hasattr(config, "pool"):
        used["pool"] = config.pool
    common.say("read with " + ", ".join(f"{name}={value}" for name, value in used.items()))
    common.say(f"written: {out}")
