"""One step of an SSM for all heads, in real numbers: ``x' = Ā x + B̄ u``, ``y = C x' + D u``.

The arithmetic is float64, whatever the state is kept in: a coefficient rounded to float32 would be wrong in the same
direction at every step, while the rounding of the state itself is as often up as down. So outputs from a float32 state
stay about 1e-6 of their peak from the exact ones, however many steps there are, at half the memory traffic of float64,
which is what a step on a GPU is made of (`statespan bench step` measures both).

Shapes: B batch, H heads, N state size, M = N/2 modes, K channels, R rank of what is added to the diagonal.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import gelu

from statespan.ops.dispatch import kernels_run
from statespan.ops.register import operator, transformed
from statespan.ops.step.eager import EagerStep, is_eager_on_cpu
from statespan.ssm import Structure
from statespan.ssm.dplr import LowRankTransition
from statespan.ssm.packed import DiagonalTransition, pack, pack_rows

LARGEST = 512
"""State size up to which the kernel keeps the state of a head in registers."""


class System(NamedTuple):
    """The system of a step, computed once: real numbers on packed states, float64; the skip in any dtype.

    Ā is ``diagonal``, or ``diagonal + Σ_r columns_r rows_rᵀ``, or ``dense``.

    Example:
        >>> from statespan import S4D
        >>> system = system_of(S4D(4, 8).structure())
        >>> system.diagonal.shape, system.dense is None
        (torch.Size([4, 8]), True)
    """

    diagonal: Tensor | None
    """(H, N): the real parts of Ā's diagonal, then the imaginary parts."""
    columns: Tensor | None
    """(R, H, N)."""
    rows: Tensor | None
    """(R, H, N)."""
    dense: Tensor | None
    """(H, N, N)."""
    B: Tensor
    """B̄, (H, N)."""
    C: Tensor
    """(K, H, N)."""
    D: Tensor | None = None
    """(K, H): the skip; in :func:`system_of`, F of a first-order hold."""


def system_of(ssm: Structure) -> System:
    """The step system of a structure.

    Args:
        ssm: The SSM; its parameters get gradients through the step if they require them.
    """
    transition, B, C, F = ssm.recurrence()
    if isinstance(transition, DiagonalTransition):
        return System(pack(transition.Abar), None, None, None, B, C, F)
    if isinstance(transition, LowRankTransition):
        resolvent = transition.resolvent  # Ā = 2 (D - columns · inner · rows) - 1
        rows = torch.einsum("hqr,rhn->qhn", resolvent.inner, pack_rows(resolvent.rows))
        return System(pack(2 * resolvent.D - 1), pack(-2 * resolvent.columns), rows, None, B, C)
    return System(None, None, None, transition.matrix(), B, C, F)


class StepOptions(NamedTuple):
    """How to take a step.

    Example:
        >>> options = StepOptions(gelu=True, dtype=torch.float32)
        >>> options.early
        False
    """

    gelu: bool
    dtype: torch.dtype
    """Of y."""
    early: bool = False
    """Whether y reads the state before the sample, as with a first-order hold."""


