"""A diagonal plus low-rank SSM step by step: the recurrence itself, for large states in full precision.

``Ā = d + Σ_r f_r b_rᵀ`` (see :mod:`statespan.ops.ssm._triton.resolvent`) makes a step cost O(N), with no operators to
build or keep. A program owns one kernel of one head and scans its sequences in float64. Nothing is saved for the
backward pass: it scans each sequence again, keeps the state before every piece of it, and then takes the pieces
from the last to the first. So memory grows neither with the heads nor with the batch.

AHEAD is the recurrence from the right, whose output at a sample comes before that sample enters its state. Shapes as in
:mod:`statespan.ops.ssm._triton.launch`; states (H, B, N) have all real parts first.
"""

from __future__ import annotations

import triton
import triton.language as tl

from statespan.ops._triton.modes import cmul, load_complex, mul
from statespan.ops.ssm._triton.lowrank import load_vector, store_task, store_vector
from statespan.ops.ssm._triton.resolvent import add_weighted, dot, dots, load_system, repeated, step, weighted


@triton.jit
def steps_kernel(
    dt_ptr, decay_ptr, freq_ptr, P_ptr, B_ptr, C_ptr, D_ptr, u_ptr, y_ptr, first_ptr, last_ptr,
    H, S, M, batch, L, su_h, su_b,
    P: tl.constexpr, REAL: tl.constexpr, LOG: tl.constexpr, FT: tl.constexpr, AHEAD: tl.constexpr, SKIP: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Return y (V, B, L) of one sequence, and its last state if requested; AHEAD adds to the existing y."""
    hk = tl.program_id(0).to(tl.int64)
    b = tl.program_id(1).to(tl.int64)
    h = hk % H
    n = tl.arange(0, P)
    ok = n < M
    own = (h % S) * M + n
    x0r, x0i, br, bi, dr, di, fr, fi = load_system(
        dt_ptr, decay_ptr, freq_ptr, P_ptr, B_ptr, h, own, ok, S * M, R, REAL, LOG, FT
    )
    cr, ci = load_complex(C_ptr, hk * M + n, ok, FT)
    skip = 0.0
    if SKIP:
        skip = tl.load(D_ptr + hk).to(FT)
    xr, xi = dr * 0.0, dr * 0.0
    if FIRST:
        xr, xi = load_vector(first_ptr + (h * batch + b) * 2 * M, n, M, ok, False, FT)
    u_row, y_row = u_ptr + h * su_h + b * su_b, y_ptr + (hk * batch + b) * L
    for i in range(L):
        t = L - 1 - i if AHEAD else i
        u = tl.load(u_row + t).to(FT)
        if AHEAD:
            y = tl.load(y_row + t).to(FT) + dot(2.0 * cr, -2.0 * ci, xr, xi)
            tl.store(y_row + t, y.to(y_ptr.dtype.element_ty))
        xr, xi = step(xr, xi, dr, di, fr, fi, br, bi, R)
        xr += u * x0r
        xi += u * x0i
        if not AHEAD:
            y = dot(2.0 * cr, -2.0 * ci, xr, xi) + skip * u
            tl.store(y_row + t, y.to(y_ptr.dtype.element_ty))
    if LAST:
        if hk < H:
            store_vector(last_ptr + (h * batch + b) * 2 * M, n, M, xr, xi, ok, False)


@triton.jit
def steps_backward_kernel(
    dt_ptr, decay_ptr, freq_ptr, P_ptr, B_ptr, C_ptr, D_ptr, u_ptr, dy_ptr, du_ptr, first_ptr, dlast_ptr, dfirst_ptr,
    task_ptr, dC_ptr, dD_ptr, room_ptr,
    H, S, M, batch, L, su_h, su_b, sy_h, sy_b, virtual, shares, pieces, piece,
    P: tl.constexpr, REAL: tl.constexpr, LOG: tl.constexpr, FT: tl.constexpr, AHEAD: tl.constexpr, SKIP: tl.constexpr,
    FIRST: tl.constexpr, INJECT: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """All gradients: du (V, B, L), and this program's share of those of d, f, b, B̄, C and D, over its sequences.

    A program takes kernel after kernel, ``shares`` programs the sequences of one in turn. ``room`` is its memory for
    ``pieces`` states between pieces and the ``piece`` states within one.
    """
    program = tl.program_id(0)
    long = tl.full((), 0, tl.int64)  # widens sums with it to 64 bits, for any address
    n = tl.arange(0, P)
    ok, every = n < M, n < P
    between = room_ptr + (program + long) * (pieces + piece) * 2 * P
    within = between + (pieces + long) * 2 * P
    for item in range(program, virtual * shares, tl.num_programs(0)):
        hk, share = item // shares + long, item % shares
        h = hk % H
        own = (h % S) * M + n
        x0r, x0i, br, bi, dr, di, fr, fi = load_system(
            dt_ptr, decay_ptr, freq_ptr, P_ptr, B_ptr, h, own, ok, S * M, R, REAL, LOG, FT
        )
        cr, ci = load_complex(C_ptr, hk * M + n, ok, FT)
        cr, ci = 2.0 * cr, -2.0 * ci
        skip, dskip = 0.0, tl.sum(dr * 0.0, 0)
        if SKIP:
            skip = tl.load(D_ptr + hk).to(FT)
        zero = dr * 0.0
        gdr, gdi, gxr, gxi, gcr, gci = zero, zero, zero, zero, zero, zero
        gfr, gfi, gbr, gbi = repeated(zero, R), repeated(zero, R), repeated(zero, R), repeated(zero, R)
        for b_ in range(share, batch, shares):
            b = b_ + long
            u_row = u_ptr + h * su_h + b * su_b
            dy_row, du_row = dy_ptr + hk * sy_h + b * sy_b, du_ptr + (hk * batch + b) * L
            at_state = (h * batch + b) * 2 * M
            xr, xi = zero, zero
            if FIRST:
                xr, xi = load_vector(first_ptr + at_state, n, M, ok, False, FT)
            tl.debug_barrier()  # the previous sequence's data is overwritten
            for k in range(pieces):
                store_vector(between + k * 2 * P, n, P, xr, xi, every, False)
                for i in range(k * piece, tl.where(k + 1 < pieces, (k + 1) * piece, 0)):  # behind the last is nothing
                    u = tl.load(u_row + (L - 1 - i if AHEAD else i)).to(FT)
                    xr, xi = step(xr, xi, dr, di, fr, fi, br, bi, R)
                    xr += u * x0r
                    xi += u * x0i
            mr, mi = zero, zero  # the adjoint state
            if INJECT:
                mr, mi = load_vector(dlast_ptr + at_state, n, M, ok & (n * 0 + hk < H), False, FT)
            tl.debug_barrier()
            for back in range(pieces):
                start = (pieces - 1 - back) * piece
                end = tl.minimum(L, start + piece)
                xr, xi = load_vector(between + (pieces - 1 - back) * 2 * P, n, P, every, False, FT)
                for i in range(start, end):
                    store_vector(within + (i - start) * 2 * P, n, P, xr, xi, every, False)
                    u = tl.load(u_row + (L - 1 - i if AHEAD else i)).to(FT)
                    xr, xi = step(xr, xi, dr, di, fr, fi, br, bi, R)
                    xr += u * x0r
                    xi += u * x0i
                tl.debug_barrier()
                for j in range(end - start):
                    i = end - 1 - j
                    t = L - 1 - i if AHEAD else i
                    xr, xi = load_vector(within + (i - start) * 2 * P, n, P, every, False, FT)
                    u, dy = tl.load(u_row + t).to(FT), tl.load(dy_row + t).to(FT)
                    inside = dots(br, bi, xr, xi, R)
                    if AHEAD:
                        gcr += dy * xr
                        gci += dy * xi
                    else:
                        nr, ni = mul(dr, di, xr, xi)
                        gcr += dy * (nr + weighted(inside, fr, R) + u * x0r)
                        gci += dy * (ni + weighted(inside, fi, R) + u * x0i)
                        mr += dy * cr
                        mi += dy * ci
                        dskip += dy * u
                    du = dot(x0r, x0i, mr, mi)
                    if AHEAD:
                        du += tl.load(du_row + t).to(FT)
                    else:
                        du += skip * dy
                    tl.store(du_row + t, du.to(du_ptr.dtype.element_ty))
                    gxr += u * mr
                    gxi += u * mi
                    tr, ti = cmul(xr, xi, mr, mi)
                    gdr += tr
                    gdi += ti
                    gfr, gfi = add_weighted(gfr, inside, mr, R), add_weighted(gfi, inside, mi, R)
                    outside = dots(fr, fi, mr, mi, R)
                    gbr, gbi = add_weighted(gbr, outside, xr, R), add_weighted(gbi, outside, xi, R)
                    mr, mi = cmul(dr, di, mr, mi)
                    mr += weighted(outside, br, R)
                    mi += weighted(outside, bi, R)
                    if AHEAD:
                        mr += dy * cr
                        mi += dy * ci
                tl.debug_barrier()
            if FIRST:
                store_vector(dfirst_ptr + (hk * batch + b) * 2 * M, n, M, mr, mi, ok, False)
        at = task_ptr + ((h * (virtual // H) + hk // H) * shares + share) * (4 + 4 * R) * P + n
        store_task(at, gdr, gdi, gfr, gfi, gbr, gbi, gxr, gxi, P, R)
        at = dC_ptr + ((share * virtual + hk) * M + n) * 2
        tl.store(at, 2.0 * gcr, mask=ok)
        tl.store(at + 1, -2.0 * gci, mask=ok)
        if SKIP:
            tl.store(dD_ptr + share * virtual + hk, dskip)
