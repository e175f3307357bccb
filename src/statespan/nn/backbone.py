"""Modules made of sequence modules: one description of how data flows gives forward, prefill and step.

Shapes: B batch, L length, D = d_model features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from statespan._check import check_tensor
from statespan.nn.block import ResidualBlock, check_streaming
from statespan.nn.initial import Initialised
from statespan.nn.norm import NoNorm, make_norm
from statespan.nn.padding import Lengths, Padding, fill

Call: TypeAlias = Callable[[Any, Tensor], Tensor]
Step: TypeAlias = Callable[[Tensor, Any], tuple[Tensor, Any]]


class Composite(Initialised, ABC):
    """A map from (B, L, D) to (B, L, D) made of others. Its state is the tuple of theirs, in the order of ``parts``."""

    d_model: int

    @abstractmethod
    def parts(self) -> Sequence[Any]:
        """The parts that have a state."""

    @abstractmethod
    def flow(self, x: Tensor, call: Call, padding: Padding | None) -> Tensor:
        """The map itself, which applies each of its parts once and in order, as ``call(part, x)``."""

    def forward(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """Apply to whole sequences.

        Args:
            x: (B, L, D).
            lengths: True length of each sequence (B,), whole numbers 0 … L; what follows is ignored and comes out as 0.
            dt_scale: Step of the data relative to that of training: 2.0 if it was sampled half as often.

        Returns:
            y of shape (B, L, D).
        """
        padding = self._padding(x, lengths)
        return self.flow(x, lambda part, x: part(x, lengths=padding, dt_scale=dt_scale), padding)

    def prefill(
        self, x: Tensor, state: Sequence[Any] | None = None, *, lengths: Lengths = None, dt_scale: float = 1.0
    ) -> tuple[Tensor, tuple[Any, ...]]:
        """The same map from a state and to a state.

        Args:
            x: (B, L, D), L ≥ 0.
            state: As returned by ``prefill``, ``step`` or ``initial_state``; None to start. It is not changed.
            lengths: As in ``forward``; the state returned is the one after each sequence's own length.
            dt_scale: As in ``forward``.

        Returns:
            y of shape (B, L, D), and the new state.
        """
        padding = self._padding(x, lengths)
        self._check_streaming()
        states, after = iter(self._states(state)), []

        def call(part: Any, x: Tensor) -> Tensor:
            y, new = part.prefill(x, next(states), lengths=padding, dt_scale=dt_scale)
            after.append(new)
            return y

        return self.flow(x, call, padding), tuple(after)

    def step(self, x: Tensor, state: Sequence[Any], *, dt_scale: float = 1.0) -> tuple[Tensor, tuple[Any, ...]]:
        """One step of the recurrence. For many steps in a row, use :meth:`stepper`.

        Args:
            x: (B, D).
            state: One for each part; it is not changed.
            dt_scale: As in ``forward``.

        Returns:
            y of shape (B, D), and the new state.
        """
        return self.stepper(dt_scale)(x, state)

    def stepper(self, dt_scale: float = 1.0, *, in_place: bool = False) -> Step:
        """``step`` as a function with the set-up done once, for many steps with the same parameters.

        Args:
            dt_scale: As in ``forward``.
            in_place: Write new states over the old ones.
        """
        self._check_streaming()
        steps: list[Step] = [part.stepper(dt_scale, in_place=in_place) for part in self.parts()]

        def step(x: Tensor, state: Any) -> tuple[Tensor, tuple[Any, ...]]:
            check_tensor("x", x, ("batch", self.d_model), kind="float")
            todo, after = iter(zip(steps, self._states(state))), []

            def call(part: Any, x: Tensor) -> Tensor:
                advance, before = next(todo)
                y, new = advance(x[:, 0], before)
                after.append(new)
                return y[:, None]

            return self.flow(x[:, None], call, None)[:, 0], tuple(after)

        return step

    def initial_state(self, batch: int, *, dtype: torch.dtype | None = torch.float64) -> tuple[Any, ...]:
        """The state before the first sample.

        Args:
            batch: Number of sequences.
            dtype: Of the SSMs' states: float64 keeps the recurrence equal to the convolution over any length;
                None for what each layer can do with.
        """
        return tuple(part.initial_state(batch, dtype=dtype) for part in self.parts())

    def _padding(self, x: Tensor, lengths: Lengths) -> Padding | None:
        check_tensor("x", x, ("batch", "length", self.d_model), kind="float")
        return Padding.of(x, lengths)

    def _check_streaming(self) -> None:
        for child in self.children():
            check_streaming(child)

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
        layers: SSM layers and :class:`FeedForward`, all of the same d_model.
        norm: "layer", "batch" or "none".
        prenorm: Normalize what enters each layer; False for the sum behind it.
        dropout: Probability of dropping a feature of what is added to a residual.
        tie_dropout: Drop the same features at every position of a sequence.
        device: Where the norms' parameters live.
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
        layers: Iterable[nn.Module],
        *,
        norm: str = "layer",
        prenorm: bool = True,
        dropout: float = 0.0,
        tie_dropout: bool = True,
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
        self.d_model = widths.pop()
        self.norm = make_norm(norm, self.d_model, device, dtype) if prenorm else NoNorm()

    def parts(self) -> Sequence[Any]:
        """The blocks."""
        return list(self.blocks)

    def flow(self, x: Tensor, call: Call, padding: Padding | None) -> Tensor:
        """The blocks in order, then the last norm."""
        x = fill(x, padding)
        for block in self.blocks:
            x = call(block, x)
        return fill(self.norm(x, padding), padding)
