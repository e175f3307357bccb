"""Writing a view of a model as ONNX or as an exported program of torch, and comparing it with the model.

Shapes: B batch, L length.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim

from statespan._check import check_choice, check_number
from statespan._quiet import quiet
from statespan.export.views import VIEWS, View, example, view_of
from statespan.models.base import Model

FORMATS = ("onnx", "torch-export")
SUFFIX = {"onnx": ".onnx", "torch-export": ".pt2"}
TOLERANCE = 1e-5
"""Allowed difference from the model, of the peak; 0.02 for models of 16 bits."""


class ExportError(RuntimeError):
    """What was written does not compute what the model does."""


def export(
    model: Any,
    path: str | Path,
    *,
    to: str = "onnx",
    view: str = "step",
    dt_scale: float = 1.0,
    state_dtype: torch.dtype = torch.float64,
    check: bool = True,
) -> float | None:
    """Write a model for other programs: real numbers only, any batch, any length.

    The step has the inputs ``x`` (B, …), for a forecaster ``future`` (B, 1) and ``marks`` where there are some, and
    ``state_0`` …, all of which begin as zeros; its outputs are ``y`` and ``new_state_0`` …. The sequence has the inputs
    ``x`` (B, L, …) and ``marks``, and the output ``y``.

    Args:
        model: Any statespan model; a step needs a causal one.
        path: The file to write.
        to: "onnx" (needs onnx and onnxscript), or "torch-export" for ``torch.export.load``.
        view: "step" or "sequence".
        dt_scale: Step of the data relative to that of training.
        state_dtype: Of the SSMs' states in the step.
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
    path = Path(path)
    if next(model.parameters()).device.type != "cpu":
        model = copy.deepcopy(model).cpu()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found, inputs = view_of(model, view, dt_scale, state_dtype)
        run = (_onnx if to == "onnx" else _program)(found, inputs, path, check)
        if not check:
            return None
        few = 4 if found.paired else 1
        sizes = ((few, found.least + 131), (6, found.least)) if found.lengthy else ((few, 1), (6, 1))
        allowed = TOLERANCE if next(model.parameters()).dtype.itemsize >= 4 else 0.02
        errors = []
        for size in sizes:
            given = example(model, found, *size)
            wanted = (
                model(*given[:1], dt_scale=dt_scale, **dict(zip(found.inputs[1:], given[1:])))
                if found.lengthy
                else None
            )
            errors.append(_difference(found, run, given, wanted, allowed))
        return max(errors)


def shapes(view: View, inputs: tuple[Tensor, ...]) -> dict[str, Any]:
    """Which axes of the inputs may have other sizes."""
    batch: Any = 2 * Dim("pairs", min=2) if view.paired else Dim("batch", min=1)
    length = Dim("length", min=view.least) if view.lengthy else None
    return {name: {0: batch, 1: length} if name in view.lengthy else {0: batch} for name in view.inputs}


def _program(view: View, inputs: tuple[Tensor, ...], path: Path, check: bool) -> Callable[..., list[Tensor]]:
    program = _traced(view, inputs)
    torch.export.save(program, path)
    module = program.module()
    return lambda *given: _listed(module(*given))


def _traced(view: View, inputs: tuple[Tensor, ...]) -> torch.export.ExportedProgram:
    axes = shapes(view, inputs)
    if view.lengthy:
        dynamic: Any = tuple(axes[name] for name in view.inputs)
    else:  # x, and the rest in one tuple
        named = 2 if "future" in view.inputs else 1
        each = tuple(axes[name] for name in view.inputs)
        dynamic = (*each[:named], each[named:])
    with quiet("torch.onnx", "torch.export", "onnxscript", "onnx_ir"):
        return torch.export.export(
            view.module,
            inputs,
            dynamic_shapes=dynamic,
            strict=False,
            prefer_deferred_runtime_asserts_over_guards=True,  # it cannot prove that L < 64 (L // 64 + 2)
        )


def _onnx(view: View, inputs: tuple[Tensor, ...], path: Path, check: bool) -> Callable[..., list[Tensor]]:
    import onnxscript  # noqa: F401  which torch would ask for with a page of advice

    program = _traced(view, inputs)
    with quiet("torch.onnx", "torch.export", "onnxscript", "onnx_ir"):
        made: Any = torch.onnx.export(
            program, (), dynamo=True, input_names=list(view.inputs), output_names=list(view.outputs), verbose=False
        )
    _rename(made.model, view)
    made.save(path)
    if not check:
        return lambda *given: []
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]

    def run(*given: Tensor) -> list[Tensor]:
        feed = dict(zip(view.inputs, given, strict=True))
        return [torch.from_numpy(y) for y in session.run(None, {name: feed[name].numpy() for name in names})]

    return run


def _rename(model: Any, view: View) -> None:
    """Call the free axes by their names, where the tracer has numbered them."""
    import onnx_ir

    first = model.graph.inputs[0].shape
    names = {str(first[0]): "batch"} | ({str(first[1]): "length"} if view.lengthy else {})
    for value in [*model.graph.inputs, *(out for node in model.graph for out in node.outputs)]:
        if value.shape is not None:
            value.shape = onnx_ir.Shape([names.get(str(d), d if isinstance(d, int) else str(d)) for d in value.shape])


def _difference(
    view: View, run: Callable[..., list[Tensor]], inputs: tuple[Tensor, ...], wanted: Tensor | None, allowed: float
) -> float:
    """The largest difference of the outputs from what the model itself gives; a step is the model's own."""
    right, worst = _listed(view.module(*inputs) if wanted is None else wanted), 0.0
    for name, one, other in zip(view.outputs, run(*inputs), right, strict=True):
        if one.shape != other.shape or one.dtype != other.dtype:
            raise ExportError(f"{name} came out as {one.dtype} of shape {tuple(one.shape)}, not {other.dtype} of "
                              f"shape {tuple(other.shape)}")  # fmt: skip
        error = float((one.double() - other.double()).abs().max() / other.double().abs().max().clamp(min=1e-30))
        if not error <= allowed:
            raise ExportError(f"{name} is {error:.1e} of its peak off, allowed is {allowed:.0e}")
        worst = max(worst, error)
    return worst


def _listed(y: Any) -> list[Tensor]:
    return [y] if isinstance(y, Tensor) else list(y)
