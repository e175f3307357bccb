"""The recurrence alone: the states between chunks, and the initial states of the segments of long sequences.

Names as in :mod:`statespan.ops.ssm._triton.scan`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from statespan.ops.ssm._triton.primitives import (
    add_mm,
    advance,
    columns,
    feed_back,
    load,
    load_factors,
    load_power,
    mm,
    store,
)


@triton.jit
def states_kernel(
    x_ptr, states_ptr, end_ptr, M_ptr, G_ptr, W_ptr, first_ptr, inject_ptr, O_ptr, y_ptr, last_ptr, slope_ptr,
    scaled_ptr,
    H, B, L, N, chunks, whole, segments, per_segment, sx_h, sx_b,
    C: tl.constexpr, Q: tl.constexpr, BT: tl.constexpr, EVEN: tl.constexpr, FULL: tl.constexpr, DENSE: tl.constexpr,
    LOW: tl.constexpr, LEFT: tl.constexpr, ADJOINT: tl.constexpr, FLIP: tl.constexpr, SAVE: tl.constexpr,
    FIRST: tl.constexpr, END: tl.constexpr, INJECT: tl.constexpr, OUT: tl.constexpr, LAST: tl.constexpr,
    SLOPE: tl.constexpr, ACC: tl.constexpr, STATE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """``S ← S Gᵀ + X M`` alone, from the left or from the right: the state before each chunk, or only the last.

    M is E or O (for the adjoint recurrence), (heads, c, N); FLIP takes its rows in the opposite order. INJECT adds a
    given state where the whole chunks end. OUT writes what the states give to the output, (heads, B, chunks, c) in ACC.
    LAST writes the state behind the whole chunks. SLOPE multiplies X by the slope of an activation, and writes it.
    """
    hk = tl.program_id(0).to(tl.int64)
    h = hk % H
    rc, q = tl.arange(0, C), tl.arange(0, Q)
    DT: tl.constexpr = x_ptr.dtype.element_ty
    real = q < N
    b, segment, live = columns(tl.program_id(1).to(tl.int64), B, segments, BT, EVEN)
    chunk0 = segment * per_segment
    order = (C - 1 - rc) if FLIP else rc
    M = tl.load(M_ptr + (hk * C + order[:, None]) * N + q[None, :], mask=real[None, :], other=0.0).to(DT)
    gr, gi = load_power(G_ptr, h, q, N, DENSE, ADJOINT, STATE)
    ih, il, oh, ol = load_factors(W_ptr, h, H, rc, q, N, C, ADJOINT, LOW, DT)
    if OUT:
        y_row = y_ptr + ((hk * B + b) * chunks + chunk0)[:, None] * C + rc[None, :]
        Ot = tl.trans(tl.load(O_ptr + (hk * C + rc[:, None]) * N + q[None, :], mask=real[None, :], other=0.0).to(DT))
    segment_at = ((hk * B + b) * segments + segment)[:, None] * N + q[None, :]
    S = tl.zeros((BT, Q), STATE)
    if FIRST:
        S = tl.load(first_ptr + segment_at, mask=live[:, None] & real[None, :], other=0.0).to(STATE)
    x_row = x_ptr + hk * sx_h + (b * sx_b + chunk0 * C)[:, None] + rc[None, :]
    s_row = states_ptr + ((hk * B + b) * chunks + chunk0)[:, None] * N + q[None, :]
    p_row = ((hk * B + b) * L + chunk0 * C)[:, None] + rc[None, :]
    for step in range(per_segment):
        i = per_segment - 1 - step if LEFT else step
        chunk = chunk0 + i
        ok = live[:, None] & (chunk[:, None] * C + rc[None, :] < L)
        X = load(x_row + i * C, ok, EVEN)
        if SLOPE:
            X = X * load(slope_ptr + p_row + i * C, ok, EVEN)
            store(scaled_ptr + p_row + i * C, X, ok, EVEN, FULL)
        if INJECT:
            if hk < H:
                here = (live & (chunk == whole - 1))[:, None] & real[None, :]
                S += tl.load(inject_ptr + (h * B + b)[:, None] * N + q[None, :], mask=here, other=0.0).to(STATE)
        there = (live & (chunk < chunks))[:, None]
        if SAVE:
            store(s_row + i * N, S.to(DT), there & real[None, :], EVEN, FULL)
        if OUT:
            y = mm(S.to(DT), Ot, tl.zeros((BT, C), ACC), PRECISION)
            store(y_row + i * C, y, there, EVEN, FULL)
        new = feed_back(advance(S, gr, gi, DENSE), S, ih, il, oh, ol, LOW, PRECISION)
        S = add_mm(new, X, M, ACC, PRECISION)
        if LAST:
            if hk < H:
                ends = (live & (chunk == whole - 1))[:, None] & real[None, :]
                tl.store(last_ptr + (h * B + b)[:, None] * N + q[None, :], S, mask=ends)
    if END:
        tl.store(end_ptr + segment_at, S, mask=live[:, None] & real[None, :])


@triton.jit
def segments_kernel(
    end_ptr, first_ptr, start_ptr, G_ptr, H, B, N, segments, doublings,
    Q: tl.constexpr, BT: tl.constexpr, DENSE: tl.constexpr, LEFT: tl.constexpr, ADJOINT: tl.constexpr,
    START: tl.constexpr, STATE: tl.constexpr,
):  # fmt: skip
    """The initial state of each segment from the segments' contributions: a scan with G to the power of their length.

    G is squared ``doublings`` times first.
    """
    hk = tl.program_id(0).to(tl.int64)
    h = hk % H
    q = tl.arange(0, Q)
    real = q < N
    b = tl.program_id(1).to(tl.int64) * BT + tl.arange(0, BT)
    ok = (b < B)[:, None] & real[None, :]
    gr, gi = load_power(G_ptr, h, q, N, DENSE, ADJOINT, STATE)
    for _ in range(doublings):
        if DENSE:
            gr = tl.dot(gr, gr, input_precision="ieee", out_dtype=STATE)
            gi = gr
        else:
            gr, gi = gr * gr - gi * gi, 2 * gr * gi
    S = tl.zeros((BT, Q), STATE)
    if START:
        S = tl.load(start_ptr + (hk * B + b)[:, None] * N + q[None, :], mask=ok, other=0.0).to(STATE)
    for i in range(segments):
        segment = segments - 1 - i if LEFT else i
        at = ((hk * B + b) * segments + segment)[:, None] * N + q[None, :]
        tl.store(first_ptr + at, S, mask=ok)
        S = advance(S, gr, gi, DENSE) + tl.load(end_ptr + at, mask=ok, other=0.0).to(STATE)
