"""A residual around a sequence layer, and the feed-forward network as such a layer.

Shapes: B batch, L length, D = d_model features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from statespan._check import check_bool, check_int, check_number, check_tensor
from statespan.nn.dropout import TiedDropout
from statespan.nn.initial import Initialised
from statespan.nn.norm import BatchNorm, LayerNorm, make_norm
from statespan.nn.padding import Lengths, Padding, fill


def make_dropout(p: float, tied: bool) -> nn.Module:
    """Dropout of features, of the same ones at every position if ``tied``."""
    check_number("dropout", p, above=0.0, below=1.0, closed=True)
    return TiedDropout(p) if check_bool("tie_dropout", tied) else nn.Dropout(p)


class FeedForward(Initialised):
    """A position-wise network with one hidden layer and GELU, with the interface of a sequence layer and no state.

    Args:
        d_model: Number of features D.
        expand: Hidden features for each feature.
        dropout: Probability of dropping a hidden feature.
        tie_dropout: Drop the same features at every position of a sequence.
        device: Where the parameters live.
        dtype: Their dtype.
    """

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
        self.d_model = check_int("d_model", d_model, minimum=1)
        hidden = check_int("expand", expand, minimum=1) * d_model
        self.inner = nn.Linear(d_model, hidden, device=device, dtype=dtype)
        self.dropout = make_dropout(dropout, tie_dropout)
        self.outer = nn.Linear(hidden, d_model, device=device, dtype=dtype)

    def forward(self, x: Tensor, *, lengths: Tensor | None = None, dt_scale: float = 1.0) -> Tensor:
        """Apply to x (B, L, D); lengths and dt_scale make no difference."""
        return self.outer(self.dropout(nn.functional.gelu(self.inner(x))))

    def prefill(
        self, x: Tensor, state: Any = None, *, lengths: Tensor | None = None, dt_scale: float = 1.0
    ) -> tuple[Tensor, tuple[()]]:
        """The same, with the empty state."""
        return self(x), ()

    def stepper(
        self, dt_scale: float = 1.0, *, in_place: bool = False
    ) -> Callable[[Tensor, Any], tuple[Tensor, tuple[()]]]:
        """The same for x (B, D), with the empty state."""
        return lambda x, state: (self(x[:, None])[:, 0], ())

    def initial_state(self, batch: int, *, dtype: torch.dtype | None = torch.float64) -> tuple[()]:
        """The empty state."""
        return ()


class ResidualBlock(Initialised):
    """``x + dropout(layer(norm(x)))``, or with ``prenorm=False`` ``norm(x + dropout(layer(x)))``.

    Its state is that of the layer. With ``norm="batch"``, ``prefill`` and ``step`` need evaluation mode.

    Args:
        layer: A module from (B, L, D) to (B, L, D) with a size ``d_model``, and for streaming ``prefill``, ``stepper``
            and ``initial_state``: an SSM layer or :class:`FeedForward`.
        norm: "layer", "batch" or "none".
        prenorm: Normalize what enters the layer; False for the sum.
        dropout: Probability of dropping a feature of what is added.
        tie_dropout: Drop the same features at every position of a sequence.
        device: Where the norm's parameters live.
        dtype: Their dtype.

    Example:
        >>> from statespan.nn.s4d import S4D
        >>> block = ResidualBlock(S4D(16), norm="batch")
        >>> block(torch.randn(2, 100, 16), lengths=[100, 70]).shape
        torch.Size([2, 100, 16])
    """

    layer: Any

    def __init__(
        self,
        layer: nn.Module,
        *,
        norm: str = "layer",
        prenorm: bool = True,
        dropout: float = 0.0,
        tie_dropout: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = _check_layer(layer)
        self.layer = layer
        self.prenorm = check_bool("prenorm", prenorm)
        self.norm = make_norm(norm, self.d_model, device, dtype)
        self.dropout = make_dropout(dropout, tie_dropout)

    def forward(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """Apply the block to whole sequences.

        Args:
            x: (B, L, D).
            lengths: True length of each sequence (B,); what follows is ignored, and what comes out there means nothing.
            dt_scale: Step of the data relative to that of training.

        Returns:
            y of shape (B, L, D).
        """
        padding = Padding.of(x, lengths)
        if padding is not None and hasattr(self.layer, "ssm"):
            self.layer.ssm.check_padding()
        # zeros after a sequence are all that a layer needs to know of its length, also one that looks ahead
        x, u = self._enter(x, padding)
        return self._after(x, self.layer(u, dt_scale=dt_scale), padding)

    def prefill(
        self, x: Tensor, state: Any = None, *, lengths: Lengths = None, dt_scale: float = 1.0
    ) -> tuple[Tensor, Any]:
        """The same map from a state and to the state after each sequence's own length.

        Args:
            x: (B, L, D).
            state: The layer's; None to start. It is not changed.
            lengths: As in ``forward``.
            dt_scale: As in ``forward``.
        """
        check_streaming(self.norm)
        padding = Padding.of(x, lengths)
        lengths = None if padding is None else padding.lengths
        y, after = self.layer.prefill(self._before(x, padding), state, lengths=lengths, dt_scale=dt_scale)
        return self._after(x, y, padding), after

    def step(self, x: Tensor, state: Any, *, dt_scale: float = 1.0) -> tuple[Tensor, Any]:
        """One step for x (B, D) and the layer's state, which is not changed."""
        return self.stepper(dt_scale)(x, state)

    def stepper(self, dt_scale: float = 1.0, *, in_place: bool = False) -> Callable[[Tensor, Any], tuple[Tensor, Any]]:
        """``step`` as a function with the set-up done once; ``in_place`` is the layer's."""
        check_streaming(self.norm)
        layer = self.layer.stepper(dt_scale, in_place=True) if in_place else self.layer.stepper(dt_scale)

        def step(x: Tensor, state: Any) -> tuple[Tensor, Any]:
            x = check_tensor("x", x, ("batch", self.d_model), kind="float")[:, None]
            y, after = layer(self._before(x, None)[:, 0], state)
            return self._after(x, y[:, None], None)[:, 0], after

        return step

    def initial_state(self, batch: int, *, dtype: torch.dtype | None = torch.float64) -> Any:
        """The layer's state before the first sample."""
        return self.layer.initial_state(batch, dtype=dtype)

    def _enter(self, x: Tensor, padding: Padding | None) -> tuple[Tensor, Tensor]:
        """What goes past the layer and what enters it."""
        if self.prenorm and hasattr(self.layer, "working_dtype"):
            if isinstance(self.norm, LayerNorm):
                x, u = self.norm.before(x, self.layer.working_dtype(x))
                return x, fill(u, padding)
            if isinstance(self.norm, BatchNorm):
                return self.norm.before(x, padding, self.layer.working_dtype(x))
        return x, self._before(x, padding)

    def _before(self, x: Tensor, padding: Padding | None) -> Tensor:
        return fill(self.norm(x, padding) if self.prenorm else x, padding)

    def _after(self, x: Tensor, y: Tensor, padding: Padding | None) -> Tensor:
        if not self.prenorm and isinstance(self.norm, LayerNorm):
            return self.norm.after(x, y, self.dropout)
        x = x + self.dropout(y)
        return x if self.prenorm else self.norm(x, padding)


def check_streaming(norm: nn.Module) -> None:
    """Refuse to stream through a norm that looks at the whole batch."""
    if isinstance(norm, BatchNorm) and norm.training:
        raise ValueError("prefill and step with norm='batch' need fixed statistics: call eval() first")


def _check_layer(layer: Any) -> int:
    if not isinstance(layer, nn.Module):
        raise TypeError(f"layer must be a torch.nn.Module, got {type(layer).__name__}")
    d_model = getattr(layer, "d_model", None)
    if not isinstance(d_model, int) or getattr(layer, "d_output", d_model) != d_model:
        raise ValueError(f"layer must return as many features as it takes and name them d_model, got {layer!r}")
    return d_model
