"""The engine in full precision: kernels for the states, for the outputs, and for the gradients of the operators.

Split into the parts that tensor cores take, the operators of one of the kernels in :mod:`.scan` do not leave room for
the rest of the program. Here each kernel has few operators, and only the recurrence goes from chunk to chunk:

    S ← S Gᵀ + U E                                             :func:`.states.states_kernel`
    Y = U Tᵀ + S Oᵀ                                            outputs_kernel
    R ← R G + dY O                                             states_kernel, from right to left
    dU = dY T + R Eᵀ                                           outputs_kernel
    dT = dYᵀ U,    dO = dYᵀ S,    dE = Uᵀ R,    dG = Rᵀ S      gradients_kernel

Names as in :mod:`statespan.ops.ssm._triton.scan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl
from torch import Tensor

from statespan.ops._triton.gelu import erf_parts
from statespan.ops._triton.launcher import launch
from statespan.ops.ssm._triton.primitives import (
    columns,
    fold,
    load,
    mm,
    split,
    store,
    sum_up,
    toeplitz,
)
from statespan.ops.ssm.tiles import PROGRAMS

if TYPE_CHECKING:
    from statespan.ops.ssm._triton.launch import LaunchPlan

TILE, WARPS, STAGES = 4096, 4, 1  # of the kernel of the gradients: the numbers of a tile of states


@triton.jit
def _emit(
    y, out_ptr, slope_ptr, at, ok,
    EVEN: tl.constexpr, FULL: tl.constexpr, GELU: tl.constexpr, SLOPE: tl.constexpr, DT: tl.constexpr,
):  # fmt: skip
    """Write outputs, and with SLOPE that of the activation."""
    if GELU:
        normal, bell = erf_parts(y, DT)
        if SLOPE:
            store(slope_ptr + at, (normal + 0.3989422804014327 * y * bell).to(DT), ok, EVEN, FULL)
        y = y * normal
    store(out_ptr + at, y.to(DT), ok, EVEN, FULL)


@triton.jit
def outputs_kernel(
    x_ptr, out_ptr, slope_ptr, K_ptr, Kb_ptr, Z_ptr, M_ptr, Zb_ptr, Mb_ptr,
    H, B, L, N, chunks, whole, segments, per_segment, sx_h, sx_b,
    C: tl.constexpr, Q: tl.constexpr, BT: tl.constexpr, EVEN: tl.constexpr, FULL: tl.constexpr, BOTH: tl.constexpr,
    HALVES: tl.constexpr, TRANSPOSED: tl.constexpr, GELU: tl.constexpr, SLOPE: tl.constexpr, ACC: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """``X Tᵀ + Z Mᵀ`` of every chunk, with the states Z before it and M = O; of BOTH directions also ``Zb Mbᵀ``.

    TRANSPOSED is u's gradient: ``X T + Z Mᵀ``, with dY for X, the adjoint states behind the chunk for Z and M = E, the
    rows of which Mb has in the opposite order. HALVES as in :func:`.scan.forward_kernel`.
    """
    hk = tl.program_id(0).to(tl.int64)
    h = hk % H
    P: tl.constexpr = C // 2 if HALVES else C
    rp, q = tl.arange(0, P), tl.arange(0, Q)
    DT: tl.constexpr = x_ptr.dtype.element_ty
    real = (q < N)[None, :]
    b, segment, live = columns(tl.program_id(1).to(tl.int64), B, segments, BT, EVEN)
    chunk0 = segment * per_segment
    hx, hm = (hk, h) if TRANSPOSED else (h, hk)

    i, j = (rp[:, None], rp[None, :]) if TRANSPOSED else (rp[None, :], rp[:, None])
    T = toeplitz(K_ptr, Kb_ptr, hk, i, j, C, BOTH, DT)
    at_M = hm * C * N + rp[:, None] * N + q[None, :]
    Mt = tl.trans(tl.load(M_ptr + at_M, mask=real, other=0.0).to(DT))
    if HALVES:
        T1 = tl.load(K_ptr + hk * C + P + i - j).to(DT)  # between the halves
        M1t = tl.trans(tl.load(M_ptr + at_M + P * N, mask=real, other=0.0).to(DT))
    if BOTH:
        rows = (C - 1 - rp) if TRANSPOSED else rp
        at_Mb = hm * C * N + rows[:, None] * N + q[None, :]
        Mbt = tl.trans(tl.load(Mb_ptr + at_Mb, mask=real, other=0.0).to(DT))

    x_row = x_ptr + hx * sx_h + (b * sx_b + chunk0 * C)[:, None] + rp[None, :]
    z_row = ((hx * B + b) * chunks + chunk0)[:, None] * N + q[None, :]
    out_row = ((hk * B + b) * L + chunk0 * C)[:, None] + rp[None, :]
    for n in range(per_segment):
        sample = (chunk0 + n)[:, None] * C + rp[None, :]
        ok = live[:, None] & (sample < L)
        held = (live & (chunk0 + n < chunks))[:, None] & real
        X = load(x_row + n * C, ok, EVEN)
        Z = load(Z_ptr + z_row + n * N, held, EVEN)
        y = mm(X, T, tl.zeros((BT, P), ACC), PRECISION)
        y = mm(Z, Mt, y, PRECISION)
        if BOTH:
            y = mm(load(Zb_ptr + z_row + n * N, held, EVEN), Mbt, y, PRECISION)
        if HALVES:
            ok1 = live[:, None] & (sample + P < L)
            X1 = load(x_row + n * C + P, ok1, EVEN)
            y1 = mm(X1, T, tl.zeros((BT, P), ACC), PRECISION)
            y1 = mm(Z, M1t, y1, PRECISION)
            if TRANSPOSED:
                y = mm(X1, T1, y, PRECISION)
            else:
                y1 = mm(X, T1, y1, PRECISION)
            _emit(y1, out_ptr, slope_ptr, out_row + n * C + P, ok1, EVEN, FULL, GELU, SLOPE, DT)
        _emit(y, out_ptr, slope_ptr, out_row + n * C, ok, EVEN, FULL, GELU, SLOPE, DT)


@triton.jit
def gradients_kernel(
    u_ptr, dy_ptr, states_ptr, adjoint_ptr, dT_ptr, dE_ptr, dG_ptr, dO_ptr, share_size,
    H, B, L, N, chunks, whole, segments, per_segment, tiles, su_h, su_b, sy_h, sy_b,
    C: tl.constexpr, Q: tl.constexpr, BT: tl.constexpr, EVEN: tl.constexpr, DENSE: tl.constexpr, AHEAD: tl.constexpr,
    FROM_Y: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The share of some tiles in the gradients of T and O, which dY gives (FROM_Y), or of E and G, which R gives.

    All four sums at once would leave no registers for large tiles. AHEAD adds to E's and G's, and leaves T's alone.
    """
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
            if FROM_Y:
                dY = tl.load(y_row + i * C, mask=ok, other=0.0)  # a surplus column adds nothing to any sum
                dYt = tl.trans(dY)
                if not AHEAD:
                    dT = mm(dYt, U, dT, PRECISION)
                dO = mm(dYt, S, dO, PRECISION)
            else:
                R = tl.load(r_row + i * N, mask=held, other=0.0)
                dE = mm(tl.trans(U), R, dE, PRECISION)
                if DENSE:
                    dgr = mm(tl.trans(R), S, dgr, PRECISION)
                else:
                    lr, li = split(R.to(ACC))
                    sr, si = split(S.to(ACC))
                    dgr += fold(lr * sr + li * si)
                    dgi += fold(li * sr - lr * si)
    share = program * share_size
    if FROM_Y:
        if not AHEAD:
            tl.store(dT_ptr + share + hk * C * C + rc[:, None] * C + rc[None, :], dT)
        tl.store(dO_ptr + share + hk * C * N + rc[:, None] * N + q[None, :], dO, mask=real)
    else:
        at_E = ((C - 1 - rc) if AHEAD else rc)[:, None] * N + q[None, :]
        sum_up(dE_ptr + share + hk * C * N + at_E, dE, real, AHEAD)
        if DENSE:
            square = (q < N)[:, None] & real
            sum_up(dG_ptr + share + hk * N * N + q[:, None] * N + q[None, :], dgr, square, AHEAD)
        else:
            n = 2 * tl.arange(0, Q // 2)
            sum_up(dG_ptr + share + hk * N + n, tl.sum(tl.sum(dgr, 0), 0), n < N, AHEAD)
            sum_up(dG_ptr + share + hk * N + n + 1, tl.sum(tl.sum(dgi, 0), 0), n < N, AHEAD)


def summing(plan: LaunchPlan) -> tuple[LaunchPlan, int]:
    """The plan of the kernel that computes the operators' gradients, and into how many shares it divides the tiles."""
    # with fewer than 64 states Triton 3.6 compiles wrong products of 64 columns for sm_90
    columns = min(plan.tiles.columns, max(16, TILE // plan.width), 64 if plan.width >= 64 else 32)
    plan = plan._replace(tiles=plan.tiles._replace(columns=columns))
    heads, tiles = plan.programs(plan.V)
    return plan, min(tiles, -(-PROGRAMS // heads))


def _constants(plan: LaunchPlan, *left_out: str) -> dict[str, Any]:
    return {name: value for name, value in plan.constants().items() if name not in left_out}


def outputs(
    plan: LaunchPlan, x: Tensor, rows: Sequence[tuple[Tensor, Tensor]], *, kernel: Tensor, out: Tensor,
    transposed: bool = False, gelu: bool = False, slope: Tensor | None = None,
) -> None:  # fmt: skip
    """Compute y, or u's gradient, from the states of all chunks.

    Args:
        plan: Tiles, segments and columns.
        x: u (H, B, L), or the gradient of y (V, B, L).
        rows: Of each direction the states (heads, B, chunks, N), and O or E, (heads, c, N).
        kernel: (V, c) or (2V, c) in all: K.
        out: (V, B, L), contiguous: where to write.
        transposed: Whether it is u's gradient.
        gelu: Whether to apply GELU.
        slope: Where to write GELU's slope, like out; or None.
    """
    both = len(rows) > 1
    (Z, M), (Zb, Mb) = rows[0], rows[-1]
    K, Kb = kernel.chunk(2) if both else (kernel, kernel)
    tiles = plan.tiles
    launch(
        outputs_kernel, plan.programs(plan.V),
        x, out, slope, K, Kb, Z, M, Zb, Mb, *plan.sizes(), x.stride(0), x.stride(1),
        BOTH=both, HALVES=plan.c >= 32 and not both, TRANSPOSED=transposed, GELU=gelu, SLOPE=slope is not None,
        num_warps=tiles.backward_warps, num_stages=tiles.backward_stages, **_constants(plan, "LOW", "DENSE", "STATE"),
    )  # fmt: skip


def run_gradients(
    plan: LaunchPlan, u: Tensor, rows: tuple[Tensor, Tensor, Tensor], out: Sequence[Tensor], *,
    ahead: bool, share: int,
) -> None:  # fmt: skip
    """Compute each tile's share of the gradients of T, E, G and O.

    Args:
        plan: Tiles, segments and columns of the recurrence.
        u: (H, B, L).
        rows: The gradient of the pre-activation (V, B, L), and the states before and behind each chunk.
        out: The shares of the first tile.
        ahead: Whether these are of the anti-causal recurrence; they are added to the others.
        share: How many numbers shares are apart.
    """
    (plan, shares), (dy, kept, adjoint) = summing(plan), rows
    for from_y in (True, False):
        launch(
            gradients_kernel, (plan.V, shares),
            u, dy, kept, adjoint, *out, share,
            *plan.sizes(), -(-plan.programs(plan.V)[1] // shares), u.stride(0), u.stride(1), dy.stride(0), dy.stride(1),
            AHEAD=ahead, FROM_Y=from_y, num_warps=WARPS, num_stages=STAGES,
            **_constants(plan, "LOW", "FULL", "STATE"),
        )  # fmt: skip
