"""The recurrence over samples at irregular times, forward and backward, with a state kept only every √L samples.

A step of length s is ``x_k = f(sA) x_{k-1} + s φ(sA) B u_k`` with

    bilinear  φ(z) = 1/(1 - z/2),   f = 2φ - 1,   φ' = φ²/2,        f' = φ²
    zoh       φ(z) = (eᶻ - 1)/z,    f = eᶻ,       φ' = (eᶻ - φ)/z,  f' = eᶻ

The forward pass keeps the state before each segment. The backward pass takes the segments from the last to the first,
recomputes the states of each and goes backward through it. So memory holds √L states instead of L, and autograd records
nothing; it would keep dozens of tensors the size of all states.

Shapes: B batch, L length, H heads, M = N/2 kept complex modes, K channels, c samples of a segment. Inside, the samples
come first: (c, B, H, M).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statespan.ssm.discretize import MAX_GROWTH, _reduced_product, expm1
from statespan.ssm.packed import view_complex, view_real

SERIES = 0.02  # |z| below which φ' of the zero-order hold is its series: the quotient would cancel
TERMS = 8  # of it, exact to float64 there


class GapModes(NamedTuple):
    """The parameters of a diagonal SSM.

    Example:
        >>> A = torch.tensor([[-1.0 + 2j]])
        >>> modes = GapModes(A, torch.ones_like(A), torch.ones_like(A)[None], dt=torch.tensor([0.1]), rule="zoh")
        >>> modes.double().C  # 2C: one mode of a conjugate pair stands for both
        tensor([[[2.+0.j]]], dtype=torch.complex128)
    """

    A: Tensor
    """(H, M) complex."""
    B: Tensor
    """(H, M) complex."""
    C: Tensor
    """(K, H, M) complex."""
    dt: Tensor
    """(H,)."""
    rule: str

    def double(self) -> GapModes:
        """Parameters of any precision in double precision, with C times 2."""
        A, B, C = (x.to(torch.complex128) for x in self[:3])
        return GapModes(A, B, 2 * C, self.dt.double(), self.rule)


class Steps(NamedTuple):
    """The steps of a segment, each of its own length.

    Example:
        >>> A = torch.tensor([[-1.0 + 0j]], dtype=torch.complex128)
        >>> modes = GapModes(A, A, A[None], dt=torch.ones(1, dtype=torch.float64), rule="bilinear")
        >>> steps = Steps.of(modes, gaps=torch.tensor([[1.0], [2.0]], dtype=torch.float64))
        >>> steps.f.real.flatten()  # (1 - s/2) / (1 + s/2)
        tensor([0.3333, 0.0000], dtype=torch.float64)
    """

    s: Tensor
    """Their lengths (c, B, H)."""
    z: Tensor
    """sA (c, B, H, M)."""
    f: Tensor
    phi: Tensor

    @classmethod
    def of(cls, modes: GapModes, gaps: Tensor) -> Steps:
        """The steps for gaps (c, B)."""
        s = gaps[..., None] * modes.dt
        z = s[..., None] * modes.A
        z.real.clamp_(max=MAX_GROWTH)
        if modes.rule == "bilinear":
            phi = _reciprocal(z.mul(-0.5).add_(1))
            return cls(s, z, phi.mul(2).sub_(1), phi)
        phase = _reduced_product(s[..., None].expand(z.shape), modes.A.imag)
        less_one = expm1(z.real, phase)
        phi = torch.where(z == 0, 1, less_one * _reciprocal(torch.where(z == 0, 1, z)))
        return cls(s, z, less_one + 1, phi)

    def slopes(self, rule: str) -> tuple[Tensor, Tensor]:
        """The derivatives f' and φ'."""
        if rule == "bilinear":
            square = self.phi * self.phi
            return square, square / 2
        small = (self.z.real.abs() < SERIES) & (self.z.imag.abs() < SERIES)
        inside, series = torch.where(small, self.z, 0), torch.zeros_like(self.z)
        for k in reversed(range(TERMS)):  # Σ (k + 1) zᵏ / (k + 2)!
            series = series.mul_(inside).add_((k + 1) / math.factorial(k + 2))
        quotient = (self.f - self.phi) * _reciprocal(torch.where(small, 1, self.z))
        return self.f, torch.where(small, series, quotient)


def states_of(steps: Steps, B: Tensor, u: Tensor, start: Tensor) -> Tensor:
    """The states (c, B, H, M) after the samples u (c, B, H), from the state before them."""
    x = steps.phi * (steps.s * u)[..., None]
    x *= B
    before = start
    for step, now in zip(steps.f.unbind(), x.unbind()):
        now.addcmul_(step, before)
        before = now
    return x


class Scan(torch.autograd.Function):
    """``(u, gaps, start, A, B, C, dt, rule, chunk) -> (y, last)`` with complex states; see :func:`scan_gaps`.

    Example:
        >>> A = torch.tensor([[-1.0 + 0j]])
        >>> u, gaps, start = torch.ones(1, 3, 1), torch.ones(1, 3), torch.zeros(1, 1, 1, dtype=torch.complex128)
        >>> y, last = Scan.apply(u, gaps, start, A, -A, -A[None] / 2, torch.ones(1), "bilinear", 2)
        >>> y.flatten()
        tensor([0.6667, 0.8889, 0.9630], dtype=torch.float64)
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        """Return y (B, L, K, H) float64 and the last state (B, H, M)."""
        u, gaps, x, A, B, C, dt, rule, chunk = inputs
        modes = GapModes(A, B, C, dt, rule).double()
        y = u.new_empty(*u.shape[:2], *modes.C.shape[:2], dtype=torch.float64)
        kept = []
        for at in range(0, u.shape[1], chunk):
            kept.append(x)
            steps = Steps.of(modes, _first(gaps, at, chunk))
            states = states_of(steps, modes.B, _first(u, at, chunk), x)
            y[:, at : at + chunk] = torch.einsum("khn,cbhn->bckh", _rows(modes.C), view_real(states))
            x = states[-1].clone()
        ctx.save_for_backward(u, gaps, A, B, C, dt, *kept)
        ctx.settings = rule, chunk
        return y, x

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dlast: Tensor) -> tuple[Tensor | None, ...]:
        """The adjoint recurrence, segment by segment from the right."""
        u, gaps, A, B, C, dt, *kept = ctx.saved_tensors
        rule, chunk = ctx.settings
        if torch.is_grad_enabled():
            modes = GapModes(A, B, C, dt, rule)
            return (*_recorded_gradients((u, gaps, kept[0]), modes, (dy, dlast)), None, None)
        modes = GapModes(A, B, C, dt, rule).double()
        du, dgaps = torch.empty_like(u), torch.empty_like(gaps)
        dA, dB, dC, ddt = (torch.zeros_like(x) for x in modes[:4])  # conjugated, as everything complex below
        carry = dlast.conj_physical()
        for at, start in reversed(list(zip(range(0, u.shape[1], chunk), kept))):
            here, (gap, drive, dout) = slice(at, at + chunk), (_first(x, at, chunk) for x in (gaps, u, dy))
            steps = Steps.of(modes, gap)
            x = states_of(steps, modes.B, drive, start)
            dC += view_complex(torch.einsum("cbkh,cbhn->khn", dout, view_real(x)).contiguous())
            dx = view_complex(torch.einsum("khn,cbkh->cbhn", view_real(modes.C), dout).contiguous())
            carry = _walk_back(steps.f, dx, carry)
            before = torch.cat([start[None], x[:-1]])
            part_A, part_B, ddrive, ds = _gradients(modes, steps, dx, before=before, u=drive)
            dA += part_A
            dB += part_B
            ddt += torch.einsum("cbh,cb->h", ds, gap)
            du[:, here], dgaps[:, here] = ddrive.transpose(0, 1), (ds @ modes.dt).T
        found = (dA.conj(), dB.conj(), 2 * dC.conj(), ddt)
        parameters = (x.resolve_conj().to(like.dtype) for x, like in zip(found, (A, B, C, dt)))
        return (du, dgaps, carry.conj_physical(), *parameters, None, None)


