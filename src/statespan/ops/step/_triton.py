"""One step of all heads in one launch: each state is read and written once, optionally in place.

A program owns one head: it loads the head's coefficients once and takes ROWS sequences at a time through the step, all
modes of a sequence together. States are (B, H, N) with all real parts first, as everywhere: the two halves of a row are
contiguous, so no other order would be read faster. Offsets are 64 bit.

Sums are in float64 and rounded once. GELU, which goes into no further step, is in the state's own precision: in
float64 it alone would take about as long as the rest.

The tile is the same whatever the batch, so a sequence gets the same bits alone and among a thousand.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from statespan.ops._triton.modes import mul
from statespan.ops.step.operator import StepOptions, System

ELEMENTS = 1024  # of a tile: rows of states times modes
BLOCKS = 4  # tiles a program takes one after the other, where the batch is large enough


@triton.jit
def _row_dot(ar, ai, xr, xi):
    """The dot product of a row vector with each state (ROWS, P), as (ROWS, 1)."""
    return tl.sum(ar * xr + ai * xi, 1)[:, None]


@triton.jit
def _load_halves(ptr, n, M, ok, FT: tl.constexpr):
    re = tl.load(ptr + n, mask=ok, other=0.0).to(FT)
    im = tl.load(ptr + M + n, mask=ok, other=0.0).to(FT)
    return re, im


@triton.jit
def step_kernel(
    u_ptr, state_ptr, out_ptr, y_ptr, d_ptr, f_ptr, b_ptr, B_ptr, C_ptr, D_ptr,
    batch, H, M,
    RANK: tl.constexpr, CHANNELS: tl.constexpr, P: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
    SKIP: tl.constexpr, GELU: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Return y (B, K, H) and the new states; ``out`` may be ``state``."""
    FT: tl.constexpr = tl.float64
    ST: tl.constexpr = state_ptr.dtype.element_ty
    h = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, P)[None, :]
    mode = n < M
    head_at = h * 2 * M
    dr, di = _load_halves(d_ptr + head_at, n, M, mode, FT)
    br, bi = _load_halves(B_ptr + head_at, n, M, mode, FT)
    # what all of S4 needs is loaded once; further ranks and channels are rare
    if RANK > 0:
        vr, vi = _load_halves(b_ptr + head_at, n, M, mode, FT)
        fr, fi = _load_halves(f_ptr + head_at, n, M, mode, FT)
    cr, ci = _load_halves(C_ptr + head_at, n, M, mode, FT)
    for block in range(BLOCKS):
        r = (tl.program_id(1).to(tl.int64) * BLOCKS + block) * ROWS + tl.arange(0, ROWS)[:, None]
        row = r < batch
        ok = row & mode
        at = (r * H + h) * 2 * M
        xr, xi = _load_halves(state_ptr + at, n, M, ok, FT)
        u = tl.load(u_ptr + r * H + h, mask=row, other=0.0)
        nr, ni = mul(dr, di, xr, xi)
        nr += u.to(FT) * br
        ni += u.to(FT) * bi
        if RANK > 0:
            inside = _row_dot(vr, vi, xr, xi)
            nr += inside * fr
            ni += inside * fi
        for rank in tl.static_range(1, RANK):
            rank_at = (rank * H + h) * 2 * M
            ar, ai = _load_halves(b_ptr + rank_at, n, M, mode, FT)
            inside = _row_dot(ar, ai, xr, xi)
            ar, ai = _load_halves(f_ptr + rank_at, n, M, mode, FT)
            nr += inside * ar
            ni += inside * ai
        tl.store(out_ptr + at + n, nr.to(ST), mask=ok)
        tl.store(out_ptr + at + M + n, ni.to(ST), mask=ok)
        if EARLY:  # y reads the state before the sample
            nr, ni = xr, xi
        for k in tl.static_range(CHANNELS):
            if k == 0:
                y = _row_dot(cr, ci, nr, ni)
            else:
                ar, ai = _load_halves(C_ptr + (k * H + h) * 2 * M, n, M, mode, FT)
                y = _row_dot(ar, ai, nr, ni)
            if SKIP:
                y += tl.load(D_ptr + k * H + h).to(FT) * u.to(FT)
            if GELU:
                y = y.to(ST)
                y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
            tl.store(y_ptr + (r * CHANNELS + k) * H + h, y.to(y_ptr.dtype.element_ty), mask=row)


def step(u: Tensor, state: Tensor, system: System, options: StepOptions, *, out: Tensor) -> Tensor:
    """Take a step and return y (B, K, H).

    Args:
        u: (B, H), contiguous.
        state: (B, H, N), contiguous.
        system: Contiguous, with a diagonal.
        options: How.
        out: The new state; may be ``state``.
    """
    (diagonal, columns, rows, _, B, C, D), (gelu, dtype, early) = system, options
    batch, H, N = state.shape
    M, channels = N // 2, C.shape[0]
    width = max(16, triton.next_power_of_2(M))
    tile = max(1, ELEMENTS // width)
    blocks = BLOCKS if batch >= 2 * BLOCKS * tile else 1
    y = u.new_empty(batch, channels, H, dtype=dtype)
    step_kernel[(H, -(-batch // (tile * blocks)))](
        u, state, out, y, diagonal, columns, rows, B, C, D, batch, H, M,
        RANK=0 if columns is None else columns.shape[0], CHANNELS=channels, P=width, ROWS=tile, BLOCKS=blocks,
        SKIP=D is not None, GELU=gelu, EARLY=early, num_warps=4,
    )  # fmt: skip
    return y
