"""The backward pass in full precision, in two kernels: the adjoint recurrence, and the gradients of the operators.

Split into the parts that tensor cores take, the operators and the sums of :func:`.scan.backward_kernel` have no room on
the chip together. Here one kernel runs the recurrence and writes the adjoint state behind each chunk. The other reads it
once, with the inputs and the states, and sums

    dT = dYᵀ U,    dO = dYᵀ S,    dE = Uᵀ R,    dG = Rᵀ S

Names as in :mod:`statespan.ops.ssm._triton.scan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from statespan.ops._triton.gelu import slope
from statespan.ops.ssm._triton.primitives import (
    add_mm,
    advance,
    columns,
    fold,
    load,
    load_power,
    mm,
    split,
    store,
    sum_up,
    toeplitz,
)
from statespan.ops.ssm.arguments import ChunkOperators, OutputGradients, Sequences
from statespan.ops.ssm.tiles import PROGRAMS

if TYPE_CHECKING:
    from statespan.ops.ssm._triton.launch import LaunchPlan

COLUMNS, WARPS, STAGES = 32, 4, 1  # of the sums' kernel: with more columns, the sums leave the registers


@triton.jit
def adjoint_kernel(
    dy_ptr, pre_ptr, slow_ptr, du_ptr, adjoint_ptr, K_ptr, Kb_ptr, E_ptr, G_ptr, O_ptr,
    first_ptr, inject_ptr, dfirst_ptr,
    H, B, L, N, chunks, whole, segments, per_segment, sy_h, sy_b, sd_h, sd_b,
    C: tl.constexpr, Q: tl.constexpr, BT: tl.constexpr, EVEN: tl.constexpr, FULL: tl.constexpr, DENSE: tl.constexpr,
    BOTH: tl.constexpr, AHEAD: tl.constexpr, HALVES: tl.constexpr, FIRST: tl.constexpr, INJECT: tl.constexpr,
    DFIRST: tl.constexpr, PRE: tl.constexpr, ACC: tl.constexpr, STATE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of u and the adjoint state behind each chunk; with PRE also dy times GELU's slope, into ``slow``."""
    hk = tl.program_id(0).to(tl.int64)
    h = hk % H
    P: tl.constexpr = C // 2 if HALVES else C
    rp, q = tl.arange(0, P), tl.arange(0, Q)
    DT: tl.constexpr = dy_ptr.dtype.element_ty
    real = q < N
    b, segment, live = columns(tl.program_id(1).to(tl.int64), B, segments, BT, EVEN)
    chunk0 = segment * per_segment

    rows = (C - 1 - rp) if AHEAD else rp
    if not AHEAD:
        T = toeplitz(K_ptr, Kb_ptr, hk, rp[:, None], rp[None, :], C, BOTH, DT)
    E = tl.load(E_ptr + h * C * N + rows[:, None] * N + q[None, :], mask=real[None, :], other=0.0)
    Et = tl.trans(E.to(DT))
    at_O = hk * C * N + rp[:, None] * N + q[None, :]
    O = tl.load(O_ptr + at_O, mask=real[None, :], other=0.0).to(DT)  # noqa: E741
    if HALVES:
        T1 = tl.load(K_ptr + hk * C + P + rp[:, None] - rp[None, :]).to(DT)
        E1 = tl.load(E_ptr + h * C * N + (P + rp)[:, None] * N + q[None, :], mask=real[None, :], other=0.0)
        E1t = tl.trans(E1.to(DT))
        O1 = tl.load(O_ptr + at_O + P * N, mask=real[None, :], other=0.0).to(DT)
    gr, gi = load_power(G_ptr, h, q, N, DENSE, True, STATE)

    R = tl.zeros((BT, Q), STATE)
    if FIRST:
        at = first_ptr + ((hk * B + b) * segments + segment)[:, None] * N + q[None, :]
        R = tl.load(at, mask=live[:, None] & real[None, :], other=0.0).to(STATE)
    along = (chunk0 * C)[:, None] + rp[None, :]
    y_row = hk * sy_h + (b * sy_b)[:, None] + along
    p_row = (hk * B + b)[:, None] * L + along
    d_row = du_ptr + hk * sd_h + (b * sd_b)[:, None] + along
    r_row = adjoint_ptr + ((hk * B + b) * chunks + chunk0)[:, None] * N + q[None, :]
    for step in range(per_segment):
        i = step if AHEAD else per_segment - 1 - step
        chunk = chunk0 + i
        sample = chunk[:, None] * C + rp[None, :]
        ok = live[:, None] & (sample < L)
        held = (live & (chunk < chunks))[:, None] & real[None, :]
        dY = load(dy_ptr + y_row + i * C, ok, EVEN)
        if PRE:
            dY = (dY.to(ACC) * slope(load(pre_ptr + p_row + i * C, ok, EVEN).to(ACC), DT)).to(DT)
            store(slow_ptr + p_row + i * C, dY, ok, EVEN, FULL)
        if HALVES:
            ok1 = live[:, None] & (sample + P < L)
            dY1 = load(dy_ptr + y_row + i * C + P, ok1, EVEN)
            if PRE:
                dY1 = (dY1.to(ACC) * slope(load(pre_ptr + p_row + i * C + P, ok1, EVEN).to(ACC), DT)).to(DT)
                store(slow_ptr + p_row + i * C + P, dY1, ok1, EVEN, FULL)
        if INJECT:
            if hk < H:
                here = (live & (chunk == whole - 1))[:, None] & real[None, :]
                R += tl.load(inject_ptr + (h * B + b)[:, None] * N + q[None, :], mask=here, other=0.0).to(STATE)
        Rd = R.to(DT)
        store(r_row + i * N, Rd, held, EVEN, FULL)
        if AHEAD:
            du = load(d_row + i * C, ok, EVEN).to(ACC)
        else:
            du = mm(dY, T, tl.zeros((BT, P), ACC), PRECISION)
        if HALVES:
            du = mm(dY1, T1, du, PRECISION)
        du = mm(Rd, Et, du, PRECISION)
        store(d_row + i * C, du.to(du_ptr.dtype.element_ty), ok, EVEN, FULL)
        R = add_mm(advance(R, gr, gi, DENSE), dY, O, ACC, PRECISION)
        if HALVES:
            du = mm(dY1, T, tl.zeros((BT, P), ACC), PRECISION)
            du = mm(Rd, E1t, du, PRECISION)
            store(d_row + i * C + P, du.to(du_ptr.dtype.element_ty), ok1, EVEN, FULL)
            R = add_mm(R, dY1, O1, ACC, PRECISION)

    if DFIRST:
        at = dfirst_ptr + (hk * B + b)[:, None] * N + q[None, :]
        tl.store(at, R, mask=(live & (segment == 0))[:, None] & real[None, :])


