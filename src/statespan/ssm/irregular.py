"""Samples at irregular times: a diagonal SSM whose step size differs from sample to sample.

A convolution needs equal steps; the recurrence does not. The state obeys ``x' = A x + B u(t)`` between the samples,
each of which holds from the one before it until its own time (zero-order hold, exact), or is joined to it by the
bilinear rule. The recurrence runs sample by sample; gradients need the states of about √L samples, not of all
(:mod:`statespan.ssm.gap_steps`).

Shapes: B batch, L length, H heads, M = N/2 kept complex modes, K channels, c samples of a chunk.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from statespan._check import check_int, check_tensor
from statespan.ssm.diagonal import Diagonal
from statespan.ssm.discretize import RULES
from statespan.ssm.gap_steps import GapModes, Scan
from statespan.ssm.packed import pack, unpack

RECORDED = 64  # samples of a chunk where autograd or a compiler records every operation


def scan_gaps(
    ssm: Diagonal, u: Tensor, gaps: Tensor, state: Tensor | None = None, *, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """Apply a diagonal SSM to samples at irregular times, from a state to a state.

    Args:
        ssm: The SSM; it must not have a softmax, which is one over equal steps.
        u: (B, L, H), L ≥ 0.
        gaps: (B, L), at least 0: time from the sample before to this one, in steps of the SSM. 1 everywhere is
            ``ssm.scan``, 2 everywhere ``ssm.with_dt_scale(2.0).scan``. The first is how long the first sample has held.
        state: (B, H, N), or None for zeros.
        chunk: Samples whose states are in memory at once; for gradients one more state is kept for every chunk. None
            for √L, with which both are the same number.

    Returns:
        y of shape (B, L, K, H) and the state after the last sample (B, H, N), in the dtype of ``state`` (float64 for
        None). Gradients reach u, gaps, the state and the SSM's parameters.

    Example:
        >>> from statespan import S4D
        >>> ssm = S4D(4, 8, discretization="zoh").structure()
        >>> u, gaps = torch.randn(2, 10, 4), torch.rand(2, 10)
        >>> scan_gaps(ssm, u, gaps)[0].shape
        torch.Size([2, 10, 1, 4])
    """
    if not isinstance(ssm, Diagonal):
        raise TypeError(f"ssm must be a Diagonal, whose steps may differ, got {type(ssm).__name__}")
    if ssm.softmax_length is not None:
        raise ValueError("ssm must have no softmax_length for irregular times, because it assumes equal steps")
    if ssm.discretization == "foh":
        raise ValueError(
            "ssm must have discretization 'zoh' or 'bilinear' for irregular times, got 'foh', whose state depends on "
            "the gap to the next sample"
        )
    batch, length, heads = check_tensor("u", u, ("batch", "length", ssm.heads), kind="real").shape
    check_gaps(gaps, batch, length)
    chunk = segment_length(length) if chunk is None else check_int("chunk", chunk, minimum=1)
    first = ssm.initial_state(batch) if state is None else state
    check_tensor("state", first, (batch, heads, ssm.d_state), kind="real")
    if length == 0:
        return u.new_zeros(batch, 0, ssm.channels, heads, dtype=ssm.dtype), first
    modes = GapModes(ssm.A, ssm.B, ssm.C, ssm.dt, ssm.discretization)
    inputs = u, gaps, unpack(first.double())
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        y, last = scan_recorded(*inputs, modes)
    else:
        y, last = Scan.apply(*inputs, *modes, chunk)
    return y.to(ssm.dtype), pack(last).to(first.dtype)


def segment_length(length: int) -> int:
    """√L, rounded up."""
    return math.isqrt(max(length - 1, 0)) + 1


def scan_recorded(u: Tensor, gaps: Tensor, x: Tensor, modes: GapModes) -> tuple[Tensor, Tensor]:
    """The same in plain autograd operations, each chunk a prefix sum: readable, at 50 times the memory.

    States x (B, H, M) are complex128, and y (B, L, K, H) is float64.
    """
    outputs = []
    for start in range(0, u.shape[1], RECORDED):
        chunk = slice(start, start + RECORDED)
        Abar, Bbar = _discrete(modes, gaps[:, chunk].double())  # (B, c, H, M)
        states = _prefix(Abar, Bbar * u[:, chunk].double()[..., None], x)
        outputs.append(2 * torch.einsum("khm,bchm->bckh", modes.C.to(torch.complex128), states).real)
        x = states[:, -1]
    return torch.cat(outputs, 1), x


def gaps_of(times: Tensor, step: float = 1.0) -> Tensor:
    """The gaps between times (B, L), in units of ``step``; the first sample is assumed to have held for one step.

    Example:
        >>> gaps_of(torch.tensor([[0.0, 0.5, 2.0]]), step=0.5)
        tensor([[1., 1., 3.]])
    """
    check_tensor("times", times, ("batch", "length"), kind="real")
    first = torch.full_like(times[:, :1], 1.0)
    return torch.cat([first, times.diff(dim=1) / step], 1)[:, : times.shape[1]]


def check_gaps(gaps: Tensor, batch: int, length: int) -> Tensor:
    """Return ``gaps`` if it holds (B, L) numbers that are at least 0."""
    check_tensor("gaps", gaps, (batch, length), kind="real")
    if gaps.device.type == "cpu" and gaps.numel() and not torch.compiler.is_compiling():
        if not bool(torch.isfinite(gaps).all()):
            raise ValueError("gaps must be finite, got NaN or infinity")
        if bool((gaps < 0).any()):
            raise ValueError(f"gaps must be at least 0, because times must not go back, got {gaps.min().item():g}")
    return gaps


def _discrete(modes: GapModes, gaps: Tensor) -> tuple[Tensor, Tensor]:
    """Ā and B̄ (B, c, H, M) of every step: the usual rule with a head for each sample."""
    (A, B, _, dt, rule), count = modes, gaps.numel()
    steps = (gaps.reshape(-1, 1) * dt.double()).flatten()  # (B · c · H,)
    Abar, Bbar = RULES[rule](A.repeat(count, 1), B.repeat(count, 1), steps)
    shape = (*gaps.shape, *A.shape)
    return Abar.view(shape), Bbar.view(shape)


def _prefix(a: Tensor, x: Tensor, state: Tensor) -> Tensor:
    """All x_k = a_k x_{k-1} + x_k (B, c, H, M) from a state (B, H, M)."""
    shift = 1
    while shift < x.shape[1]:  # x_k holds the last `shift` inputs, a_k the product of as many steps
        x = torch.cat([x[:, :shift], x[:, shift:] + a[:, shift:] * x[:, :-shift]], 1)
        a = torch.cat([a[:, :shift], a[:, shift:] * a[:, :-shift]], 1)
        shift *= 2
    return x + a * state[:, None]
