"""The chunk engine in Triton: forward, backward, and the states alone.

A program owns one head and a tile of columns. A column is one segment of one sequence: with many sequences there is one
segment each; a few long ones are cut into several, whose first states come from a scan over what each segment adds. The
program scans its columns chunk by chunk with the state in registers, every column a row of its matrix products:

    Y = U Tᵀ + S Oᵀ,    S ← S Gᵀ + U E

so the operators are loaded once and stay on the chip, the input is read once and the output written once.

Shapes, in kernels: u (H, B, L) with any strides but 1 along L; K (channels, H, c); E (H, c, N); O (channels, H, c, N);
G (H, N) or (H, N, N); states (H, B, chunks, N). The real and the imaginary part of a mode are neighbours. A program's
head index runs over channels · H "virtual heads" that share u, E, G and the states.

A G that is diagonal plus a product of low rank comes as its diagonal (H, N) and the two factors (2, H, c, N) of the
rest, ``S Gᵀ = S d + (S Jᵀ) F``: for large N that is less work than a dense matrix, and fits on the chip.

Compile-time names: C chunk length, Q padded state size, BT columns, EVEN no chunk has an edge (FULL: nor a tile),
DENSE or LOW the form of G, ACC the accumulators' type, STATE the state's.
"""

from __future__ import annotations

import triton
import triton.language as tl

from statespan.ops._triton.gelu import erf_parts, slope
from statespan.ops.ssm._triton.primitives import (
    add_mm,
    advance,
    columns,
    feed_back,
    fold,
    load,
    load_factors,
    load_power,
    mm,
    split,
    store,
    sum_up,
    toeplitz,
)


@triton.jit
def _emit(
    y, y_ptr, pre_ptr, at, ok,
    EVEN: tl.constexpr, FULL: tl.constexpr, GELU: tl.constexpr, PRE: tl.constexpr, DT: tl.constexpr,
):  # fmt: skip
    """Write outputs, and with PRE the pre-activation, in the memory order of y."""
    if PRE:
        store(pre_ptr + at, y.to(DT), ok, EVEN, FULL)
    if GELU:
        normal, _ = erf_parts(y, DT)
        y = y * normal
    store(y_ptr + at, y.to(DT), ok, EVEN, FULL)


