"""Writes a view of a model as ONNX or as an exported program of torch, and compares it with the model.

Shapes: B batch, L length.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.export import Dim

from statespan._check import check_choice, check_number
from statespan._extras import require
from statespan._quiet import quiet
from statespan.export.views import VIEWS, View, ViewName, example, view_of
from statespan.models.base import Model

Format: TypeAlias = Literal["onnx", "torch-export"]
FORMATS: tuple[str, ...] = get_args(Format)
SUFFIX = {"onnx": ".onnx", "torch-export": ".pt2"}
TOLERANCE = 1e-5
"""Allowed difference from the model, of the peak; 0.02 for models of 16 bits."""


Runner: TypeAlias = Callable[..., list[Tensor]]
"""Runs what was written, from its inputs to its outputs."""


class ExportError(RuntimeError):
    """The exported file does not compute the same as the model.

    Example:
        >>> try:
        ...     raise ExportError("y is off by 1.0e-01 of its peak, allowed: 1e-05")  # as export does
        ... except RuntimeError as error:
        ...     print(error)
        y is off by 1.0e-01 of its peak, allowed: 1e-05
    """


def export(
    model: Any,
    path: str | Path,
    *,
    to: Format = "onnx",
    view: ViewName = "step",
    dt_scale: float = 1.0,
    state_dtype: torch.dtype = torch.float64,
    scale: bool = True,
    check: bool = True,
) -> float | None:
    """Export a model for other programs: real numbers only, any batch, any length.

    The step has the inputs ``x`` (B, …), for a forecaster ``future`` (B, 1) and ``marks`` if it has any, and
    ``state_0`` …, all of which begin as zeros; its outputs are ``y`` and ``new_state_0`` …. The sequence has the inputs
    ``x`` (B, L, …) and ``marks``, and the output ``y``.

    If ``model.inputs`` has the scaling of the training data, ``x`` are recorded values (audio in [-1, 1)), and a
    regression answers in its own units. The metadata describes it; :func:`describe_inputs` says it in words.

    Args:
        model: Any statespan model; a step needs a causal one.
        path: The file to write.
        to: "onnx" (needs onnx and onnxscript), or "torch-export" for ``torch.export.load``.
        view: "step" or "sequence".
        dt_scale: Step of the data relative to that of training.
        state_dtype: Of the SSMs' states in the step.
        scale: Put the scaling into the file, if the model has one.
        check: Compare with the model at other sizes; ONNX needs onnxruntime for it.

    Returns:
        The largest difference over the peak, or None if nothing was compared.

    Raises:
        ExportError: The comparison failed; the file is there to look at.

    Example:
        >>> import tempfile
        >>> from statespan.models import Classifier, ClassifierConfig
        >>> model = Classifier(ClassifierConfig(d_input=1, d_output=3, d_model=4, n_layers=1, layer="s4d")).eval()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     error = export(model, Path(folder, "model.pt2"), to="torch-export")
        >>> error < 1e-5
        True
    """
    if not isinstance(model, Model):
        raise TypeError(f"model must be a statespan model, got {type(model).__name__}")
    check_choice("to", to, FORMATS)
    check_choice("view", view, VIEWS)
    check_number("dt_scale", dt_scale, above=0.0)
    if next(model.parameters()).device.type != "cpu":
        model = copy.deepcopy(model).cpu()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        traced, inputs = view_of(model, view, dt_scale, state_dtype, scale=scale)
        traced = replace(traced, facts=_facts(model, traced))
        run = (_onnx if to == "onnx" else _program)(traced, inputs, Path(path), check)
        return _largest_difference(model, traced, run, dt_scale) if check else None


def describe_inputs(model: Any, *, scale: bool = True) -> str:
    """What an exported model reads, in one line.

    Args:
        model: The model.
        scale: As in :func:`export`.
    """
    inputs = model.inputs
    if getattr(model.config, "vocabulary", None) is not None:
        return "x is tokens"
    if inputs is None:
        return "x is what the model was trained on; it has no scaling of its own"
    if inputs.scaled is None:
        return "x must be prepared as the dataset does, which is more than a scaling"
    order = ", in the order of positions in the metadata" if inputs.scaled.order else ""
    if not scale:
        return f"x must be scaled as the training data, by the numbers in the metadata{order}"
    audio = ", audio in [-1, 1)" if inputs.whole else ""
    return f"x is recorded values{audio}, which the model scales{order}"


def _facts(model: Model, view: View) -> dict[str, str]:
    """What the metadata of a file says about its inputs."""
    if model.inputs is None:
        return {}
    kind = "recorded" if view.scaling is not None else "scaled"
    return {"statespan.x": kind, "statespan.inputs": json.dumps(model.inputs.to_json())}


def _largest_difference(model: Model, view: View, run: Runner, dt_scale: float) -> float:
    """The largest difference from the model, at two sizes other than the traced one."""
    few = 4 if view.paired else 1
    sizes = ((few, view.least + 131), (6, view.least)) if view.has_length else ((few, 1), (6, 1))
    allowed = TOLERANCE if next(model.parameters()).dtype.itemsize >= 4 else 0.02
    differences = []
    for batch, length in sizes:
        inputs = example(model, view, batch, length)
        if view.has_length:
            x = inputs[0] if view.scaling is None else view.scaling(inputs[0])
            expected = model(x, dt_scale=dt_scale, **dict(zip(view.inputs[1:], inputs[1:])))
            expected = expected if view.scaling is None else view.scaling.answers(expected)
        else:
            expected = view.module(*inputs)
        differences.append(_difference(view.outputs, run(*inputs), _listed(expected), allowed))
    return max(differences)


def _program(view: View, inputs: tuple[Tensor, ...], path: Path, check: bool) -> Runner:
    program = _traced(view, inputs)
    names = {"statespan.x": "x.txt", "statespan.inputs": "inputs.json"}
    torch.export.save(program, path, extra_files={names[key]: text for key, text in view.facts.items()})
    module = program.module()
    return lambda *given: _listed(module(*given))


def _traced(view: View, inputs: tuple[Tensor, ...]) -> torch.export.ExportedProgram:
    axes: Any = {0: 2 * Dim("pairs", min=2) if view.paired else Dim("batch", min=1)}
    if view.has_length:
        dynamic: Any = (axes | {1: Dim("length", min=view.least)},) * len(view.inputs)
    else:  # x, and the rest in one tuple
        dynamic = axes, (axes,) * (len(view.inputs) - 1)
    with quiet("torch.onnx", "torch.export", "onnxscript", "onnx_ir"):
        return torch.export.export(
            view.module,
            inputs,
            dynamic_shapes=dynamic,
            strict=False,
            prefer_deferred_runtime_asserts_over_guards=True,  # it cannot prove that L < 64 (L // 64 + 2)
        )


def _onnx(view: View, inputs: tuple[Tensor, ...], path: Path, check: bool) -> Runner:
    require("ONNX needs", "export", "onnx", "onnxscript", "onnxruntime")
    import onnxscript  # noqa: F401  torch asks for it with a page of advice

    program = _traced(view, inputs)
    with quiet("torch.onnx", "torch.export", "onnxscript", "onnx_ir"):
        exported: Any = torch.onnx.export(
            program, (), dynamo=True, input_names=list(view.inputs), output_names=list(view.outputs), verbose=False
        )
    _rename(exported.model, view)
    exported.model.metadata_props.update(view.facts)
    exported.save(path)
    if not check:
        return lambda *given: []
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]

    def run(*given: Tensor) -> list[Tensor]:
        feed = dict(zip(view.inputs, given, strict=True))
        return [torch.from_numpy(y) for y in session.run(None, {name: feed[name].numpy() for name in names})]

    return run


def _rename(model: Any, view: View) -> None:
    """Rename the dynamic axes, which the tracer only numbered."""
    import onnx_ir

    first = model.graph.inputs[0].shape
    names = {str(first[0]): "batch"} | ({str(first[1]): "length"} if view.has_length else {})
    for value in [*model.graph.inputs, *(out for node in model.graph for out in node.outputs)]:
        if value.shape is not None:
            value.shape = onnx_ir.Shape([names.get(str(d), d if isinstance(d, int) else str(d)) for d in value.shape])


def _difference(names: Sequence[str], written: list[Tensor], expected: list[Tensor], allowed: float) -> float:
    """The largest difference of the outputs, relative to their peaks."""
    largest = 0.0
    for name, y, wanted in zip(names, written, expected, strict=True):
        if y.shape != wanted.shape or y.dtype != wanted.dtype:
            shape, wanted_shape = tuple(y.shape), tuple(wanted.shape)
            raise ExportError(f"{name} is {y.dtype} of shape {shape}, not {wanted.dtype} of shape {wanted_shape}")
        error = float((y.double() - wanted.double()).abs().max() / wanted.double().abs().max().clamp(min=1e-30))
        if not error <= allowed:
            raise ExportError(f"{name} is off by {error:.1e} of its peak, allowed: {allowed:.0e}")
        largest = max(largest, error)
    return largest


def _listed(y: Any) -> list[Tensor]:
    return [y] if isinstance(y, Tensor) else list(y)
