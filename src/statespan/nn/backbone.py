"""Modules composed of sequence modules: one description of the data flow gives forward, prefill and step.

Shapes: B batch, L length, D = d_model features.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, get_args

import torch
from torch import Tensor, nn

from statespan._check import check_choice, check_tensor
from statespan.nn.block import ResidualBlock
from statespan.nn.fused_step import FusedSteps
from statespan.nn.norm import BatchNorm, LayerNorm, NoNorm, NormName, ResidualNorm, make_norm
from statespan.nn.padding import Lengths, Padding, fill
from statespan.nn.positions import PositionName, SinusoidalPositions
from statespan.nn.sequence import SequenceLayer, StepFunction
from statespan.ops.fusion import untouched

Call: TypeAlias = Callable[[Any, Tensor], Tensor]
"""Applies a part to features, ``call(part, x)``."""


class Composite(SequenceLayer):
    """A composite map from (B, L, D) to (B, L, D). Its state is the tuple of its parts' states, in order.

    Example:
        >>> from statespan.nn import S4D
        >>> class Twice(Composite):
        ...     def __init__(self, layer):
        ...         super().__init__()
        ...         self.layer, self.d_model, self.d_output = layer, layer.d_model, layer.d_output
        ...     def parts(self):
        ...         return [self.layer, self.layer]
        ...     def flow(self, x, call, padding):
        ...         return call(self.layer, call(self.layer, x))
        >>> y, states = Twice(S4D(4)).prefill(torch.randn(2, 10, 4))
        >>> y.shape, len(states)
        (torch.Size([2, 10, 4]), 2)
    """

    @abstractmethod
    def parts(self) -> Sequence[Any]:
        """The parts that have a state."""

    @abstractmethod
    def flow(self, x: Tensor, call: Call, padding: Padding | None) -> Tensor:
        """The map itself, which applies each of its parts once and in order, as ``call(part, x)``."""

    def forward(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """Apply to whole sequences x (B, L, D); see :class:`SequenceLayer`."""
        padding = self._padding(x, lengths)
        return self.flow(x, lambda part, x: part(x, lengths=padding, dt_scale=dt_scale), padding)

    def prefill(
        self, x: Tensor, state: Sequence[Any] | None = None, *, lengths: Lengths = None, dt_scale: float = 1.0
    ) -> tuple[Tensor, tuple[Any, ...]]:
        """The same map from a state to a state, one for each part; see :class:`SequenceLayer`."""
        padding = self._padding(x, lengths)
        self._check_streaming()
        states, after = iter(self._states(state)), []

        def call(part: Any, x: Tensor) -> Tensor:
            y, new = part.prefill(x, next(states), lengths=padding, dt_scale=dt_scale)
            after.append(new)
            return y

        return self.flow(x, call, padding), tuple(after)

    def stepper(self, dt_scale: float = 1.0, *, in_place: bool = False) -> StepFunction:
        """A function from x (B, D) and the parts' states to y and the new states."""
        self._check_streaming()
        steps: list[StepFunction] = [part.stepper(dt_scale, in_place=in_place) for part in self.parts()]

        def step(x: Tensor, state: Any) -> tuple[Tensor, tuple[Any, ...]]:
            check_tensor("x", x, ("batch", self.d_model), kind="float")
            pending, after = iter(zip(steps, self._states(state))), []

            def call(part: Any, x: Tensor) -> Tensor:
                advance, before = next(pending)
                y, new = advance(x[:, 0], before)
                after.append(new)
                return y[:, None]

            return self.flow(x[:, None], call, None)[:, 0], tuple(after)

        step.steps = steps  # type: ignore[attr-defined]  # those of the parts
        return step

    def initial_state(self, batch: int, *, dtype: torch.dtype | None = torch.float64) -> tuple[Any, ...]:
        """The states of the parts before the first sample."""
        return tuple(part.initial_state(batch, dtype=dtype) for part in self.parts())

    def check_padding(self) -> None:
        """Reject padding if a part does."""
        for part in self.parts():
            part.check_padding()

    def check_shards(self) -> None:
        """Reject shards of sequences if a part does."""
        for part in self.parts():
            part.check_shards()

    def _padding(self, x: Tensor, lengths: Lengths) -> Padding | None:
        check_tensor("x", x, ("batch", "length", self.d_model), kind="float")
        return Padding.of(x, lengths)

    def _check_streaming(self) -> None:
        for child in self.children():
            if isinstance(child, ResidualNorm):
                child.check_streaming()

    def _states(self, state: Any) -> Sequence[Any]:
        count = len(self.parts())
        if state is None:
            return [None] * count
        if not isinstance(state, (tuple, list)):
            raise TypeError(f"state must be a tuple of {count}, one for each part, got {type(state).__name__}")
        if len(state) != count:
            raise ValueError(f"state must be a tuple of {count}, one for each part, got {len(state)}")
        return state