@triton.jit
def gradients_kernel(
    u_ptr, dy_ptr, states_ptr, adjoint_ptr, dT_ptr, dE_ptr, dG_ptr, dO_ptr, share_size,
    H, B, L, N, chunks, whole, segments, per_segment, tiles, su_h, su_b, sy_h, sy_b,
    C: tl.constexpr, Q: tl.constexpr, BT: tl.constexpr, EVEN: tl.constexpr, DENSE: tl.constexpr, AHEAD: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The share of some tiles in the operators' gradients; AHEAD adds to those of E and G, and leaves T's alone."""
    hk = tl.program_id(0).to(tl.int64)
    h = hk % H
    rc, q = tl.arange(0, C), tl.arange(0, Q)
    real = (q < N)[None, :]
    program = tl.program_id(1).to(tl.int64)
    dT, dE, dO = tl.zeros((C, C), ACC), tl.zeros((C, Q), ACC), tl.zeros((C, Q), ACC)
    if DENSE:
        dgr, dgi = tl.zeros((Q, Q), ACC), tl.zeros((16, 16), ACC)
    else:
        dgr, dgi = tl.zeros((BT // 16, 8, Q // 2), ACC), tl.zeros((BT // 16, 8, Q // 2), ACC)
    for tile in range(program * tiles, (program + 1) * tiles):
        b, segment, live = columns(tile, B, segments, BT, EVEN)
        chunk0 = segment * per_segment
        along = (chunk0 * C)[:, None] + rc[None, :]
        u_row = u_ptr + h * su_h + (b * su_b)[:, None] + along
        y_row = dy_ptr + hk * sy_h + (b * sy_b)[:, None] + along
        s_row = states_ptr + ((h * B + b) * chunks + chunk0)[:, None] * N + q[None, :]
        r_row = adjoint_ptr + ((hk * B + b) * chunks + chunk0)[:, None] * N + q[None, :]
        for i in range(per_segment):
            chunk = chunk0 + i
            ok = live[:, None] & (chunk[:, None] * C + rc[None, :] < L)
            held = (live & (chunk < chunks))[:, None] & real
            U, S = load(u_row + i * C, ok, EVEN), load(s_row + i * N, held, EVEN)
            dY = tl.load(y_row + i * C, mask=ok, other=0.0)  # a surplus column adds nothing to any sum
            R = tl.load(r_row + i * N, mask=held, other=0.0)
            dYt = tl.trans(dY)
            if not AHEAD:
                dT = mm(dYt, U, dT, PRECISION)
            dO = mm(dYt, S, dO, PRECISION)
            dE = mm(tl.trans(U), R, dE, PRECISION)
            if DENSE:
                dgr = mm(tl.trans(R), S, dgr, PRECISION)
            else:
                lr, li = split(R.to(ACC))
                sr, si = split(S.to(ACC))
                dgr += fold(lr * sr + li * si)
                dgi += fold(li * sr - lr * si)
    share = program * share_size
    if not AHEAD:
        tl.store(dT_ptr + share + hk * C * C + rc[:, None] * C + rc[None, :], dT)
    at_E = ((C - 1 - rc) if AHEAD else rc)[:, None] * N + q[None, :]
    sum_up(dE_ptr + share + hk * C * N + at_E, dE, real, AHEAD)
    tl.store(dO_ptr + share + hk * C * N + rc[:, None] * N + q[None, :], dO, mask=real)
    if DENSE:
        square = (q < N)[:, None] & real
        sum_up(dG_ptr + share + hk * N * N + q[:, None] * N + q[None, :], dgr, square, AHEAD)
    else:
        n = 2 * tl.arange(0, Q // 2)
        sum_up(dG_ptr + share + hk * N + n, tl.sum(tl.sum(dgr, 0), 0), n < N, AHEAD)
        sum_up(dG_ptr + share + hk * N + n + 1, tl.sum(tl.sum(dgi, 0), 0), n < N, AHEAD)


class AdjointPass(NamedTuple):
    """Where one pass of the adjoint recurrence writes, and what it reads beside the gradient of y."""

    du: Tensor
    """(V, B, L)."""
    dfirst: Tensor | None
    """(V, B, N)."""
    preactivation: Tensor | None
    """(V, B, L), contiguous: dy is multiplied by GELU's slope there; None if there is no such factor."""


def summing(plan: LaunchPlan) -> tuple[LaunchPlan, int]:
    """The plan of the kernel that computes the operators' gradients, and into how many shares it divides the tiles."""
    plan = plan._replace(tiles=plan.tiles._replace(columns=min(COLUMNS, plan.tiles.columns)))
    heads, tiles = plan.programs(plan.V)
    return plan, min(tiles, -(-PROGRAMS // heads))


def _constants(plan: LaunchPlan, *left_out: str) -> dict[str, Any]:
    return {name: value for name, value in plan.constants().items() if name not in left_out}


def run_adjoint(
    plan: LaunchPlan, arriving: OutputGradients, operators: ChunkOperators, found: AdjointPass, *,
    start: Tensor | None, ahead: bool, both: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Run the recurrence from right to left, or ``ahead`` from left to right; see :func:`.launch.backward`.

    Args:
        plan: Tiles, segments and columns.
        arriving: The gradients of y (V, B, L) and of the state behind the whole chunks.
        operators: Of which O is this direction's half.
        found: Where to write.
        start: (V, B, segments, N), the adjoint state behind each segment.
        ahead: Whether this is the pass of the anti-causal recurrence.
        both: Whether there are two.

    Returns:
        The gradient of the pre-activation (V, B, L) and the adjoint states (V, B, chunks, N).
    """
    (dy, dlast), (K, E, G, O, _), (du, dfirst, pre) = arriving, operators, found  # noqa: E741
    K, Kb = K.chunk(2) if both else (K, K)
    adjoint = dy.new_empty(plan.V, plan.B, plan.chunks, plan.N)
    sloped = dy if pre is None else dy.new_empty(plan.V, plan.B, plan.L)
    adjoint_kernel[plan.programs(plan.V)](
        dy, pre, sloped, du, adjoint, K, Kb, E, G, O, start, dlast, dfirst,
        *plan.sizes(), dy.stride(0), dy.stride(1), du.stride(0), du.stride(1),
        BOTH=both, AHEAD=ahead, HALVES=plan.c >= 32 and not both, FIRST=start is not None, INJECT=dlast is not None,
        DFIRST=dfirst is not None, PRE=pre is not None,
        num_warps=plan.tiles.backward_warps, num_stages=plan.tiles.backward_stages, **_constants(plan, "LOW"),
    )  # fmt: skip
    return sloped, adjoint


def run_gradients(
    plan: LaunchPlan, inputs: Sequences, rows: tuple[Tensor, Tensor, Tensor], out: Sequence[Tensor], *,
    ahead: bool, share: int,
) -> None:  # fmt: skip
    """Compute each tile's share of the gradients of T, E, G and O.

    Args:
        plan: Tiles, segments and columns of the recurrence.
        inputs: u (H, B, L).
        rows: The gradient of the pre-activation (V, B, L), and the states before and behind each chunk.
        out: The shares of the first tile.
        ahead: Whether these are of the anti-causal recurrence; they are added to the others.
        share: How many numbers shares are apart.
    """
    (plan, shares), u, (dy, kept, adjoint) = summing(plan), inputs.u, rows
    gradients_kernel[(plan.V, shares)](
        u, dy, kept, adjoint, *out, share,
        *plan.sizes(), -(-plan.programs(plan.V)[1] // shares), u.stride(0), u.stride(1), dy.stride(0), dy.stride(1),
        AHEAD=ahead, num_warps=WARPS, num_stages=STAGES, **_constants(plan, "LOW", "FULL", "STATE"),
    )  # fmt: skip
