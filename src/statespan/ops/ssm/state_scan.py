"""The recurrence from chunk to chunk in plain torch, in place if no gradient is recorded.

Shapes: H heads, B batch, I chunks, N state size. States are (H, B, I, N); the real and the imaginary part of a mode are
neighbours.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from statespan.ssm.packed import view_complex, view_real

CHUNKS_AT_ONCE = 8  # chunks of the recurrence copied at a time
FEWEST_PIECES = 6  # on a GPU; with fewer, walking through the chunks one after the other is as fast
# Microseconds of a step of the recurrence on a CPU: of its calls, of reading a number of G, of reading and writing a
# number of the states, and of a multiplication; and how much faster two walks have to be than one.
CALL, READ, ROW, PRODUCT, MIN_GAIN = 15.0, 4e-4, 3e-3, 5e-5, 0.7


def scan_chunks(
    added: Tensor, G: Tensor, start: Tensor, *, whole: int | None = None, left: bool = False, adjoint: bool = False
) -> tuple[Tensor, Tensor]:
    """``s ← G s + added_i`` over the chunks i, in float64, because rounding errors in the states persist.

    Args:
        added: (H, B, I, N). Where no gradient is recorded the result takes its place: fresh memory costs more than the
            arithmetic.
        G: (H, N) for complex modes, or (H, N, N).
        start: (H, B, N), float64.
        whole: How many of the chunks to go through, from the left: I or I - 1; None for I.
        left: From the last chunk to the first.
        adjoint: With Gᵀ.

    Returns:
        The state before each chunk (H, B, I, N) in the dtype of ``added``, and the one after all in float64.
    """
    G, count = G.double(), added.shape[2]
    whole = count if whole is None else whole
    if torch.is_grad_enabled() and any(t.requires_grad for t in (added, G, start)):
        states, last = _scan_differentiably(added[:, :, :whole], G, start, left=left, adjoint=adjoint)
        return states if whole == count else torch.cat([states, last[:, :, None].to(states.dtype)], 2), last
    power, (H, B, _, N) = _transition(G, adjoint).contiguous(), added.shape
    x, pieces = start.clone(), _pieces(added, whole, G.ndim == 3)
    if pieces > 1:
        # all pieces at once from zeros, then what each starts from, then all at once again
        each = whole // pieces
        used, rest = pieces * each, whole - pieces * each
        front = slice(rest, whole) if left else slice(0, used)
        inside = added[:, :, front].unflatten(2, (pieces, each))  # (H, B, pieces, each, N)
        ends = _walk(inside, power, start.new_zeros(H, B, pieces, N), left, keep=False)
        power_of_piece = power**each if power.is_complex() else torch.linalg.matrix_power(power, each)
        x = _walk(ends, power_of_piece, x, left)
        _walk(inside, power, ends, left)
        x = _walk(added[:, :, :rest] if left else added[:, :, used:whole], power, x, left)
    else:
        x = _walk(added[:, :, :whole], power, x, left)
    if whole < count:
        added[:, :, whole] = x
    return added, x


def _pieces(added: Tensor, count: int, dense: bool) -> int:
    """The number of pieces to cut sequences of ``count`` chunks into, so that all pieces are scanned together.

    Two walks through pieces are twice the arithmetic of one walk through the whole, in far fewer steps. On a CPU a step
    costs as much as some rows of states, for a call takes its time and a dense G has to be read; on a GPU nothing else
    counts.
    """
    H, B, _, N = added.shape
    if not added.is_cpu:
        pieces = math.isqrt(count)
        return pieces if pieces >= FEWEST_PIECES else 1
    step = CALL + (READ * H * N * N if dense else 0.0)
    row = B * H * N * (ROW + (PRODUCT * N if dense else 0.0))
    pieces = math.isqrt(int(2 * count * step / (step + row)))
    two = 2 * count * (step / max(pieces, 1) + row) + pieces * (step + row)
    if dense and pieces > 1:
        two += (count // pieces).bit_length() * H * N**3 * PRODUCT
    return pieces if pieces > 1 and two < MIN_GAIN * count * (step + row) else 1


def _transition(G: Tensor, adjoint: bool) -> Tensor:
    """What rows of states are multiplied by: complex numbers (H, 1, N/2), or a matrix (H, N, N)."""
    if G.ndim == 3:
        return G if adjoint else G.mT
    modes = view_complex(G)[:, None]
    return modes.conj_physical() if adjoint else modes  # a lazy conjugation is lost below a dispatch mode


def _add_product(new: Tensor, x: Tensor, power: Tensor) -> None:
    """Add states x (H, …, N) times a power of the transition to ``new``, in place."""
    new, x = new.flatten(1, -2), x.flatten(1, -2)
    if power.is_complex():
        view_complex(new).addcmul_(view_complex(x), power)
    else:
        new.baddbmm_(x, power)


def _walk(added: Tensor, power: Tensor, x: Tensor, left: bool, *, keep: bool = True) -> Tensor:
    """Scan the chunks of added (H, …, I, N) from x (H, …, N), which is overwritten; returns the last state.

    The one before each takes the place of what is added there. Copied back and forth are a few chunks at a time: one by
    one they would lie too far apart in memory.
    """
    blocks = added.split(CHUNKS_AT_ONCE, -2) if added.shape[-2] else ()
    spare = x.new_empty(min(CHUNKS_AT_ONCE, added.shape[-2]), *x.shape)
    for block in reversed(blocks) if left else blocks:
        steps = spare[: block.shape[-2]].copy_(block.movedim(-2, 0))
        before = x
        for step in reversed(steps.unbind()) if left else steps.unbind():
            _add_product(step, before, power)
            before = step
        if keep:
            first, rest = (-1, slice(0, -1)) if left else (0, slice(1, None))
            block[..., first, :] = x
            block[..., rest, :] = (steps[1:] if left else steps[:-1]).movedim(0, -2)
        x.copy_(before)
    return x


def _scan_differentiably(
    added: Tensor, G: Tensor, start: Tensor, *, left: bool, adjoint: bool
) -> tuple[Tensor, Tensor]:
    """The same without in-place operations."""
    if not added.shape[2]:
        return added, start
    power, x, added_, before = _transition(G, adjoint), start, added.double(), []
    for i in reversed(range(added.shape[2])) if left else range(added.shape[2]):
        before.append(x)
        x = x @ power if G.ndim == 3 else view_real(view_complex(x) * power)
        x = x + added_[:, :, i]
    return torch.stack(before[::-1] if left else before, 2).to(added.dtype), x
