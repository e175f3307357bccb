"""Discretization: from ``x' = A x + B u`` to ``x_k = Ā x_{k-1} + B̄ u_k``, accurate for every Δ·A (S4D section 3.1).

All of it runs in float64 whatever comes in: the state matrix is raised to the power of the sequence length later, so
an error in Ā is multiplied by that length.

One range is kept on purpose: Re ΔA ≤ 1 for complex modes, which keeps the zero-order hold from overflowing and the
bilinear rule off its pole at ΔA = 2. An unstable mode then grows by at most e (zoh) or 3 (bilinear) per step.

Shapes: H heads, M = N/2 kept complex modes, N real state size.
"""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor

from statespan._check import check_number, check_tensor

MAX_GROWTH = 1.0  # of Re ΔA
# 2π in three parts: its bits down to 2⁻¹⁷, those down to 2⁻³⁸, and the rest. The first two are so short that their
# products with whole numbers below 2³³ are exact.
_TWO_PI = (6.283180236816406, 5.070360202807933e-06, 2.9774189921946493e-12)


def zoh(A: Tensor, B: Tensor, dt: Tensor, *, dt_scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Zero-order hold: ``Ā = exp(ΔA)``, ``B̄ = A⁻¹ (exp(ΔA) - I) B``, exact for inputs that are constant in a step.

    Args:
        A: Diagonal (H, M) complex, or dense (H, N, N) real.
        B: (H, M) complex or (H, N) real.
        dt: Step sizes Δ, (H,).
        dt_scale: Factor on Δ: 2.0 for data sampled half as often as Δ was made for.

    Returns:
        Ā and B̄ in the shapes of A and B, in double precision.
    """
    dt = _check(A, B, dt, dt_scale)
    if A.ndim == 2:
        Abar, phi = _exp_and_phi(A, dt)
        return Abar, dt[:, None] * phi * B.to(torch.complex128)
    return dense_zoh(dt[:, None, None] * A.double(), dt[:, None] * B.double())


def foh(A: Tensor, B: Tensor, dt: Tensor, *, dt_scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """First-order hold: ``Ā = exp(ΔA)``, ``B̄ = Δ φ(ΔA)² B``, exact for inputs that are linear between the samples.

    φ(z) = (exp(z) - 1)/z. The state after a sample is the one at the next sample's time if that sample is 0, so an
    output reads the state before its sample: ``y_k = C x_{k-1} + C R u_k`` with R of :func:`ramp`.

    Args:
        A: Diagonal (H, M) complex, or dense (H, N, N) real.
        B: (H, M) complex or (H, N) real.
        dt: Step sizes Δ, (H,).
        dt_scale: Factor on Δ: 2.0 for data sampled half as often as Δ was made for.

    Returns:
        Ā and B̄ in the shapes of A and B, in double precision.
    """
    dt = _check(A, B, dt, dt_scale)
    if A.ndim == 2:
        Abar, phi = _exp_and_phi(A, dt)
        return Abar, dt[:, None] * phi * phi * B.to(torch.complex128)
    Abar, Bbar, _ = dense_foh(dt[:, None, None] * A.double(), dt[:, None] * B.double())
    return Abar, Bbar


def ramp(A: Tensor, B: Tensor, dt: Tensor, *, dt_scale: float = 1.0) -> Tensor:
    """First-order hold: ``R = Δ ψ(ΔA) B``, ψ(z) = (φ(z) - 1)/z, what a sample has added to the state at its own time.

    Args:
        A: Diagonal (H, M) complex, or dense (H, N, N) real.
        B: (H, M) complex or (H, N) real.
        dt: Step sizes Δ, (H,).
        dt_scale: Factor on Δ: 2.0 for data sampled half as often as Δ was made for.

    Returns:
        R in the shape of B, in double precision.
    """
    dt = _check(A, B, dt, dt_scale)
    if A.ndim == 2:
        return dt[:, None] * _psi(A, dt) * B.to(torch.complex128)
    return dense_foh(dt[:, None, None] * A.double(), dt[:, None] * B.double())[2]


def bilinear(A: Tensor, B: Tensor, dt: Tensor, *, dt_scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Bilinear rule: ``Ā = (I - ΔA/2)⁻¹ (I + ΔA/2)``, ``B̄ = (I - ΔA/2)⁻¹ ΔB``.

    Arguments and results are those of :func:`zoh`.
    """
    dt = _check(A, B, dt, dt_scale)
    if A.ndim == 2:
        half = scale(A, dt) / 2
        return (1 + half) / (1 - half), dt[:, None] * B.to(torch.complex128) / (1 - half)
    half = dt[:, None, None] * A.double() / 2
    identity = torch.eye(A.shape[-1], dtype=torch.float64, device=A.device)
    right = torch.cat([identity + half, dt[:, None, None] * B.double()[..., None]], -1)
    # on a GPU, to ask whether there is a solution would be to wait for it
    solved, _ = torch.linalg.solve_ex(identity - half, right, check_errors=not A.is_cuda)
    return solved[..., :-1], solved[..., -1]


RULES = {"zoh": zoh, "bilinear": bilinear, "foh": foh}


def dense_zoh(dtA: Tensor, dtB: Tensor) -> tuple[Tensor, Tensor]:
    """Ā and B̄ from ΔA (H, N, N) and ΔB (H, N), float64.

    The exponential of [[ΔA, ΔB], [0, 0]] is [[Ā, B̄], [0, 1]]: no inverse of A, so a singular A needs no special case.
    """
    rows = torch.cat([dtA, dtB[..., None]], -1)
    blocks = torch.linalg.matrix_exp(torch.nn.functional.pad(rows, (0, 0, 0, 1)))
    return blocks[:, :-1, :-1], blocks[:, :-1, -1]


def dense_foh(dtA: Tensor, dtB: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Ā, B̄ and R of a first-order hold from ΔA (H, N, N) and ΔB (H, N), float64.

    The exponential of [[ΔA, ΔB, 0], [0, 0, 1], [0, 0, 0]] has the first row Ā, φ(ΔA) ΔB, ψ(ΔA) ΔB.
    """
    H, N = dtB.shape
    last = dtB.new_zeros(N + 2, N + 2)
    last[N, N + 1] = 1.0
    blocks = torch.cat([dtA, dtB[..., None], torch.zeros_like(dtB)[..., None]], -1)
    blocks = torch.cat([blocks, last[N:].expand(H, 2, N + 2)], -2)
    rows = torch.linalg.matrix_exp(blocks)[:, :N]
    Abar, constant, linear = rows[..., :N], rows[..., N], rows[..., N + 1]
    return Abar, (Abar @ linear[..., None])[..., 0] + constant - linear, linear


def scale(A: Tensor, dt: Tensor) -> Tensor:
    """ΔA of diagonal modes (H, M) in complex128, with the growth of unstable ones capped."""
    real = (dt[:, None] * A.real.double()).clamp(max=MAX_GROWTH)
    return torch.complex(real, dt[:, None] * A.imag.double())


def expm1(x: Tensor, phase: Tensor) -> Tensor:
    """``exp(x + i·phase) - 1`` without cancellation near 0."""
    sine = torch.sin(phase / 2)
    return torch.complex(torch.expm1(x) * torch.cos(phase) - 2 * sine * sine, torch.exp(x) * torch.sin(phase))


def _check(A: Tensor, B: Tensor, dt: Tensor, dt_scale: float) -> Tensor:
    """Check the arguments of a rule; the step sizes in float64."""
    if isinstance(A, Tensor) and A.ndim == 3:
        H, N, _ = check_tensor("A", A, ("H", "N", "N"), kind="real").shape
        check_tensor("A", A, (H, N, N), kind="real")
        check_tensor("B", B, (H, N), kind="real")
    else:
        H, M = check_tensor("A", A, ("H", "N/2"), kind="complex").shape
        check_tensor("B", B, (H, M), kind="complex")
    return check_tensor("dt", dt, (H,), kind="real").double() * check_number("dt_scale", dt_scale, above=0.0)


def _exp_and_phi(A: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """``exp(z)`` and ``φ(z) = (exp(z) - 1)/z`` for z = ΔA."""
    z = scale(A, dt)
    phase = _reduced_product(dt[:, None].expand(A.shape), A.imag.double())
    # Below 0.1 the quotient's derivative would cancel; twelve terms of the series are exact to float64 there.
    small = (z.real.abs() < 0.1) & (z.imag.abs() < 0.1)
    inside = torch.where(small, z, 0)
    series = torch.ones_like(z)
    for k in range(13, 1, -1):
        series = 1 + inside / k * series
    quotient = expm1(z.real, phase) / torch.where(small, 1, z)
    size = torch.exp(z.real)
    exp = torch.complex(size * torch.cos(phase), size * torch.sin(phase))  # torch.polar has no gradient at size 0
    return exp, torch.where(small, series, quotient)


def _psi(A: Tensor, dt: Tensor) -> Tensor:
    """``ψ(z) = (φ(z) - 1)/z`` for z = ΔA; by its series near 0, as φ."""
    z = scale(A, dt)
    small = (z.real.abs() < 0.5) & (z.imag.abs() < 0.5)
    inside = torch.where(small, z, 0)
    series = torch.ones_like(z)
    for k in range(18, 2, -1):
        series = 1 + inside / k * series
    quotient = (_exp_and_phi(A, dt)[1] - 1) / torch.where(small, 1, z)
    return torch.where(small, series / 2, quotient)


def _reduced_product(a: Tensor, b: Tensor) -> Tensor:
    """``a · b`` modulo 2π, in about [-π, π], with the rounding error of the product carried along (Dekker)."""
    product = a * b
    with torch.no_grad():
        a_high, b_high = _leading_half(a), _leading_half(b)
        a_low, b_low = a - a_high, b - b_high
        error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
        turns = torch.round(product / (2 * pi))
        first, second, third = _TWO_PI
        reduced = ((product - turns * first) - turns * second) - turns * third + error
    return reduced + (product - product.detach())  # the value is `reduced`, the derivative that of the product


def _leading_half(x: Tensor) -> Tensor:
    """The leading 26 bits (Veltkamp split), so that products of halves are exact."""
    shifted = 134217729.0 * x
    return shifted - (shifted - x)
