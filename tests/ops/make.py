"""What the engine's tests share: structures as the engine takes them, and one measure of agreement."""

from __future__ import annotations

import torch

from statespan.nn.real_part import real_part
from statespan.ops.ssm.arguments import ChunkOperators
from statespan.ops.ssm.layout import ordered
from statespan.ssm import DPLR, Diagonal

NAMES = ("dt", "decay", "freq", "B", "C", "P")
"""The parameters of modes, in the order that the functions here have them in."""


def engine(ssm, chunk, *, ahead=0):
    """K, E (H, c, N), G and O in the engine's order of state, float64, without a history."""
    K, E, G, O = (x.detach() for x in ssm.operators(chunk, ahead=ahead, dtype=torch.float64))  # noqa: E741
    dense = G.ndim == 3
    G = G if dense else ordered(G, False)
    return ChunkOperators(*(x.contiguous() for x in (K, ordered(E.mT, dense), G, ordered(O, dense))))


def random_modes(case, rank, device):
    """Random parameters, in whose modes lie Re A from slow to fast; P is (rank, S, M, 2)."""

    def randn(*shape):
        return torch.randn(*shape, dtype=torch.float64, device=device)

    H, S, M, K = case.heads, case.sets, case.modes, case.channels
    decay = -randn(S, M).abs() if case.real == "none" else randn(S, M).abs()
    P = 0.5 * randn(rank, S, M, 2)
    return [randn(H) - 3, decay, 4 * randn(S, M), randn(S, M, 2), randn(K, H, M, 2), P]


def structure_of(parameters, real, *, rule="bilinear", log_dt=True):
    """The structure that parameters of modes stand for, a diagonal one where P is not among them."""
    dt, decay, freq, B, C, *P = parameters
    copies = len(dt) // len(decay)
    A = torch.complex(real_part(real, decay), freq).repeat(copies, 1)
    B, C, *P = (torch.view_as_complex(x) for x in (B, C, *P))
    B, dt = B.repeat(copies, 1), dt.exp() if log_dt else dt
    if P:
        return DPLR(A, P[0].repeat(1, copies, 1), B, C, dt=dt, discretization=rule)
    return Diagonal(A, B, C, dt, discretization=rule)


def assert_near(got, wanted, bound, what=""):
    """The largest difference is at most ``bound`` times the peak of what is wanted: what is wanted as 0 must be 0."""
    got, wanted = (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x for x in (got, wanted))
    got, wanted = got.detach().double().cpu(), wanted.detach().double().cpu()
    assert got.shape == wanted.shape, what
    difference, peak = (got - wanted).abs().max().item(), wanted.abs().max().item()
    assert difference <= bound * peak, f"{what}: {difference:.2e} of a peak of {peak:.2e}, more than {bound:.0e}"


def multiplied(G, W):
    """The dense matrix that a diagonal and the factors of a low-rank part stand for."""
    re, im = G[:, 0::2], G[:, 1::2]
    blocks = torch.stack([torch.stack([re, -im], -1), torch.stack([im, re], -1)], -2)  # (H, N/2, 2, 2)
    return torch.stack([torch.block_diag(*each) for each in blocks]) + W[0].mT @ W[1]


def poison(monkeypatch):
    """Fill what torch leaves uninitialised with NaN: an element that is never written, or read too early, shows."""

    def poisoned(function):
        def empty(*arguments, **options):
            x = function(*arguments, **options)
            if x.is_floating_point():
                x.detach().fill_(torch.nan)  # it may be a leaf that requires a gradient
            return x

        return empty

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, poisoned(getattr(owner, name)))
