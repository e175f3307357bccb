"""The layer around an SSM: skip, activation, mixing of the heads; and its three uses.

Shapes: B batch, L length, D = d_model features (the SSM's heads H), N state size, K channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from statespan._check import check_bool, check_choice, check_int, check_lengths, check_number, check_tensor
from statespan.nn.dropout import TiedDropout
from statespan.nn.initial import Initialised, reset
from statespan.nn.parameters import DPLRParameters, SSMParameters
from statespan.nn.precision import full_precision
from statespan.nn.sequences import as_sequences
from statespan.nn.untouched import untouched
from statespan.ops import Step, gelu_linear, linear_glu, system_of
from statespan.ssm import Structure
from statespan.ssm.structure import zero_state

MIXES = ("linear", "glu")


class GLU(nn.Sequential):
    """A linear layer to twice the features, one half of which gates the other."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear, nn.GLU(-1))

    def forward(self, x: Tensor) -> Tensor:
        """Apply to x (positions, features)."""
        linear = self.fused()
        return super().forward(x) if linear is None else linear_glu(x, linear.weight, linear.bias)

    def fused(self) -> nn.Linear | None:
        """The linear layer, where it and the gate need not be called."""
        if len(self) != 2 or not untouched(self[1], nn.GLU):
            return None
        return plain_linear(self[0])


