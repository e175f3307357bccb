"""Structures to test with: initial and trained-like parameters of every kind."""

from __future__ import annotations

import math

import torch

from statespan.ssm import DPLR, Dense, Diagonal, hippo, inits

RULES = ("zoh", "bilinear", "foh")
DIAGONAL = [f"diagonal-{name}" for name in (*inits.DIAGONAL, "trained")]
RANK_1 = ["dplr-legs", "dplr-fout", "dplr-trained", "dplr-apart"]
RANK_2 = ["dplr-legt", "dplr-trained2", "dplr-apart2"]  # apart: with a Q of its own
DENSE = [f"dense-{name}" for name in (*hippo.MEASURES, "trained")]
KINDS = [*DIAGONAL, *RANK_1, *RANK_2, *DENSE]


def make(kind, N, rule, *, H=2, channels=2, seed=0, dtype=torch.float64, dt_min=0.001, dt_max=0.1):
    """A structure by name, e.g. "dplr-legs"; "trained" ones are HiPPO or random parameters moved at random."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape, dtype=torch.complex128):
        return torch.randn(*shape, dtype=dtype, generator=generator)

    spread = torch.rand(H, dtype=torch.float64, generator=generator)
    dt = torch.exp(math.log(dt_min) + math.log(dt_max / dt_min) * spread)
    complex_dtype = torch.complex128 if dtype == torch.float64 else torch.complex64
    structure, name = kind.split("-")
    if structure == "dense":
        A, B = inits.mix_dense("legs" if name == "trained" else name, H, N)
        if name == "trained":
            A = A + 0.3 * randn(H, N, N, dtype=torch.float64) - 2 * torch.eye(N, dtype=torch.float64)
        return Dense(A, B, randn(channels, H, N, dtype=torch.float64).to(dtype), dt, discretization=rule)
    C = randn(channels, H, N // 2).to(complex_dtype)
    if structure == "diagonal":
        if name != "trained":
            return Diagonal(*inits.mix_diagonal(name, H, N, generator=generator), C, dt, discretization=rule)
        A = torch.complex(-(randn(H, N // 2).real * 2).exp(), 20 * randn(H, N // 2).real)
        return Diagonal(A, randn(H, N // 2), C, dt, discretization=rule)
    if not name.startswith(("trained", "apart")):
        A, P, B = inits.mix_dplr(name, H, N)
        return DPLR(A, P, B, C, dt=dt, discretization=rule)
    A, P, B = inits.mix_dplr("legt" if name.endswith("2") else "legs", H, N)
    real = -(0.5 * A.real.abs().log().clamp(min=-1) + randn(H, N // 2).real).exp()
    A = torch.complex(real, A.imag * (1 + 0.1 * randn(H, N // 2).real))
    P, B = P + 0.3 * randn(*P.shape), B + 0.3 * randn(H, N // 2)
    Q = P + 0.2 * randn(*P.shape) if name.startswith("apart") else None
    return DPLR(A, P, B, C, dt=dt, Q=Q, discretization=rule)


def krylov(ssm):
    """The same DPLR system with the other algorithm."""
    return DPLR(ssm.A, ssm.P, ssm.B, ssm.C, dt=ssm.dt, Q=ssm.Q, algorithm="krylov")


def peak_error(got, wanted):
    """Largest difference relative to the peak of what is wanted."""
    got, wanted = torch.as_tensor(got).double(), torch.as_tensor(wanted).double()
    return ((got - wanted).abs().max() / wanted.abs().max()).item()
