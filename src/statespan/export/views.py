"""The two views of a model as plain modules on tensors, ready to be traced.

Shapes: B batch, L length, K outputs.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from statespan.export.frozen import freeze
from statespan.generation.tree import leaves, replace_leaves
from statespan.models import Forecaster, Retrieval
from statespan.models.base import Model

ViewName: TypeAlias = Literal["step", "sequence"]
VIEWS: tuple[str, ...] = get_args(ViewName)


@dataclass(frozen=True)
class View:
    """A module to trace, and its inputs.

    Args:
        module: Takes the inputs in order.
        inputs: Names of the inputs.
        outputs: Names of the outputs.
        has_length: Whether the inputs have a length as their second axis; the first one is the batch.
        least: The shortest length.
        paired: Whether a batch is of pairs, so that its size is even.
    """

    module: nn.Module
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    has_length: bool
    least: int
    paired: bool


class SequenceView(nn.Module):
    """``forward`` of a frozen model."""

    def __init__(self, model: Model, dt_scale: float) -> None:
        super().__init__()
        self.model = freeze(model, dt_scale)

    def forward(self, x: Tensor, marks: Tensor | None = None) -> Tensor:
        """The model's outputs."""
        return self.model(x) if marks is None else self.model(x, marks=marks)


class StepView(nn.Module):
    """``step`` of a model with its state as a list of tensors, initially zeros.

    Args:
        model: The model.
        dt_scale: Step of the data relative to that of training.
        state_dtype: Of the SSMs' states.
        names: Arguments of the step between its input and the state.
    """

    def __init__(self, model: Model, dt_scale: float, state_dtype: torch.dtype, names: tuple[str, ...]) -> None:
        super().__init__()
        model = copy.deepcopy(model).eval().requires_grad_(False)
        self.names, self.tree = names, model.initial_state(1, dtype=state_dtype)
        with torch.no_grad():
            self.step = model.stepper(dt_scale)

    def forward(self, x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        """The outputs, then the new state."""
        state = replace_leaves(self.tree, list(rest[len(self.names) :]))
        y, new = self.step(x, state, **dict(zip(self.names, rest)))
        return y, *leaves(new)


def view_of(model: Any, view: str, dt_scale: float, state_dtype: torch.dtype) -> tuple[View, tuple[Tensor, ...]]:
    """A view of a model with example inputs."""
    marked = bool(getattr(model.config, "d_marks", 0))
    paired = isinstance(model, Retrieval)
    if view == "sequence":
        names = ("x", "marks") if marked else ("x",)
        frame = math.prod(getattr(model.config, "pools", ()))  # the longest of a U-Net; two reach its coarsest level
        least = max(getattr(model.config, "horizon", 0) + 1, 2 * frame)
        traced = View(SequenceView(model, dt_scale), names, ("y",), True, least, paired)
        return traced, example(model, traced, 4, least + 70)
    extra = ("future", *(("marks",) if marked else ())) if isinstance(model, Forecaster) else ()
    module = StepView(model, dt_scale, state_dtype, extra)
    states = tuple(f"state_{i}" for i in range(len(leaves(module.tree))))
    traced = View(module, ("x", *extra, *states), ("y", *(f"new_{name}" for name in states)), False, 1, paired)
    return traced, example(model, traced, 4, 1)


def example(model: Any, view: View, batch: int, length: int) -> tuple[Tensor, ...]:
    """Random inputs of a view."""
    config, dtype = model.config, next(p.dtype for p in model.parameters())
    sizes = (batch, length) if view.has_length else (batch,)
    values: dict[str, Tensor] = {}
    if getattr(config, "vocabulary", None) is not None:
        values["x"] = torch.randint(config.vocabulary, sizes)
    else:
        values["x"] = torch.randn(*sizes, config.d_input).to(dtype)
    values["marks"] = torch.randn(*sizes, getattr(config, "d_marks", 0)).to(dtype)
    values["future"] = torch.arange(batch)[:, None] % 2 == 1
    if not view.has_length:
        module: Any = view.module
        for i, leaf in enumerate(leaves(module.tree)):
            shape = (batch, *leaf.shape[1:])
            values[f"state_{i}"] = (
                torch.randn(shape).to(leaf.dtype) if leaf.is_floating_point() else torch.zeros(shape, dtype=leaf.dtype)
            )
    return tuple(values[name] for name in view.inputs)
