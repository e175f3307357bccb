"""The parameters of SSMs with many inputs and outputs: one diagonal SSM for all features (S5, LRU).

Each of the N/2 kept modes is a complex recurrence, driven by a mixture of the features:

    v = B u,   s_k = Ā s_{k-1} + B̄ v_k,   y = 2 Re(C s) + D u

The engine treats a mode as a head with a state of size 2. It takes real inputs, so Re v and Im v are two sequences of a
batch. With the states s' and s'' that they drive, s = s' + i s''. An anti-causal kernel is the recurrence on the
reversed sequence, delayed by one sample.

Shapes: B batch, L length, D features, M = N/2 kept modes, K kernels of each output. States are (B, M, 2): the real and
the imaginary part of each mode.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear

from statespan.nn.options import SSMOptions
from statespan.nn.parameters import SSMParameters
from statespan.nn.real_part import real_part
from statespan.ops import apply
from statespan.ops.ssm.arguments import ModeTensors
from statespan.ops.ssm.sequences import prefill_whole, runner
from statespan.ops.ssm.source import Modal
from statespan.ssm import Diagonal


class MIMOParameters(SSMParameters):
    """A diagonal SSM for all features: B (M, D, 2) and C (K, D, M, 2) beside the modes.

    Args:
        options: Sizes, step sizes and what is trained.

    Example:
        >>> from statespan.nn import S5
        >>> ssm = S5(4, 8).ssm
        >>> isinstance(ssm, MIMOParameters), ssm.state_shape
        (True, (4, 2))
        >>> ssm(torch.randn(2, 100, 4)).shape  # (B, L, K, D)
        torch.Size([2, 100, 1, 4])
    """

    power = "diagonal"
    B: Tensor

    def __init__(self, options: SSMOptions) -> None:
        super().__init__(options)
        if options.discretization == "foh":
            raise ValueError("discretization must be one of ('zoh', 'bilinear') for one SSM of all features, got 'foh'")

    @property
    def state_shape(self) -> tuple[int, int]:
        """The shape of a state without the batch: (M, 2)."""
        return self.options.d_state // 2, 2

    @abstractmethod
    def modal(self, dt_scale: float) -> Modal:
        """The modes as heads, whose outputs are the real and the imaginary part of their state."""

    def structure(self, dt_scale: float = 1.0, length: int | None = None) -> Diagonal:
        """The recurrences of the modes, one head each, with real inputs; see the module's docstring.

        Its two channels are the real and the imaginary part of the state.
        """
        modal = self.modal(1.0)
        modes = modal.parameters
        A = torch.complex(real_part(modal.real_part, modes.decay), modes.freq.double())
        dt = modes.dt.double().exp() if modal.log_dt else modes.dt.double()
        B, C = torch.view_as_complex(modes.B), torch.view_as_complex(modes.C)
        return Diagonal(A, B, C, dt, discretization=modal.rule).with_dt_scale(dt_scale)

    def forward(
        self, u: Tensor, D: Tensor | None = None, *, bidirectional: bool = False, activation: str | None = None,
        dtype: torch.dtype | None = None, dt_scale: float = 1.0,
    ) -> Tensor:  # fmt: skip
        """Apply the SSM to whole sequences u (B, L, D), as y (B, L, K, D)."""
        self._check_precision()
        source, run = self.source(dt_scale), runner()
        if run is not None:
            drive = self.drive(u, dtype)
            both = run(source, drive, ahead=source if bidirectional else None, dtype=drive.dtype)
            y = both.behind if both.ahead is None else torch.cat([both.behind, both.ahead.flip(1)])
        else:
            drive = self.drive(u, dtype, bidirectional=bidirectional)
            y = apply(source, drive, dtype=drive.dtype)
        return self.read(y, u, D, bidirectional=bidirectional, activation=activation)

    def prefill(
        self, u: Tensor, state: Tensor | None, D: Tensor | None = None, *, lengths: Tensor | None = None,
        activation: str | None = None, dtype: torch.dtype | None = None, dt_scale: float = 1.0,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Like ``forward``, but starts from a state (B, M, 2) and also returns the state after each sequence."""
        self._check_precision()
        drive, source = self.drive(u, dtype), self.source(dt_scale)
        start = None if state is None else torch.cat([state, torch.zeros_like(state)])
        both = None if lengths is None else torch.cat([lengths, lengths])
        y, after = prefill_whole(source, drive, start, lengths=both, dtype=drive.dtype)
        first, second = after.unflatten(0, (2, -1))
        state = torch.stack([first[..., 0] - second[..., 1], first[..., 1] + second[..., 0]], -1)
        return self.read(y, u, D, activation=activation), state

    def drive(self, u: Tensor, dtype: torch.dtype | None = None, *, bidirectional: bool = False) -> Tensor:
        """B u for u (B, L, D): real, then imaginary parts as a batch (2B, L, M); also reversed if bidirectional."""
        dtype = dtype or torch.promote_types(u.dtype, self.precision)
        weight = self.B.movedim(-1, 0).flatten(0, 1)  # (2M, D)
        v = torch.cat(linear(u.to(dtype), weight.to(dtype)).chunk(2, -1))
        if not bidirectional:
            return v
        at = torch.arange(u.shape[1], device=u.device)
        reversed_v = v[:, (u.shape[1] - at).clamp(max=u.shape[1] - 1)]  # anti-causal: starts at the next sample
        return torch.cat([v, reversed_v.masked_fill((at == 0)[:, None], 0.0)])

    def read(
        self, y: Tensor, u: Tensor, D: Tensor | None, *, bidirectional: bool = False, activation: str | None = None
    ) -> Tensor:
        """The outputs (B, L, K, D) from those of the modes (2B, L, 2, M), or (4B, L, 2, M) in both directions."""
        parts = y.unflatten(0, (4 if bidirectional else 2, -1))
        states = [_joined(*parts[:2])]
        if bidirectional:
            states.append(_joined(*parts[2:]).flip(1))
        count = self.C.shape[0] // len(states)
        C = torch.cat([2 * self.C[..., 0], -2 * self.C[..., 1]], -1)  # (K, D, 2M)
        weight = torch.cat(C.split(count), -1).flatten(0, 1)
        out = linear(torch.cat(states, -1), weight.to(y.dtype)).unflatten(-1, (count, -1))
        if D is not None:
            out = out + D.to(out.dtype) * u[:, :, None].to(out.dtype)
        return out if activation is None else gelu(out)

    def stepper(
        self, D: Tensor | None, activation: str | None, dt_scale: float
    ) -> Callable[..., tuple[Tensor, Tensor]]:
        """A step in real float64 arithmetic, set up once; see :class:`statespan.ops.Stepper`."""
        Abar, gain, _ = self.structure(dt_scale).discrete()
        wide = gain * torch.view_as_complex(self.B.double().contiguous())
        into = torch.view_as_real(wide).permute(1, 0, 2).flatten(1)  # (D, 2M), real and imaginary parts interleaved
        real, imag = Abar.real[:, 0], Abar.imag[:, 0]
        C = self.C.double()
        out = torch.stack([2 * C[..., 0], -2 * C[..., 1]], -1).flatten(-2)  # (K, D, 2M)

        def advance(u: Tensor, state: Tensor, dtype: torch.dtype, *, in_place: bool = False) -> tuple[Tensor, Tensor]:
            sr, si = state.double().unbind(-1)
            turned = torch.stack([real * sr - imag * si, imag * sr + real * si], -1)
            new = turned + (u.double() @ into).unflatten(-1, turned.shape[1:])
            y = torch.einsum("bn,kdn->bkd", new.flatten(1), out)
            y = (y if D is None else y + D.double() * u.double()[:, None]).to(dtype)
            kept = state.copy_(new) if in_place else new.to(state.dtype)
            return gelu(y) if activation else y, kept

        return advance

    def extra_repr(self) -> str:
        """The options."""
        return f"kernels={self.options.kernels}, discretization={self.options.discretization}"

    def _as_heads(self, dt: Tensor, decay: Tensor, freq: Tensor, gain: Tensor) -> ModeTensors:
        """The parameters of :class:`Modal` from one number per mode (M,); the complex ``gain`` is its B."""
        halves = 0.5 - torch.arange(2, device=gain.device, dtype=gain.real.dtype)  # (0.5, -0.5), without the host
        read = torch.diag(halves)[:, None, None].expand(2, len(dt), 1, 2).contiguous()  # 2 Re C s = Re s, Im s
        pairs = torch.view_as_real(gain)[:, None].contiguous()
        return ModeTensors(dt, decay[:, None], freq[:, None], pairs, read)


def _joined(first: Tensor, second: Tensor) -> Tensor:
    """The states (B, L, 2M) from the responses (B, L, 2, M) to the real and the imaginary part of the drive."""
    return torch.cat([first[:, :, 0] - second[:, :, 1], first[:, :, 1] + second[:, :, 0]], -1)
