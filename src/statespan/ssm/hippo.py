"""HiPPO matrices, exact and in float64.

A HiPPO matrix pair (A, B) makes the state of ``x' = A x + B u`` the coefficients of the recent past of u in a basis
of functions. Three measures (three bases) are used by the papers:

* ``legs``: Legendre polynomials in exp(-t), the whole past, exponentially forgotten (S4D equation (4), Theorem 6);
* ``legt``: Legendre polynomials on a sliding window of length 2;
* ``fout``: the Fourier basis on a sliding window of length 2.

Each A is a normal matrix minus a term of rank 1 or 2, ``A = normal - Σ_r P_r P_rᵀ``, and so is unitarily equivalent
to a diagonal plus low-rank (DPLR) matrix, which :func:`dplr` returns.

Shapes: N state size, R rank of the low-rank term.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from statespan._check import check_choice, check_int

MEASURES = ("legs", "legt", "fout")


def legs(N: int) -> tuple[Tensor, Tensor]:
    """HiPPO-LegS, S4D equation (4).

    Its basis ``e_nᵀ exp(tA) B`` is ``L_n(exp(-t)) exp(-t)`` with L_n the orthonormal Legendre polynomials of [0, 1]
    (S4D Theorem 6).

    Args:
        N: State size, even, at least 2.

    Returns:
        A of shape (N, N) and B of shape (N,), float64.

    Example:
        >>> A, B = legs(2)
        >>> A.tolist()
        [[-1.0, 0.0], [-1.7320508075688772, -2.0]]
    """
    n = _indices(N)
    r = torch.sqrt(2 * n + 1)
    return torch.tril(torch.outer(-r, r), -1) - torch.diag(n + 1), r


def legt(N: int) -> tuple[Tensor, Tensor]:
    """HiPPO-LegT: Legendre polynomials on a window of length 2.

    Its basis approaches ``sqrt(2n+1)/2 · P_n(1-t)`` for 0 ≤ t ≤ 2 and 0 afterwards (P_n: Legendre polynomials).

    Args:
        N: State size, even, at least 2.

    Returns:
        A of shape (N, N) and B of shape (N,), float64.
    """
    n = _indices(N)
    r = torch.sqrt(2 * n + 1)
    sign = torch.where(n[:, None] >= n[None, :], 1.0, (-1.0) ** (n[:, None] - n[None, :]).abs()).to(torch.float64)
    return -0.5 * torch.outer(r, r) * sign, 0.5 * r


def fout(N: int) -> tuple[Tensor, Tensor]:
    """HiPPO-FouT: the Fourier basis on a window of length 2.

    States 2k and 2k+1 are the cosine and sine of frequency πk; the sine of frequency 0 is a state that stays 0. The
    basis approaches ``1/2, cos(πkt)/√2, sin(πkt)/√2`` for 0 ≤ t ≤ 2 and 0 afterwards.

    Args:
        N: State size, even, at least 2.

    Returns:
        A of shape (N, N) and B of shape (N,), float64.
    """
    _indices(N)
    B = _fout_vector(N)
    rotation = torch.zeros(N, N, dtype=torch.float64)
    k = torch.arange(N // 2)
    rotation[2 * k + 1, 2 * k] = math.pi * k.double()
    rotation[2 * k, 2 * k + 1] = -math.pi * k.double()
    return rotation - torch.outer(B, B), B


def low_rank(measure: str, N: int) -> Tensor:
    """The real low-rank term P of a measure: ``A + Σ_r P_r P_rᵀ`` is normal.

    Args:
        measure: "legs" (rank 1), "legt" (rank 2) or "fout" (rank 1).
        N: State size, even, at least 2.

    Returns:
        P of shape (R, N), float64.
    """
    check_choice("measure", measure, MEASURES)
    n = _indices(N)
    if measure == "legs":
        return torch.sqrt(n + 0.5)[None]
    if measure == "legt":
        r = torch.sqrt(n + 0.5)
        return torch.stack([torch.where(n % 2 == 1, r, 0.0), torch.where(n % 2 == 0, r, 0.0)])
    return _fout_vector(N)[None]


def legs_normal(N: int) -> Tensor:
    """The normal part A^(N) of HiPPO-LegS, S4D equation (5): -1/2 on the diagonal plus a skew-symmetric matrix.

    Args:
        N: State size, even, at least 2.

    Returns:
        A^(N) of shape (N, N), float64.
    """
    p = low_rank("legs", N)[0]
    skew = torch.outer(p, p)
    return torch.triu(skew, 1) - torch.tril(skew, -1) - 0.5 * torch.eye(N, dtype=torch.float64)


def dplr(measure: str, N: int) -> tuple[Tensor, Tensor, Tensor]:
    """A measure in diagonal plus low-rank form, one mode of each conjugate pair.

    With the kept half written v, the whole system is ``diag(Lambda, conj Lambda) - Σ_r p_r p_rᴴ`` with
    ``p_r = (P_r, conj P_r)`` and input vector ``(B, conj B)``; it is ``Vᴴ A V``, ``Vᴴ B`` for a unitary V. Conventions:
    Im Lambda ≥ 0, largest first for ``legs`` and ``legt``, ascending (πk) for ``fout``; the free phase of each
    eigenvector is chosen so that B is real and positive, which makes the result the same on every platform and needs
    no clipping of B. The zero frequency of ``fout`` is a double eigenvalue: its two real states are kept as one
    conjugate pair with Lambda = 0.

    Args:
        measure: "legs", "legt" or "fout".
        N: State size, even, at least 2.

    Returns:
        Lambda (N/2,), P (R, N/2) and B (N/2,), complex128.

    Example:
        >>> Lambda, P, B = dplr("legs", 64)
        >>> bool((Lambda.real == -0.5).all()), tuple(P.shape)
        (True, (1, 32))
    """
    check_choice("measure", measure, MEASURES)
    P = low_rank(measure, N)
    if measure == "fout":
        k = torch.arange(N // 2, dtype=torch.float64)
        B = (_fout_vector(N)[::2] / math.sqrt(2)).to(torch.complex128)
        return torch.complex(torch.zeros_like(k), math.pi * k), B[None].clone(), B
    A, B_real = legs(N) if measure == "legs" else legt(N)
    normal = A + P.T @ P
    skew = (normal - normal.T) / 2  # the symmetric part is a multiple of the identity: -1/2 (LegS) or 0 (LegT)
    # eigh of the Hermitian -i·skew: real eigenvalues, orthonormal eigenvectors, full float64 accuracy.
    frequency, V = torch.linalg.eigh(-1j * skew.to(torch.complex128))
    keep = torch.arange(N - 1, N // 2 - 1, -1)  # eigenvalues come in pairs ±; the upper half, largest first
    frequency, V = frequency[keep], V[:, keep]
    B = V.mH @ B_real.to(torch.complex128)
    V = V * (B / B.abs())  # vᴴ b becomes |vᴴ b|
    real_part = torch.full_like(frequency, -0.5 if measure == "legs" else 0.0)
    return torch.complex(real_part, frequency), P.to(torch.complex128) @ V.conj(), B.abs().to(torch.complex128)


def _indices(N: int) -> Tensor:
    check_int("N", N, minimum=2, even=True)
    return torch.arange(N, dtype=torch.float64)


def _fout_vector(N: int) -> Tensor:
    """Values of the Fourier basis 1, √2 cos, √2 sin at the present time."""
    b = torch.zeros(N, dtype=torch.float64)
    b[::2] = math.sqrt(2)
    b[0] = 1.0
    return b