class SSMLayer(Initialised):
    """A sequence layer: d_model independent SSMs, a skip, GELU, dropout, then a position-wise mixing of the features.

    S4, S4D, DSS and LSSL are this layer with different SSMs. All take and return (batch, length, d_model).

    Args:
        ssm: The SSM's parameters.
        channels: Outputs of each SSM, mixed afterwards.
        bidirectional: Add a second kernel that looks ahead, starting at the next sample. It shares A, B and Δ with the
            first; such a layer has no recurrence, so ``prefill`` and ``step`` refuse.
        activation: "gelu", or None for the linear map alone.
        mix: "linear", "glu" for ``W₁y · sigmoid(W₂y)``, or None to return all d_model · channels features.
        dropout: Probability of dropping a feature before the mixing.
        tie_dropout: Drop the same features at every position of a sequence.
        device: Where the parameters live.
        dtype: Their dtype; those of the SSM itself are at least float32.
    """

    def __init__(
        self,
        ssm: SSMParameters,
        *,
        channels: int,
        bidirectional: bool,
        activation: str | None,
        mix: str | None,
        dropout: float,
        tie_dropout: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.ssm = ssm
        self.d_model = ssm.options.d_model
        self.d_state = ssm.options.d_state
        self.channels = channels
        self.bidirectional = bidirectional
        self.activation = None if activation is None else check_choice("activation", activation, ("gelu",))
        check_number("dropout", dropout, above=0.0, below=1.0, closed=True)
        features = channels * self.d_model
        self.D = nn.Parameter(torch.randn(channels, self.d_model, device=device, dtype=dtype))
        self.dropout = TiedDropout(dropout) if check_bool("tie_dropout", tie_dropout) else nn.Dropout(dropout)
        self.mix: nn.Module
        if mix is None:
            self.mix, self.d_output = nn.Identity(), features
        else:
            self.d_output = self.d_model
            gates = 2 if check_choice("mix", mix, MIXES) == "glu" else 1
            linear = nn.Linear(features, gates * self.d_model, device=device, dtype=dtype)
            self.mix = GLU(linear) if mix == "glu" else linear

    def reset_parameters(self) -> None:
        """Initialise all parameters and buffers anew, as the constructor does: the same values after the same seed."""
        self.ssm.reset_parameters()
        nn.init.normal_(self.D)
        reset(self.mix)

    def forward(self, x: Tensor, *, lengths: Tensor | Sequence[int] | None = None, dt_scale: float = 1.0) -> Tensor:
        """Apply the layer to whole sequences.

        Args:
            x: (B, L, D).
            lengths: True length of each sequence (B,), whole numbers 0 … L; what follows is ignored and comes out as 0.
            dt_scale: Step of the data relative to that of training: 2.0 if it was sampled half as often.

        Returns:
            y of shape (B, L, D).
        """
        mask = self._check(x, lengths, dt_scale)
        if mask is not None:
            self.ssm.check_padding()
        dtype, late = self.working_dtype(x), self._late(x)
        with full_precision(x):
            y = self.ssm(
                _masked(x, mask), self.D, bidirectional=self.bidirectional,
                activation=None if late is not None else self.activation, dtype=dtype, dt_scale=dt_scale,
            )  # fmt: skip
        return self._output(y if x.is_cuda else y.to(x.dtype), mask, late)

    def prefill(
        self,
        x: Tensor,
        state: Tensor | None = None,
        *,
        lengths: Tensor | Sequence[int] | None = None,
        dt_scale: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """The same map from a state and to a state.

        Args:
            x: (B, L, D), L ≥ 0.
            state: (B, D, N) as returned by ``prefill``, ``step`` or ``initial_state``; None for zeros.
            lengths: As in ``forward``; the state returned is the one after each sequence's own length.
            dt_scale: As in ``forward``.

        Returns:
            y of shape (B, L, D), and the new state.
        """
        mask = self._check(x, lengths, dt_scale)
        self._check_causal("prefill")
        self._check_state(state, x.shape[0])
        dtype = self.working_dtype(x)
        with full_precision(x):
            y, after = self.ssm.prefill(
                _masked(x, mask), state, self.D, lengths=None if mask is None else mask[..., 0].sum(1),
                activation=self.activation, dtype=dtype, dt_scale=dt_scale,
            )  # fmt: skip
        return self._output(y if x.is_cuda else y.to(x.dtype), mask), after

    def step(self, x: Tensor, state: Tensor, *, dt_scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """One step of the recurrence, in constant time and memory. For many steps in a row, use :meth:`stepper`.

        Args:
            x: (B, D).
            state: (B, D, N); it is not changed.
            dt_scale: As in ``forward``.

        Returns:
            y of shape (B, D), and the new state in the dtype of ``state``.
        """
        return self.stepper(dt_scale)(x, state)

    def stepper(
        self, dt_scale: float = 1.0, *, in_place: bool = False
    ) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """``step`` as a function with the set-up done once, for many steps with the same parameters.

        Args:
            dt_scale: As in ``forward``.
            in_place: Write the new state over the old one: half the memory traffic, which on a GPU is half the time.

        Returns:
            A function ``(x, state) -> (y, state)``.
        """
        self._check_causal("step")
        _check_rate(dt_scale)
        advance = Step(system_of(self.structure(dt_scale)), self.D, self.activation)  # in float64

        def step(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            check_tensor("x", x, ("batch", self.d_model), kind="float")
            self._check_dtype(x)
            check_tensor("state", state, (x.shape[0], self.d_model, self.d_state), kind="real")
            y, new = advance(x, state, x.dtype, in_place=in_place)
            return self._output(y[:, None], None)[:, 0], new

        return step

    def initial_state(self, batch: int, *, dtype: torch.dtype | None = torch.float64) -> Tensor:
        """The zero state (B, D, N).

        Args:
            batch: Number of sequences.
            dtype: float64 keeps the recurrence equal to the convolution over any length; float32 halves its memory.
                None for float32 where steps stay within 2e-6 of the peak with it: in S4 at its usual step sizes, whose
                low-rank term makes it forget roundings sooner than a diagonal SSM does.
        """
        self._check_causal("initial_state")
        if dtype is None:
            dtype = torch.float32 if isinstance(self.ssm, DPLRParameters) else torch.float64
        return zero_state(batch, self.d_model, self.d_state, dtype=dtype, device=self.D.device)

    def structure(self, dt_scale: float = 1.0) -> Structure:
        """The SSM itself, for its kernel, states, operators and eigenvalues.

        Its channels are those of the layer; a bidirectional layer has as many again, for the kernels that look ahead.

        Args:
            dt_scale: As in ``forward``.
        """
        return self.ssm.structure(dt_scale)

    def working_dtype(self, x: Tensor) -> torch.dtype:
        """What the SSM computes in: at least float32 on the CPU; on a GPU as autocast or a 16-bit input says."""
        if x.is_cuda:
            if torch.is_autocast_enabled("cuda"):
                return torch.get_autocast_dtype("cuda")
            if x.dtype in (torch.float16, torch.bfloat16):
                return x.dtype
        return torch.promote_types(x.dtype, self.ssm.precision)

    def extra_repr(self) -> str:
        """The sizes."""
        return (
            f"d_model={self.d_model}, d_state={self.d_state}, channels={self.channels}, "
            f"bidirectional={self.bidirectional}, activation={self.activation}"
        )

    def _late(self, x: Tensor) -> nn.Linear | None:
        """The linear layer of the mixing, where the activation is better made with it and nothing is in between."""
        if not x.is_cpu or self.activation is None or not self._keeps_all():
            return None
        if isinstance(self.mix, GLU):
            return self.mix.fused() if untouched(self.mix, GLU) else None
        return plain_linear(self.mix)

    def _keeps_all(self) -> bool:
        """Whether there is no dropout, and nobody who looks at it."""
        dropout = self.dropout
        plain = untouched(dropout, TiedDropout) or untouched(dropout, nn.Dropout)
        return plain and not (dropout.training and dropout.p)

    def _output(self, y: Tensor, mask: Tensor | None, late: nn.Linear | None = None) -> Tensor:
        """Mix the channels and features of y (B, L, K, D), activated before if that is still to do."""
        batch, length = y.shape[:2]
        # The engine leaves the length as the last axis in memory. Features by positions is a matrix that a product
        # takes as it is; so nothing is ever copied into another order.
        y = self.dropout(y.permute(2, 3, 0, 1).flatten(0, 1).permute(1, 2, 0))
        y = y.flatten(0, 1)
        if late is None:
            y = self.mix(y)
        else:
            y = gelu_linear(y, late.weight, late.bias)
            y = nn.functional.glu(y, -1) if isinstance(self.mix, GLU) else y
        y = as_sequences(y, batch, length) if self._owns_output() else y.unflatten(0, (batch, length))
        return y if mask is None else y.masked_fill(~mask, 0.0)

    def _owns_output(self) -> bool:
        """Whether nobody needs what the mixing gives, as a backward pass may need what another module gives."""
        last = self.mix[-1] if isinstance(self.mix, nn.Sequential) and len(self.mix) else self.mix
        return isinstance(last, (nn.Linear, nn.GLU, nn.Identity))

    def _check(self, x: Tensor, lengths: Tensor | Sequence[int] | None, dt_scale: float) -> Tensor | None:
        """Check the arguments; the mask (B, L, 1) of what is not padding."""
        check_tensor("x", x, ("batch", "length", self.d_model), kind="float")
        self._check_dtype(x)
        _check_rate(dt_scale)
        if lengths is None:
            return None
        batch, length, _ = x.shape
        lengths = check_lengths(lengths, batch, length).to(x.device)
        return (torch.arange(length, device=x.device) < lengths[:, None])[..., None]

    def _check_dtype(self, x: Tensor) -> None:
        mixed = not x.is_meta and torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64
        if x.dtype != self.D.dtype and not mixed:
            raise TypeError(
                f"x must have the dtype of the layer, {self.D.dtype}, got {x.dtype}; cast one of them or use autocast"
            )

    def _check_state(self, state: Tensor | None, batch: int) -> None:
        if state is not None:
            check_tensor("state", state, (batch, self.d_model, self.d_state), kind="real")

    def _check_causal(self, use: str) -> None:
        if self.bidirectional:
            raise ValueError(f"{use} needs a causal layer, got bidirectional=True: it looks ahead and has no state")


def plain_linear(module: nn.Module) -> nn.Linear | None:
    """The module, if it is a linear layer with a bias that need not be called."""
    if not isinstance(module, nn.Linear) or module.bias is None or not untouched(module, nn.Linear):
        return None
    return module


def kernel_count(channels: int, bidirectional: bool) -> int:
    """Kernels of each head."""
    return check_int("channels", channels, minimum=1) * (2 if check_bool("bidirectional", bidirectional) else 1)


def _masked(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x.masked_fill(~mask, 0.0)


def _check_rate(dt_scale: float) -> None:
    check_number("dt_scale", dt_scale, above=0.0)
