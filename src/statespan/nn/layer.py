"""The layer around an SSM: skip, activation, dropout and mixing of the features; forward, prefill and step.

Shapes: B batch, L length, D = d_model features (the SSM's heads H), N state size, K channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from statespan._check import check_choice, check_number, check_same_dtype, check_tensor
from statespan.nn.dropout import DROPOUTS, make_dropout
from statespan.nn.initial import reset
from statespan.nn.padding import Lengths, Padding, fill
from statespan.nn.parameters import DiagonalParameters, DPLRParameters, SSMParameters
from statespan.nn.precision import full_precision
from statespan.nn.sequence import SequenceLayer
from statespan.ops.fusion import GLU, activating_linear, gating_linear, mix_features, untouched, working_dtype
from statespan.ops.parallel.packing import active_packing, on_whole_sequences
from statespan.ops.ssm.gated import apply_gated
from statespan.ssm import Structure
from statespan.ssm.structure import zero_state

Mix: TypeAlias = Literal["linear", "glu"]
Activation: TypeAlias = Literal["gelu"]
MIXES: tuple[str, ...] = get_args(Mix)
BUILT_BY_KERNELS = (DiagonalParameters, DPLRParameters)
"""Whose operators a GPU's kernels can build."""


class SSMLayer(SequenceLayer):
    """A sequence layer: d_model independent SSMs, a skip, GELU, dropout, then a position-wise mixing of the features.

    S4, S4D, DSS and LSSL are this layer with different SSMs; S5 and LRU have one SSM of all features. All take and
    return (batch, length, d_model).

    Args:
        ssm: The SSM's parameters. Its kernels are the layer's channels, which are mixed afterwards.
        bidirectional: Let half of the SSM's kernels look ahead, starting at the next sample. They share A, B and Δ with
            the others; such a layer has no recurrence, so ``prefill`` and ``step`` raise an error.
        activation: "gelu", or None for the linear map alone.
        mix: "glu" for ``W₁y · sigmoid(W₂y)``, "linear", or None to return all d_model · channels features.
        dropout: Probability of dropping a feature before the mixing.
        tie_dropout: Drop the same features at every position of a sequence.
        device: Device of the parameters.
        dtype: Their dtype; those of the SSM itself are at least float32.

    Example:
        >>> from statespan.nn import DiagonalParameters, SSMOptions
        >>> ssm = DiagonalParameters(SSMOptions(d_model=16, d_state=32, discretization="zoh"), init="lin")
        >>> layer = SSMLayer(ssm, mix="linear")
        >>> y, state = layer.prefill(torch.randn(2, 100, 16))
        >>> y, state = layer.step(torch.randn(2, 16), state)
        >>> y.shape, state.shape
        (torch.Size([2, 16]), torch.Size([2, 16, 32]))
    """

    needs_lengths = False  # zeros after a sequence tell it enough, also if it looks ahead
    runs_on_shards = runs_packed = True

    def __init__(
        self,
        ssm: SSMParameters,
        *,
        bidirectional: bool = False,
        activation: Activation | None = "gelu",
        mix: Mix | None = "glu",
        dropout: float = 0.0,
        tie_dropout: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.ssm = ssm
        self.d_model, self.d_state = ssm.options.d_model, ssm.options.d_state
        self.channels = ssm.options.channels(bidirectional)
        self.bidirectional = bidirectional
        self.activation = None if activation is None else check_choice("activation", activation, get_args(Activation))
        features = self.channels * self.d_model
        self.D = nn.Parameter(torch.randn(self.channels, self.d_model, device=device, dtype=dtype))
        self.dropout = make_dropout(dropout, tie_dropout)
        self.mix: nn.Module
        if mix is None:
            self.mix, self.d_output = nn.Identity(), features
        else:
            gates = 2 if check_choice("mix", mix, MIXES) == "glu" else 1
            linear = nn.Linear(features, gates * self.d_model, device=device, dtype=dtype)
            self.mix, self.d_output = GLU(linear) if mix == "glu" else linear, self.d_model

    def reset_parameters(self) -> None:
        """Re-initialise all parameters and buffers as the constructor does; the same seed gives the same values."""
        self.ssm.reset_parameters()
        nn.init.normal_(self.D)
        reset(self.mix)

    def forward(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """Apply the layer to whole sequences x (B, L, D); see :class:`SequenceLayer`."""
        padding = self._check(x, lengths, dt_scale)
        if padding is not None or active_packing() is not None:
            self.check_padding()
        linear = activating_linear(x, self.dropout, self.mix, DROPOUTS) if self.activation else None
        dtype = self.working_dtype(x)  # asks autocast, which is off below
        x = fill(x, padding)
        gate = gating_linear(x, self.dropout, self.mix, DROPOUTS)
        whole = on_whole_sequences()
        if gate is not None and whole and untouched(self.ssm, *BUILT_BY_KERNELS) and self.ssm.C.dtype.itemsize >= 4:
            source = self.ssm.source(dt_scale)
            with full_precision(x):
                gated = apply_gated(
                    source, x, self.D, gate, bidirectional=self.bidirectional, activation=self.activation, dtype=dtype
                )
            if gated is not None:
                return fill(gated, padding)
        with full_precision(x):
            y = self.ssm(
                x, self.D, bidirectional=self.bidirectional,
                activation=None if linear is not None else self.activation, dtype=dtype, dt_scale=dt_scale,
            )  # fmt: skip
        y = mix_features(y if x.is_cuda else y.to(x.dtype), self.dropout, self.mix, linear)
        return fill(y, padding)

    def prefill(
        self, x: Tensor, state: Tensor | None = None, *, lengths: Lengths = None, dt_scale: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """The same map from a state (B, D, N), or (B, N/2, 2) of one SSM of all features, to a state."""
        padding = self._check(x, lengths, dt_scale)
        self._check_causal("prefill")
        if state is not None:
            check_tensor("state", state, (x.shape[0], *self.ssm.state_shape), kind="real")
        dtype = self.working_dtype(x)
        with full_precision(x):
            y, after = self.ssm.prefill(
                fill(x, padding), state, self.D, lengths=None if padding is None else padding.lengths,
                activation=self.activation, dtype=dtype, dt_scale=dt_scale,
            )  # fmt: skip
        y = mix_features(y if x.is_cuda else y.to(x.dtype), self.dropout, self.mix)
        return fill(y, padding), after

    def stepper(
        self, dt_scale: float = 1.0, *, in_place: bool = False
    ) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """A function from x (B, D) and a state as in ``prefill`` to y and the new state, in the state's dtype."""
        self._check_causal("step")
        check_number("dt_scale", dt_scale, above=0.0)
        advance = self.ssm.stepper(self.D, self.activation, dt_scale)  # in float64

        def step(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            check_tensor("x", x, ("batch", self.d_model), kind="float")
            check_same_dtype(x, self.D.dtype, "layer")
            check_tensor("state", state, (x.shape[0], *self.ssm.state_shape), kind="real")
            y, new = advance(x, state, x.dtype, in_place=in_place)
            return mix_features(y[:, None], self.dropout, self.mix)[:, 0], new

        step.set_up = advance  # type: ignore[attr-defined]  # read by blocks, which fuse it with their own work
        return step

    def initial_state(self, batch: int, *, dtype: torch.dtype | None = torch.float64) -> Tensor:
        """The zero state: (B, D, N), or (B, N/2, 2) of one SSM of all features.

        Args:
            batch: Number of sequences.
            dtype: float64 keeps the recurrence equal to the convolution over any length; float32 halves its memory.
                None for float32 where steps stay within 2e-6 of the peak with it: in S4 at its usual step sizes, whose
                low-rank term makes it forget roundings sooner than a diagonal SSM does.
        """
        self._check_causal("initial_state")
        if dtype is None:
            dtype = torch.float32 if isinstance(self.ssm, DPLRParameters) else torch.float64
        return zero_state(batch, *self.ssm.state_shape, dtype=dtype, device=self.D.device)

    def structure(self, dt_scale: float = 1.0) -> Structure:
        """The SSM of the layer, with its kernel, states, operators and eigenvalues; of S5 and LRU, those of the modes.

        Its channels are those of the layer; a bidirectional layer has as many again, for the kernels that look ahead.

        Args:
            dt_scale: As in ``forward``.
        """
        return self.ssm.structure(dt_scale)

    def working_dtype(self, x: Tensor) -> torch.dtype:
        """The dtype that the SSM computes in; see :func:`statespan.ops.fusion.working_dtype`."""
        return working_dtype(x, self.ssm.precision)

    def check_padding(self) -> None:
        """Reject padding if the kernel depends on the length of the input."""
        self.ssm.check_padding()

    def extra_repr(self) -> str:
        """The sizes."""
        return (
            f"d_model={self.d_model}, d_state={self.d_state}, channels={self.channels}, "
            f"bidirectional={self.bidirectional}, activation={self.activation}"
        )

    def _check(self, x: Tensor, lengths: Lengths, dt_scale: float) -> Padding | None:
        check_tensor("x", x, ("batch", "length", self.d_model), kind="float")
        check_same_dtype(x, self.D.dtype, "layer")
        check_number("dt_scale", dt_scale, above=0.0)
        return Padding.of(x, lengths)

    def _check_causal(self, use: str) -> None:
        if self.bidirectional:
            raise ValueError(f"{use} needs a causal layer, got bidirectional=True: it looks ahead and has no state")
