"""The gradients of a large state's operators, from its states and adjoint states, in one pass over both.

Names as in :mod:`statespan.ops.ssm._triton.scan`. A row is one chunk of one sequence; S and R (heads, rows, N) are the
state before and the adjoint state behind it. Summed over all rows,

    dE = Uᵀ R,    dO = dYᵀ S,    dF = (S Jᵀ)ᵀ R,    dJ = (R Fᵀ)ᵀ S

of which products one by one would read S and R three times each.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from statespan.ops._triton.launcher import empty, launch
from statespan.ops.memory import shared_memory
from statespan.ops.ssm._triton.primitives import mm
from statespan.ops.ssm.tiles import MIDDLE, SIXTEEN_BITS

PROGRAMS = 132  # multiprocessors of an H200: one program on each, with all of its registers
ROWS, STAGES = 32, 3


@triton.jit
def products_kernel(
    u_ptr, dy_ptr, states_ptr, adjoint_ptr, W_ptr, out_ptr,
    H, B, L, N, chunks, tiles, share_size, su_h, su_b, sy_h, sy_b,
    C: tl.constexpr, Q: tl.constexpr, ROWS: tl.constexpr, AHEAD: tl.constexpr, ACC: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The share of some rows of one virtual head: dE, dO, dF and dJ, each (c, N), concatenated.

    AHEAD leaves the rows of dE in the opposite order, as that direction takes E's.
    """
    hk, share = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    h = hk % H
    rc, q, r = tl.arange(0, C), tl.arange(0, Q), tl.arange(0, ROWS)
    DT: tl.constexpr = u_ptr.dtype.element_ty
    real = (q < N)[None, :]
    matrix = rc[:, None] * N + q[None, :]
    Ft = tl.trans(tl.load(W_ptr + h * C * N + matrix, mask=real, other=0.0).to(DT))
    Jt = tl.trans(tl.load(W_ptr + (H + h) * C * N + matrix, mask=real, other=0.0).to(DT))
    dE, dO, dF, dJ = tl.zeros((Q, C), ACC), tl.zeros((Q, C), ACC), tl.zeros((Q, C), ACC), tl.zeros((Q, C), ACC)
    for tile in range(share * tiles, (share + 1) * tiles):
        row = tile * ROWS + r
        there = row < B * chunks
        b, chunk = row // chunks, row % chunks
        sample = chunk[:, None] * C + rc[None, :]
        ok = there[:, None] & (sample < L)
        at = row[:, None] * N + q[None, :]
        S = tl.load(states_ptr + h * B * chunks * N + at, mask=there[:, None] & real, other=0.0)
        R = tl.load(adjoint_ptr + hk * B * chunks * N + at, mask=there[:, None] & real, other=0.0)
        U = tl.load(u_ptr + h * su_h + b[:, None] * su_b + sample, mask=ok, other=0.0)
        dY = tl.load(dy_ptr + hk * sy_h + b[:, None] * sy_b + sample, mask=ok, other=0.0)
        into = mm(S, Jt, tl.zeros((ROWS, C), ACC), PRECISION).to(DT)
        back = mm(R, Ft, tl.zeros((ROWS, C), ACC), PRECISION).to(DT)
        St, Rt = tl.trans(S), tl.trans(R)
        dE = mm(Rt, U, dE, PRECISION)
        dF = mm(Rt, into, dF, PRECISION)
        dO = mm(St, dY, dO, PRECISION)
        dJ = mm(St, back, dJ, PRECISION)
    out = out_ptr + share * share_size + hk * C * N + q[:, None]
    part, ok = tl.num_programs(0) * C * N, (q < N)[:, None]
    tl.store(out + ((C - 1 - rc) if AHEAD else rc)[None, :] * N, dE, mask=ok)
    tl.store(out + part + rc[None, :] * N, dO, mask=ok)
    tl.store(out + 2 * part + rc[None, :] * N, dF, mask=ok)
    tl.store(out + 3 * part + rc[None, :] * N, dJ, mask=ok)


def products(
    u: Tensor, dy: Tensor, states: Tensor, adjoint: Tensor, *, W: Tensor, ahead: bool, acc: torch.dtype
) -> Tensor:
    """The gradients of E, O, F and J: (4, V, c, N) in ``acc``.

    Args:
        u: (H, B, L), any strides but 1 along L.
        dy: (V, B, L), the same.
        states: (H, B, chunks, N), before each chunk.
        adjoint: (V, B, chunks, N), behind each.
        W: F and J, (2, H, c, N).
        ahead: Whether they are of the recurrence from the right.
        acc: The precision to sum in.
    """
    (H, B, L), V, (*_, chunks, N), c = u.shape, len(dy), states.shape, W.shape[2]
    stages = STAGES if shared_memory(u.device) >= MIDDLE and u.dtype in SIXTEEN_BITS else 1
    tiles = -(-B * chunks // ROWS)
    shares = min(tiles, max(1, PROGRAMS // V))
    out = empty((shares, 4, V, c, N), acc, u.device)
    launch(
        products_kernel, (V, shares),
        u, dy, states, adjoint, W, out,
        H, B, L, N, chunks, -(-tiles // shares), out.stride(0), u.stride(0), u.stride(1), dy.stride(0), dy.stride(1),
        C=c, Q=max(16, triton.next_power_of_2(N)), ROWS=ROWS, AHEAD=ahead,
        ACC=tl.float64 if acc == torch.float64 else tl.float32,
        PRECISION="tf32x3" if u.dtype == torch.float32 else "ieee", num_warps=8, num_stages=stages,
    )  # fmt: skip
    return out[0] if shares == 1 else out.sum(0)
