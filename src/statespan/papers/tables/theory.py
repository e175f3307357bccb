"""The numbers behind Figures 1 to 5 of the S4D paper, in float64.

Shapes: N state size, F basis functions, T times or samples. Every basis is (F, T) in float64, at times t (T,), which
`perturbed` and `fout_functions` take as equally spaced from 0.
"""

from __future__ import annotations

import math

import torch
from numpy.polynomial.legendre import legvander
from torch import Tensor

from statespan._check import check_choice, check_int
from statespan.ssm import bilinear, hippo, inits, zoh

RULES = {"zoh": zoh, "bilinear": bilinear}  # whose samples are Ā^l B̄


def legs_functions(t: Tensor, F: int) -> Tensor:
    """The basis of S4-LegS in closed form, ``L_n(exp(-t)) exp(-t)`` (Theorem 6), L_n orthonormal on [0, 1].

    Example:
        >>> legs_functions(torch.tensor([0.0]), 3)[:, 0].tolist()
        [1.0, 1.7320508075688772, 2.23606797749979]
    """
    decay = torch.exp(-t.double())
    polynomials = torch.from_numpy(legvander(2 * decay.numpy() - 1, F - 1).T)  # (F, T)
    return (2 * torch.arange(F).double() + 1).sqrt()[:, None] * polynomials * decay


def eigenbasis(N: int) -> tuple[Tensor, Tensor, Tensor]:
    """Λ (N,), V (N, N) and Vᴴ B/2 (N,) of the normal part A⁽ᴺ⁾ of HiPPO-LegS: Theorem 3's system, complex128."""
    skew = hippo.legs_normal(N) + 0.5 * torch.eye(N, dtype=torch.float64)
    frequency, V = torch.linalg.eigh(-1j * skew.to(torch.complex128))
    Lambda = torch.complex(torch.full_like(frequency, -0.5), frequency)
    return Lambda, V, V.mH @ (hippo.legs(N)[1] / 2).to(torch.complex128)


def normal_functions(N: int, t: Tensor, F: int) -> Tensor:
    """The basis of Theorem 3: the first F rows of ``exp(t A⁽ᴺ⁾) B/2``, in continuous time."""
    Lambda, V, b = eigenbasis(N)
    return ((V[:F] * b) @ torch.exp(Lambda[:, None] * t.double())).real


def normal_samples(N: int, rule: str, *, dt: float, length: int, F: int) -> Tensor:
    """The same basis in discrete time: rows of ``Ā^l B̄ / Δ``, l = 0 … length − 1."""
    Lambda, V, b = eigenbasis(N)
    Abar, Bbar = _discrete(Lambda, b, rule, dt)
    return ((V[:F] * (Bbar / dt)) @ Abar[:, None] ** torch.arange(length)).real


def legs_samples(rule: str, dt: float, length: int, F: int) -> Tensor:
    """S4-LegS under the same rule; A is lower triangular, so the first F states form a closed system."""
    Abar, Bbar = _discrete(*hippo.legs(F + F % 2), rule, dt)
    return _powers(Abar, Bbar / dt, length)[:F]


def theorem3_errors(sizes: tuple[int, ...], rule: str, *, dt: float = 0.01, length: int = 400, F: int = 4) -> Tensor:
    """The error of the diagonal basis against that of S4-LegS, for growing state sizes."""
    wanted = legs_samples(rule, dt, length, F)
    differences = [normal_samples(N, rule, dt=dt, length=length, F=F) - wanted for N in sizes]
    return torch.stack([difference.norm() for difference in differences]) / wanted.norm()


def continuous_error(N: int, F: int = 4) -> float:
    """The same error in continuous time, where it does not fall: with N the difference gets faster, not smaller."""
    t = 4 * torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wanted = legs_functions(t, F)
    return float((normal_functions(N, t, F) - wanted).norm() / wanted.norm())


def largest_eigenvalue(N: int) -> float:
    """Im A_0 of S4D-LegS minus N²/π: the constant c of Conjecture 5, about -π/6."""
    check_int("N", N, minimum=2, even=True)
    return float(hippo.dplr("legs", N)[0].imag.max()) - N**2 / math.pi


def laws(N: int) -> dict[str, Tensor]:
    """The imaginary parts of all S4D initializations of Figure 3, largest first, (N/2,) each."""
    names = ("legs", "inv", "inv2", "quad", "lin")
    return {name: inits.diagonal(name, N)[0].imag.sort(descending=True).values for name in names}


def perturbed(N: int, sigma: float, t: Tensor, F: int, *, seed: int = 0) -> Tensor:
    """The basis of (A + P Pᵀ, B) for HiPPO-LegS and a random P with entries of deviation σ (Figure 4)."""
    A, B = hippo.legs(N)
    P = sigma * torch.randn(N, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return _states(A + torch.outer(P, P), B, t, F)


def fout_functions(N: int, t: Tensor, F: int, *, low_rank: bool) -> Tensor:
    """The basis of S4-FouT, or without its low-rank term (Figure 5)."""
    A, B = hippo.fout(N)
    P = hippo.low_rank("fout", N)
    states = _states(A if low_rank else A + P.T @ P, B, t, 2 * F)
    return states[::2]


def _discrete(A: Tensor, B: Tensor, rule: str, dt: float) -> tuple[Tensor, Tensor]:
    """Ā and B̄ of one system by a rule."""
    step = torch.tensor([dt], dtype=torch.float64)
    Abar, Bbar = RULES[check_choice("rule", rule, RULES)](A[None], B[None], step)
    return Abar[0], Bbar[0]


def _states(A: Tensor, B: Tensor, t: Tensor, F: int) -> Tensor:
    """The first F rows of ``exp(tA) B`` at equally spaced times."""
    return _powers(torch.linalg.matrix_exp(A * (t[1] - t[0])), B, len(t))[:F]


def _powers(A: Tensor, state: Tensor, count: int) -> Tensor:
    """``A^l state`` for l = 0 … count − 1, as columns."""
    states = [state]
    for _ in range(count - 1):
        states.append(A @ states[-1])
    return torch.stack(states, 1)
