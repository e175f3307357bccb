"""The two views of a model as plain modules on tensors, ready to be traced.

Shapes: B batch, L length, K outputs.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from statespan.data.inputs import WHOLE
from statespan.export.frozen import freeze
from statespan.generation.tree import leaves, replace_leaves
from statespan.models import Forecaster, Retrieval
from statespan.models.base import Model

ViewName: TypeAlias = Literal["step", "sequence"]
VIEWS: tuple[str, ...] = get_args(ViewName)


class Scaling(nn.Module):
    """The scaling of a model's training data inside a view: from recorded samples, to answers in their own units.

    In the dtype of the model, at least float32, as in training: a sample minus a centre near it has no rounding error.

    Args:
        model: The model, whose ``inputs`` have the scaling.

    Example:
        >>> from statespan.data.inputs import Preparation, Scaled
        >>> from statespan.models import Regressor, ClassifierConfig
        >>> model = Regressor(ClassifierConfig(d_input=1, d_output=1, d_model=8, d_state=4, n_layers=1))
        >>> model.inputs = Preparation(None, False, Scaled(scale=(0.5,), shift=(-1.0,)))
        >>> Scaling(model)(torch.tensor([2.0, 4.0]))
        tensor([0., 1.])
    """

    centre: Tensor  # (D,)
    spread: Tensor  # (D,)
    mean: Tensor | None  # (K,)
    std: Tensor | None  # (K,)

    def __init__(self, model: Model) -> None:
        super().__init__()
        inputs = model.inputs
        assert inputs is not None
        assert inputs.scaled is not None
        factor = WHOLE if inputs.whole else 1.0  # of audio in [-1, 1), which the training data has as whole numbers
        scale, shift = (
            torch.tensor(numbers, dtype=torch.float64) for numbers in (inputs.scaled.scale, inputs.scaled.shift)
        )
        self.dtype = next(p.dtype for p in model.parameters())
        dtype = torch.promote_types(self.dtype, torch.float32)  # 16 bits would hold recorded values too coarsely
        self.register_buffer("centre", (-shift / scale / factor).to(dtype))
        self.register_buffer("spread", (1 / scale / factor).to(dtype))
        std = getattr(inputs.info, "target_std", ())
        mean = inputs.info.target_mean if std else None
        self.register_buffer("mean", None if mean is None else torch.tensor(mean, dtype=dtype))
        self.register_buffer("std", torch.tensor(std, dtype=dtype) if std else None)

    def forward(self, x: Tensor) -> Tensor:
        """Recorded samples (…, D) as the model reads them."""
        return ((x - self.centre) / self.spread).to(self.dtype)

    def answers(self, y: Tensor) -> Tensor:
        """Outputs (…, K) in their own units."""
        return y if self.mean is None or self.std is None else y * self.std + self.mean

    def recorded(self, x: Tensor) -> Tensor:
        """The inverse of :meth:`forward`, for examples."""
        return x * self.spread + self.centre


def is_scaled(model: Model) -> bool:
    """Whether a view of this model can have the scaling of its training data."""
    return model.inputs is not None and model.inputs.scaled is not None


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
        scaling: The scaling inside the module, if any.
        facts: The metadata of the file.

    Example:
        >>> from statespan.models import Classifier, ClassifierConfig
        >>> model = Classifier(ClassifierConfig(d_input=1, d_output=3, d_model=8, d_state=4, n_layers=1)).eval()
        >>> view, inputs = view_of(model, "sequence", 1.0, torch.float64)
        >>> view.inputs, view.outputs, view.module(*inputs).shape
        (('x',), ('y',), torch.Size([4, 3]))
    """

    module: nn.Module
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    has_length: bool
    least: int
    paired: bool
    scaling: Scaling | None = None
    facts: dict[str, str] = field(default_factory=dict)