@triton.jit
def forward_kernel(
    u_ptr, y_ptr, pre_ptr, states_ptr, K_ptr, Kb_ptr, E_ptr, G_ptr, W_ptr, O_ptr, Ob_ptr, ahead_ptr,
    first_ptr, last_ptr,
    H, B, L, N, chunks, whole, segments, per_segment, su_h, su_b, sy_h, sy_b,
    C: tl.constexpr, Q: tl.constexpr, BT: tl.constexpr, EVEN: tl.constexpr, FULL: tl.constexpr, DENSE: tl.constexpr,
    LOW: tl.constexpr, BOTH: tl.constexpr, ADDED: tl.constexpr, HALVES: tl.constexpr, SAVE: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr, GELU: tl.constexpr, PRE: tl.constexpr, ACC: tl.constexpr,
    STATE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute y of every chunk, and if requested the state before each chunk and the one after all whole chunks.

    Of BOTH directions the states of the other come with ``ahead_ptr``; or, if ADDED, what they give to y.

    HALVES takes a chunk in two, for what looks back only: nothing of the first comes from the second, so a quarter of T
    is zeros, which are then neither kept nor multiplied; and two quarters are the same. A program of few columns has
    room for both halves of y, and stores them as one.
    """
    hk = tl.program_id(0).to(tl.int64)
    h = hk % H
    P: tl.constexpr = C // 2 if HALVES else C  # samples of a piece of a chunk
    WHOLE: tl.constexpr = HALVES and BT <= 16
    rp, rc, q = tl.arange(0, P), tl.arange(0, C), tl.arange(0, Q)
    DT: tl.constexpr = u_ptr.dtype.element_ty
    real = q < N
    b, segment, live = columns(tl.program_id(1).to(tl.int64), B, segments, BT, EVEN)
    chunk0 = segment * per_segment

    Tt = toeplitz(K_ptr, Kb_ptr, hk, rp[None, :], rp[:, None], C, BOTH, DT)
    at_E, at_O = h * C * N + rp[:, None] * N + q[None, :], hk * C * N + rp[:, None] * N + q[None, :]
    E = tl.load(E_ptr + at_E, mask=real[None, :], other=0.0).to(DT)
    Ot = tl.trans(tl.load(O_ptr + at_O, mask=real[None, :], other=0.0).to(DT))
    if HALVES:
        T1t = tl.load(K_ptr + hk * C + P + rp[None, :] - rp[:, None]).to(DT)  # from the first half to the second
        E1 = tl.load(E_ptr + at_E + P * N, mask=real[None, :], other=0.0).to(DT)
        O1t = tl.trans(tl.load(O_ptr + at_O + P * N, mask=real[None, :], other=0.0).to(DT))
    if BOTH and not ADDED:
        At = tl.trans(tl.load(Ob_ptr + at_O, mask=real[None, :], other=0.0).to(DT))
    gr, gi = load_power(G_ptr, h, q, N, DENSE, False, STATE)
    ih, il, oh, ol = load_factors(W_ptr, h, H, rc, q, N, C, False, LOW, DT)

    S = tl.zeros((BT, Q), STATE)
    if FIRST:
        at = first_ptr + ((h * B + b) * segments + segment)[:, None] * N + q[None, :]
        S = tl.load(at, mask=live[:, None] & real[None, :], other=0.0).to(STATE)
    u_row = u_ptr + h * su_h + (b * su_b + chunk0 * C)[:, None] + rp[None, :]
    y_row = hk * sy_h + (b * sy_b + chunk0 * C)[:, None] + rp[None, :]
    s_row = ((h * B + b) * chunks + chunk0)[:, None] * N + q[None, :]
    a_row = ahead_ptr + ((h * B + b) * chunks + chunk0)[:, None] * C + rp[None, :]
    for i in range(per_segment):
        begin = (chunk0 + i)[:, None] * C + rp[None, :]
        ok = live[:, None] & (begin < L)
        held = (live & (chunk0 + i < chunks))[:, None] & real[None, :]
        U = load(u_row + i * C, ok, EVEN)
        if HALVES:
            ok1 = live[:, None] & (begin + P < L)
            U1 = load(u_row + i * C + P, ok1, EVEN)
        Sd = S.to(DT)
        if SAVE:
            if hk < H:
                store(states_ptr + s_row + i * N, Sd, held, EVEN, FULL)
        if ADDED:
            y = mm(U, Tt, load(a_row + i * C, (live & (chunk0 + i < chunks))[:, None], EVEN), PRECISION)
        else:
            y = mm(U, Tt, tl.zeros((BT, P), ACC), PRECISION)
        y = mm(Sd, Ot, y, PRECISION)
        if BOTH and not ADDED:
            y = mm(load(ahead_ptr + s_row + i * N, held, EVEN), At, y, PRECISION)
        if not WHOLE:
            _emit(y, y_ptr, pre_ptr, y_row + i * C, ok, EVEN, FULL, GELU, PRE, DT)
        if HALVES:
            y1 = mm(U, T1t, tl.zeros((BT, P), ACC), PRECISION)
            y1 = mm(U1, Tt, y1, PRECISION)
            y1 = mm(Sd, O1t, y1, PRECISION)
            if WHOLE:
                y = tl.join(y, y1).permute(0, 2, 1).reshape(BT, C)
                sample = (chunk0 + i)[:, None] * C + rc[None, :]
                whole_row = hk * sy_h + b[:, None] * sy_b + sample
                _emit(y, y_ptr, pre_ptr, whole_row, live[:, None] & (sample < L), EVEN, FULL, GELU, PRE, DT)
            else:
                _emit(y1, y_ptr, pre_ptr, y_row + i * C + P, ok1, EVEN, FULL, GELU, PRE, DT)
        new = feed_back(advance(S, gr, gi, DENSE), S, ih, il, oh, ol, LOW, PRECISION)
        S = add_mm(new, U, E, ACC, PRECISION)
        if HALVES:
            S = add_mm(S, U1, E1, ACC, PRECISION)
        if LAST:
            if hk < H:
                ends = (live & (chunk0 + i == whole - 1))[:, None] & real[None, :]
                tl.store(last_ptr + (h * B + b)[:, None] * N + q[None, :], S, mask=ends)


@triton.jit
def backward_kernel(
    u_ptr, dy_ptr, du_ptr, states_ptr, K_ptr, Kb_ptr, E_ptr, G_ptr, W_ptr, O_ptr,
    first_ptr, inject_ptr, dfirst_ptr, dT_ptr, dE_ptr, dG_ptr, dO_ptr, share_size, adjoint_ptr,
    H, B, L, N, chunks, whole, segments, per_segment, su_h, su_b, sy_h, sy_b, sd_h, sd_b,
    C: tl.constexpr, Q: tl.constexpr, BT: tl.constexpr, EVEN: tl.constexpr, FULL: tl.constexpr, DENSE: tl.constexpr,
    LOW: tl.constexpr, BOTH: tl.constexpr, AHEAD: tl.constexpr, FIRST: tl.constexpr, INJECT: tl.constexpr,
    DFIRST: tl.constexpr, GELU: tl.constexpr, ACC: tl.constexpr, STATE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """All gradients, chunk by chunk from the right; those of the operators are this tile's share of the sum.

    Shares are ``share_size`` numbers apart. With BOTH directions there is a second pass, AHEAD, the mirror image: from
    the left, with E's rows in the opposite order. The first has both halves of T, so that the second meets states only;
    it adds to du, dE and dG instead of writing them. GELU computes what was in front of the activation again. With LOW
    there is no room for the sums of large states: the adjoint state behind each chunk is written instead, from which
    matrix products make them.
    """
    hk = tl.program_id(0).to(tl.int64)
    h = hk % H
    rc, q = tl.arange(0, C), tl.arange(0, Q)
    DT: tl.constexpr = u_ptr.dtype.element_ty
    real = q < N
    tile = tl.program_id(1).to(tl.int64)
    b, segment, live = columns(tile, B, segments, BT, EVEN)
    chunk0 = segment * per_segment

    matrix = rc[:, None] * N + q[None, :]
    at_E = ((C - 1 - rc) if AHEAD else rc)[:, None] * N + q[None, :]
    if not AHEAD:
        T = toeplitz(K_ptr, Kb_ptr, hk, rc[:, None], rc[None, :], C, BOTH, DT)
    Et = tl.trans(tl.load(E_ptr + h * C * N + at_E, mask=real[None, :], other=0.0).to(DT))
    O = tl.load(O_ptr + hk * C * N + matrix, mask=real[None, :], other=0.0).to(DT)  # noqa: E741
    gr, gi = load_power(G_ptr, h, q, N, DENSE, True, STATE)
    ih, il, oh, ol = load_factors(W_ptr, h, H, rc, q, N, C, True, LOW, DT)
    if GELU:
        Tt, Ot = tl.trans(T), tl.trans(O)

    R = tl.zeros((BT, Q), STATE)  # the adjoint state, behind the chunk
    if FIRST:
        at = first_ptr + ((hk * B + b) * segments + segment)[:, None] * N + q[None, :]
        R = tl.load(at, mask=live[:, None] & real[None, :], other=0.0).to(STATE)
    dT, dE, dO = tl.zeros((C, C), ACC), tl.zeros((C, Q), ACC), tl.zeros((C, Q), ACC)
    if DENSE:
        dgr, dgi = tl.zeros((Q, Q), ACC), tl.zeros((16, 16), ACC)
    else:
        dgr, dgi = tl.zeros((BT // 16, 8, Q // 2), ACC), tl.zeros((BT // 16, 8, Q // 2), ACC)
    along = (chunk0 * C)[:, None] + rc[None, :]
    u_row = u_ptr + h * su_h + (b * su_b)[:, None] + along
    dy_row = dy_ptr + hk * sy_h + (b * sy_b)[:, None] + along
    du_row = du_ptr + hk * sd_h + (b * sd_b)[:, None] + along
    s_row = states_ptr + ((h * B + b) * chunks + chunk0)[:, None] * N + q[None, :]
    r_row = adjoint_ptr + ((hk * B + b) * chunks + chunk0)[:, None] * N + q[None, :]
    for step in range(per_segment):
        i = step if AHEAD else per_segment - 1 - step
        chunk = chunk0 + i
        ok = live[:, None] & (chunk[:, None] * C + rc[None, :] < L)
        U = load(u_row + i * C, ok, EVEN)
        if EVEN and not FULL:
            dY = tl.load(dy_row + i * C, mask=live[:, None], other=0.0)  # a surplus column adds nothing to any sum
        else:
            dY = load(dy_row + i * C, ok, EVEN)
        held = (live & (chunk < chunks))[:, None] & real[None, :]
        S = load(s_row + i * N, held, EVEN)
        if INJECT:
            if hk < H:
                here = (live & (chunk == whole - 1))[:, None] & real[None, :]
                R += tl.load(inject_ptr + (h * B + b)[:, None] * N + q[None, :], mask=here, other=0.0).to(STATE)
        if GELU:
            y = mm(U, Tt, tl.zeros((BT, C), ACC), PRECISION)
            y = mm(S, Ot, y, PRECISION)
            dY = (dY.to(ACC) * slope(y, DT)).to(DT)
        Rd = R.to(DT)
        if AHEAD:
            du = load(du_row + i * C, ok, EVEN).to(ACC)
        else:
            du = mm(dY, T, tl.zeros((BT, C), ACC), PRECISION)
        du = mm(Rd, Et, du, PRECISION)
        if LOW:
            store(r_row + i * N, Rd, held, EVEN, FULL)
        else:
            dYt = tl.trans(dY)
            if not AHEAD:
                dT = mm(dYt, U, dT, PRECISION)
            dO = mm(dYt, S, dO, PRECISION)
            dE = mm(tl.trans(U), Rd, dE, PRECISION)
        if DENSE:
            dgr = mm(tl.trans(Rd), S, dgr, PRECISION)
        else:
            lr, li = split(R.to(ACC))
            sr, si = split(S.to(ACC))
            dgr += fold(lr * sr + li * si)
            dgi += fold(li * sr - lr * si)
        store(du_row + i * C, du.to(du_ptr.dtype.element_ty), ok, EVEN, FULL)
        new = feed_back(advance(R, gr, gi, DENSE), R, ih, il, oh, ol, LOW, PRECISION)
        R = add_mm(new, dY, O, ACC, PRECISION)

    if DFIRST:
        at = dfirst_ptr + (hk * B + b)[:, None] * N + q[None, :]
        tl.store(at, R, mask=(live & (segment == 0))[:, None] & real[None, :])
    share = tile * share_size
    if not LOW:
        if not AHEAD:
            tl.store(dT_ptr + share + hk * C * C + rc[:, None] * C + rc[None, :], dT)
        sum_up(dE_ptr + share + hk * C * N + at_E, dE, real[None, :], AHEAD)
        tl.store(dO_ptr + share + hk * C * N + matrix, dO, mask=real[None, :])
    if DENSE:
        square = real[:, None] & real[None, :]
        sum_up(dG_ptr + share + hk * N * N + q[:, None] * N + q[None, :], dgr, square, AHEAD)
    else:
        n = 2 * tl.arange(0, Q // 2)
        sum_up(dG_ptr + share + hk * N + n, tl.sum(tl.sum(dgr, 0), 0), n < N, AHEAD)
        sum_up(dG_ptr + share + hk * N + n + 1, tl.sum(tl.sum(dgi, 0), 0), n < N, AHEAD)