def _walk_back(f: Tensor, dx: Tensor, carry: Tensor) -> Tensor:
    """Propagate gradients backward through the recurrence: add those of later states to dx, in place.

    Returns that of the state before the segment.
    """
    dx[-1] += carry
    later = dx[-1]
    for step, now in zip(reversed(f[1:].unbind()), reversed(dx[:-1].unbind())):
        now.addcmul_(step, later)
        later = now
    return f[0] * later


def _gradients(
    modes: GapModes, steps: Steps, dx: Tensor, *, before: Tensor, u: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of A, B (H, M), u and the step lengths s (c, B, H) from those of the states; all but u conjugated.

    The states' gradients dx and the states before the samples are (c, B, H, M).
    """
    f_slope, phi_slope = steps.slopes(modes.rule)
    driven = steps.s * u
    by_phi = dx * steps.phi
    dB = view_complex(torch.einsum("cbh,cbhn->hn", driven, view_real(by_phi)).contiguous())
    ddriven = torch.einsum("hn,cbhn->cbh", _rows(modes.B), view_real(by_phi))
    dz = f_slope * before + phi_slope.mul_(modes.B).mul_(driven[..., None])
    dz *= dx
    dz.real.masked_fill_(steps.z.real >= MAX_GROWTH, 0.0)  # which did not follow A
    dA = view_complex(torch.einsum("cbh,cbhn->hn", steps.s, view_real(dz)).contiguous())
    ds = torch.einsum("hn,cbhn->cbh", _rows(modes.A), view_real(dz)) + ddriven * u
    return dA, dB, ddriven * steps.s, ds


def _recorded_gradients(
    inputs: tuple[Tensor, Tensor, Tensor], modes: GapModes, arriving: tuple[Tensor, Tensor]
) -> tuple[Tensor | None, ...]:
    """The same gradients, recorded for double backward; all states are kept."""
    from statespan.ssm.irregular import scan_recorded

    leaves = (*inputs, *modes[:4])
    asked = [x for x in leaves if x.requires_grad]
    found = torch.autograd.grad(
        scan_recorded(*inputs, modes), asked, arriving, create_graph=True, materialize_grads=True
    )
    given = iter(found)
    return tuple(next(given) if x.requires_grad else None for x in leaves)


def _first(x: Tensor, at: int, chunk: int) -> Tensor:
    """A segment of x (B, L, …) as (c, B, …), float64."""
    return x[:, at : at + chunk].transpose(0, 1).to(torch.float64, memory_format=torch.contiguous_format)


def _rows(w: Tensor) -> Tensor:
    """``x ↦ Re(w x)`` as real numbers (…, 2M) to multiply those of x with."""
    return view_real(w.conj_physical())


def _reciprocal(z: Tensor) -> Tensor:
    """1/z; torch's own is several times slower on a CPU."""
    return z.conj_physical().div_(z.real.square() + z.imag.square())