class Backbone(Composite):
    """Layers one after the other, each in a :class:`ResidualBlock`, and with ``prenorm`` a last norm.

    Args:
        layers: SSM layers, :class:`FeedForward` and others, all of the same d_model.
        norm: "layer", "batch" or "none".
        prenorm: Normalize the input of each layer; False for the sum after it.
        dropout: Probability of dropping a feature of a layer's output.
        tie_dropout: Drop the same features at every position of a sequence.
        positions: "sinusoidal" to add a positional encoding to the input, or "none".
        device: Device of the norms' parameters.
        dtype: Their dtype.

    Example:
        >>> from statespan.nn import S4D, FeedForward
        >>> backbone = Backbone([S4D(16), FeedForward(16), S4D(16), FeedForward(16)])
        >>> y, state = backbone.prefill(torch.randn(2, 100, 16))
        >>> y, state = backbone.step(torch.randn(2, 16), state)
        >>> y.shape
        torch.Size([2, 16])
    """

    def __init__(
        self,
        layers: Iterable[SequenceLayer],
        *,
        norm: NormName = "layer",
        prenorm: bool = True,
        dropout: float = 0.0,
        tie_dropout: bool = True,
        positions: PositionName = "none",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            ResidualBlock(
                layer, norm=norm, prenorm=prenorm, dropout=dropout, tie_dropout=tie_dropout, device=device, dtype=dtype
            )
            for layer in layers
        )
        widths = {int(block.d_model) for block in self.blocks}  # type: ignore[arg-type]
        if len(widths) != 1:
            raise ValueError(f"layers must be at least one, all of the same d_model, got those of {sorted(widths)}")
        self.d_model = self.d_output = widths.pop()
        self.norm = make_norm(norm, self.d_model, device=device, dtype=dtype) if prenorm else NoNorm()
        self.positions = make_positions(positions, self.d_model, device)

    def parts(self) -> Sequence[Any]:
        """The positional encoding, if there is one, and the blocks."""
        return [*([] if self.positions is None else [self.positions]), *self.blocks]

    def stepper(self, dt_scale: float = 1.0, *, in_place: bool = False) -> StepFunction:
        """As in :class:`Composite`. On a CPU without gradients the steps of the blocks are one function."""
        plain = super().stepper(dt_scale, in_place=in_place)
        blocks: list[Any] = [getattr(step, "fused", None) for step in plain.steps]  # type: ignore[attr-defined]
        norm = self.norm
        if None in blocks or type(self) is not Backbone or not untouched(norm, LayerNorm, BatchNorm, NoNorm):
            return plain
        fused = FusedSteps(blocks, norm, in_place=in_place)

        def step(x: Tensor, state: Any) -> tuple[Tensor, tuple[Any, ...]]:
            is_tree = isinstance(state, (tuple, list))
            return fused(x, state) if is_tree and fused.takes(x, state) else plain(x, state)

        return step

    def flow(self, x: Tensor, call: Call, padding: Padding | None) -> Tensor:
        """The blocks in order, then the last norm."""
        x = fill(x, padding)
        for part in self.parts():
            x = call(part, x)
        return fill(self.norm(x, padding), padding)


class Chain(Composite):
    """Layers one after the other, without residuals and norms.

    Args:
        layers: Layers of one d_model.
        positions: "sinusoidal" to add a positional encoding to the input, or "none".
        device: Device of the encoding.

    Example:
        >>> from statespan.nn import S4D
        >>> Chain([S4D(4), S4D(4)])(torch.zeros(2, 50, 4)).shape
        torch.Size([2, 50, 4])
    """

    def __init__(
        self,
        layers: Iterable[SequenceLayer],
        *,
        positions: PositionName = "none",
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.d_model = self.d_output = int(self.layers[0].d_model)  # type: ignore[arg-type]
        self.positions = make_positions(positions, self.d_model, device)

    def parts(self) -> Sequence[Any]:
        """The positional encoding, if there is one, and the layers."""
        return [*([] if self.positions is None else [self.positions]), *self.layers]

    def flow(self, x: Tensor, call: Call, padding: Padding | None) -> Tensor:
        """The layers in order."""
        x = fill(x, padding)
        for part in self.parts():
            x = call(part, x)
        return fill(x, padding)


def make_positions(
    name: PositionName, d_model: int, device: torch.device | str | None = None
) -> SinusoidalPositions | None:
    """The positional encoding of this name; None for "none"."""
    is_absent = check_choice("positions", name, get_args(PositionName)) == "none"
    return None if is_absent else SinusoidalPositions(d_model, device=device)