class Stepper:
    """A step with its coefficients laid out for the device.

    Args:
        system: The SSM's.
        D: The skip (K, H), or None.
        activation: "gelu" or None.

    Example:
        >>> from statespan import S4D
        >>> layer = S4D(4, 8)
        >>> step = Stepper(system_of(layer.structure()), layer.D, "gelu")
        >>> y, state = step(torch.randn(2, 4), layer.initial_state(2), torch.float32)
        >>> y.shape, state.shape
        (torch.Size([2, 1, 4]), torch.Size([2, 4, 8]))
    """

    def __init__(self, system: System, D: Tensor | None = None, activation: str | None = None) -> None:
        self.early = system.D is not None
        if D is not None and system.D is not None:
            D = D + system.D
        tensors = (None if x is None else x.contiguous() for x in system._replace(D=system.D if D is None else D))
        self.system = System(*tensors)  # type: ignore[arg-type]
        self.gelu = activation is not None
        self.skip = None if self.system.D is None else self.system.D.double()
        self.even = self.odd = system.B
        if system.diagonal is not None:
            real, imag = system.diagonal.chunk(2, -1)
            self.even, self.odd = torch.cat([real, real], -1), torch.cat([-imag, imag], -1)
        is_on_cpu = system.diagonal is not None and type(system.diagonal) is Tensor and system.diagonal.is_cpu
        self.eager = EagerStep(self.system, early=self.early) if is_on_cpu and not _is_traced() else None

    def __call__(
        self, u: Tensor, state: Tensor, dtype: torch.dtype, *, in_place: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Take one step.

        Args:
            u: (B, H).
            state: (B, H, N), float32 or float64.
            dtype: Of y.
            in_place: Write the new state over the old one, which is then what comes back.

        Returns:
            y (B, K, H), and the new state in the dtype of ``state``.
        """
        if self._fused(u, state):
            options = StepOptions(self.gelu, dtype, self.early)
            if in_place and not torch.compiler.is_compiling() and state.is_contiguous():
                return _run(u, state, self.system, options, out=state)
            y, new = fused_step(u, state, self.system, options)
        elif self.eager is not None and is_eager_on_cpu(u, state) and state.shape[1:] == self.system.B.shape:
            y, new = self.eager(u, state, dtype, in_place=in_place)
            return gelu(y) if self.gelu else y, new
        else:
            y, new = self._plain(u, state, dtype)
        return y, state.copy_(new) if in_place else new

    def _plain(self, u: Tensor, state: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        system, wide = self.system, u.double()[..., None]
        x = state.double()
        if system.dense is not None:
            new = (system.dense @ x[..., None])[..., 0]
        else:
            new = torch.addcmul(self.even * x, self.odd, x.roll(x.shape[-1] // 2, -1))  # (re, im) times (re, im)
            if system.columns is not None and system.rows is not None:
                for column, row in zip(system.columns, system.rows):
                    new = torch.addcmul(new, column, (row * x).sum(-1, keepdim=True))
        new = torch.addcmul(new, system.B, wide)
        y = (system.C * (x if self.early else new)[:, None]).sum(-1)  # (B, K, H)
        if self.skip is not None:
            y = torch.addcmul(y, self.skip, wide[:, None, :, 0])
        y = y.to(dtype)
        return gelu(y) if self.gelu else y, new.to(state.dtype)

    def _fused(self, u: Tensor, state: Tensor) -> bool:
        """Whether the kernel runs the step: on a GPU, without gradients."""
        if self.system.dense is not None or state.shape[-1] > LARGEST or state.shape[0] == 0:
            return False
        if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (u, state, *self.system)):
            return False
        return kernels_run(u)


def _is_traced() -> bool:
    """Whether a tracer runs, whose tensors have no memory."""
    return torch.compiler.is_compiling() or transformed() or torch._C._get_tracing_state() is not None


def _run(u: Tensor, state: Tensor, system: System, options: StepOptions, *, out: Tensor) -> tuple[Tensor, Tensor]:
    from statespan.ops.step._triton import step

    return step(u.contiguous(), state, system, options, out=out), out


def _step(u: Tensor, state: Tensor, system: System, options: StepOptions) -> tuple[Tensor, Tensor]:
    """Return y (B, K, H) and the new state (B, H, N) by the kernel."""
    state = state.contiguous()
    return _run(u, state, system, options, out=torch.empty_like(state))


def _step_fake(u: Tensor, state: Tensor, system: System, options: StepOptions) -> tuple[Tensor, Tensor]:
    y = u.new_empty(u.shape[0], system.C.shape[0], u.shape[1], dtype=options.dtype)
    return y, torch.empty_like(state, memory_format=torch.contiguous_format)


fused_step = operator("statespan::step", _step, _step_fake, ((1, 1, 0, 1, 1, 0, 0, 1, 1), (2, 1)))