class SequenceView(nn.Module):
    """``forward`` of a frozen model, after a scaling of the inputs, if any.

    Example:
        >>> from statespan.models import Classifier, ClassifierConfig
        >>> model = Classifier(ClassifierConfig(d_input=1, d_output=3, d_model=8, d_state=4, n_layers=1)).eval()
        >>> x = torch.randn(2, 50, 1)
        >>> torch.allclose(SequenceView(model, dt_scale=1.0)(x), model(x), atol=1e-5)
        True
    """

    def __init__(self, model: Model, dt_scale: float, scaling: Scaling | None = None) -> None:
        super().__init__()
        self.model, self.scaling = freeze(model, dt_scale), scaling

    def forward(self, x: Tensor, marks: Tensor | None = None) -> Tensor:
        """The model's outputs."""
        x = x if self.scaling is None else self.scaling(x)
        y = self.model(x) if marks is None else self.model(x, marks=marks)
        return y if self.scaling is None else self.scaling.answers(y)


class StepView(nn.Module):
    """``step`` of a model with its state as a list of tensors, initially zeros.

    Args:
        model: The model.
        dt_scale: Step of the data relative to that of training.
        state_dtype: Of the SSMs' states.
        names: Arguments of the step between its input and the state.
        scaling: A scaling of the inputs and answers, if any.

    Example:
        >>> from statespan.models import Classifier, ClassifierConfig
        >>> model = Classifier(ClassifierConfig(d_input=1, d_output=3, d_model=8, d_state=4, n_layers=1)).eval()
        >>> view = StepView(model, 1.0, state_dtype=torch.float64, names=())
        >>> y, *state = view(torch.zeros(1, 1), *leaves(model.initial_state(1)))
        >>> y.shape, len(state)
        (torch.Size([1, 3]), 3)
    """

    def __init__(
        self,
        model: Model,
        dt_scale: float,
        *,
        state_dtype: torch.dtype,
        names: tuple[str, ...],
        scaling: Scaling | None = None,
    ) -> None:
        super().__init__()
        self.scaling = scaling
        model = copy.deepcopy(model).eval().requires_grad_(False)
        self.names, self.tree = names, model.initial_state(1, dtype=state_dtype)
        with torch.no_grad():
            self.step = model.stepper(dt_scale)

    def forward(self, x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        """The outputs, then the new state."""
        state = replace_leaves(self.tree, list(rest[len(self.names) :]))
        x = x if self.scaling is None else self.scaling(x)
        y, new = self.step(x, state, **dict(zip(self.names, rest)))
        return y if self.scaling is None else self.scaling.answers(y), *leaves(new)


def view_of(
    model: Any, view: str, dt_scale: float, state_dtype: torch.dtype, *, scale: bool = False
) -> tuple[View, tuple[Tensor, ...]]:
    """A view of a model with example inputs; with ``scale``, the view has the scaling of the training data."""
    scaling = Scaling(model) if scale and is_scaled(model) else None
    marked = bool(getattr(model.config, "d_marks", 0))
    paired = isinstance(model, Retrieval)
    if view == "sequence":
        names = ("x", "marks") if marked else ("x",)
        frame = math.prod(getattr(model.config, "pools", ()))  # the longest of a U-Net; two reach its coarsest level
        least = max(getattr(model.config, "horizon", 0) + 1, 2 * frame)
        traced = View(SequenceView(model, dt_scale, scaling), names, ("y",), True, least, paired, scaling)
        return traced, example(model, traced, 4, least + 70)
    extra = ("future", *(("marks",) if marked else ())) if isinstance(model, Forecaster) else ()
    module = StepView(model, dt_scale, state_dtype=state_dtype, names=extra, scaling=scaling)
    states = tuple(f"state_{i}" for i in range(len(leaves(module.tree))))
    outputs = ("y", *(f"new_{name}" for name in states))
    traced = View(module, ("x", *extra, *states), outputs, False, 1, paired, scaling)
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
        values["x"] = values["x"] if view.scaling is None else view.scaling.recorded(values["x"])
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
