"""A residual block around a sequence layer, and the feed-forward network as a sequence layer.

Shapes: B batch, L length, D = d_model features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from statespan._check import check_bool, check_int, check_tensor
from statespan.nn.dropout import make_dropout
from statespan.nn.fused_step import FusedBlock, FusedSteps, StepParts, fused_block
from statespan.nn.layer import SSMLayer
from statespan.nn.norm import NoNorm, NormName, make_norm
from statespan.nn.padding import Lengths, Padding, fill
from statespan.nn.sequence import SequenceLayer, StepFunction
from statespan.ops import Stepper


class FeedForward(SequenceLayer):
    """A position-wise network with one hidden layer and GELU, as a sequence layer without a state.

    Args:
        d_model: Number of features D.
        expand: Hidden features for each feature.
        dropout: Probability of dropping a hidden feature.
        tie_dropout: Drop the same features at every position of a sequence.
        device: Device of the parameters.
        dtype: Their dtype.

    Example:
        >>> FeedForward(8, expand=2)(torch.randn(3, 10, 8)).shape
        torch.Size([3, 10, 8])
    """

    is_position_wise = True
    needs_lengths = False

    def __init__(
        self,
        d_model: int,
        expand: int = 4,
        *,
        dropout: float = 0.0,
        tie_dropout: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = self.d_output = check_int("d_model", d_model, minimum=1)
        hidden = check_int("expand", expand, minimum=1) * d_model
        self.inner = nn.Linear(d_model, hidden, device=device, dtype=dtype)
        self.dropout = make_dropout(dropout, tie_dropout)
        self.outer = nn.Linear(hidden, d_model, device=device, dtype=dtype)

    def forward(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """Apply to x (B, L, D); lengths and dt_scale have no effect."""
        return self.outer(self.dropout(nn.functional.gelu(self.inner(x))))

    def prefill(
        self, x: Tensor, state: Any = None, *, lengths: Lengths = None, dt_scale: float = 1.0
    ) -> tuple[Tensor, tuple[()]]:
        """As ``forward``, with the empty state."""
        return self(x), ()

    def stepper(self, dt_scale: float = 1.0, *, in_place: bool = False) -> StepFunction:
        """As ``forward`` for x (B, D), with the empty state."""
        return lambda x, state: (self(x[:, None])[:, 0], ())

    def initial_state(self, batch: int, *, dtype: torch.dtype | None = torch.float64) -> tuple[()]:
        """The empty state."""
        return ()


class ResidualBlock(SequenceLayer):
    """``x + dropout(layer(norm(x)))``, or with ``prenorm=False`` ``norm(x + dropout(layer(x)))``.

    Its state is that of the layer. With ``norm="batch"``, ``prefill`` and ``step`` need evaluation mode. Outputs at
    padding are undefined.

    Args:
        layer: A layer from (B, L, D) to (B, L, D).
        norm: "layer", "batch" or "none".
        prenorm: Normalize the input of the layer; False for the sum.
        dropout: Probability of dropping a feature of the layer's output.
        tie_dropout: Drop the same features at every position of a sequence.
        device: Device of the norm's parameters.
        dtype: Their dtype.

    Example:
        >>> from statespan.nn.s4d import S4D
        >>> block = ResidualBlock(S4D(16), norm="batch")
        >>> block(torch.randn(2, 100, 16), lengths=[100, 70]).shape
        torch.Size([2, 100, 16])
    """

    def __init__(
        self,
        layer: SequenceLayer,
        *,
        norm: NormName = "layer",
        prenorm: bool = True,
        dropout: float = 0.0,
        tie_dropout: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(layer, SequenceLayer):
            raise TypeError(f"layer must be a statespan.nn.SequenceLayer, got {type(layer).__name__}")
        if layer.d_output != layer.d_model:
            raise ValueError(f"layer must return as many features as it takes, got {layer!r}")
        self.d_model = self.d_output = layer.d_model
        self.layer = layer
        self.prenorm = check_bool("prenorm", prenorm)
        self.norm = make_norm(norm, self.d_model, device=device, dtype=dtype)
        self.dropout = make_dropout(dropout, tie_dropout)

    def forward(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """Apply the block to whole sequences x (B, L, D); see :class:`SequenceLayer`."""
        self.layer.check_shards()
        padding = Padding.of(x, lengths)
        if padding is not None:
            self.layer.check_padding()
        if self.prenorm:
            x, u = self.norm.before(x, padding, self.layer.working_dtype(x))
        else:
            u = fill(x, padding)
        lengths = padding if self.layer.needs_lengths else None
        return self.add_to(x, self.layer(u, lengths=lengths, dt_scale=dt_scale), padding)

    def prefill(
        self, x: Tensor, state: Any = None, *, lengths: Lengths = None, dt_scale: float = 1.0
    ) -> tuple[Tensor, Any]:
        """The same map from a state of the layer to a state; see :class:`SequenceLayer`."""
        self.norm.check_streaming()
        self.layer.check_shards()
        padding = Padding.of(x, lengths)
        y, after = self.layer.prefill(self.layer_input(x, padding), state, lengths=padding, dt_scale=dt_scale)
        return self.add_to(x, y, padding), after

    def stepper(self, dt_scale: float = 1.0, *, in_place: bool = False) -> StepFunction:
        """A function from x (B, D) and the layer's state to y and the new state."""
        self.norm.check_streaming()
        advance = self.layer.stepper(dt_scale, in_place=in_place)
        fused = self._fused(advance)
        alone = None if fused is None else FusedSteps([fused], NoNorm(), in_place=in_place)

        def step(x: Tensor, state: Any) -> tuple[Tensor, Any]:
            if alone is not None and alone.takes(x, (state,)):
                y, (after,) = alone(x, (state,))
                return y, after
            x = check_tensor("x", x, ("batch", self.d_model), kind="float")[:, None]
            y, after = advance(self.layer_input(x, None)[:, 0], state)
            return self.add_to(x, y[:, None], None)[:, 0], after

        step.fused = fused  # type: ignore[attr-defined]  # read by a backbone, which joins those of its blocks
        return step

    def _fused(self, advance: StepFunction) -> FusedBlock | None:
        """The step without calls of modules, where they may be left out."""
        layer, set_up = self.layer, getattr(advance, "set_up", None)
        if type(self) is not ResidualBlock or not isinstance(layer, SSMLayer) or not isinstance(set_up, Stepper):
            return None
        parts = StepParts(self.norm, self.prenorm, (layer.dropout, self.dropout), layer.mix, set_up)
        return fused_block(parts, layer.D.dtype)

    def initial_state(self, batch: int, *, dtype: torch.dtype | None = torch.float64) -> Any:
        """The layer's state before the first sample."""
        return self.layer.initial_state(batch, dtype=dtype)

    def check_padding(self) -> None:
        """Reject padding if the layer does."""
        self.layer.check_padding()

    def check_shards(self) -> None:
        """Reject shards of sequences if the layer does."""
        self.layer.check_shards()

    def layer_input(self, x: Tensor, padding: Padding | None) -> Tensor:
        """The input of the layer, 0 for padding."""
        return fill(self.norm(x, padding) if self.prenorm else x, padding)

    def add_to(self, x: Tensor, y: Tensor, padding: Padding | None) -> Tensor:
        """The output of the block from its input x and the layer's output y."""
        if self.prenorm:
            return x + self.dropout(y)
        return self.norm.after(x, y, self.dropout, padding)
