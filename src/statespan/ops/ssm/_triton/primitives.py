"""Building blocks of the chunk engine's kernels: loading and storing tiles, and the recurrence of a state.

Names as in :mod:`statespan.ops.ssm._triton.scan`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from statespan.ops._triton.gelu import FAST


@triton.jit
def _eight_bits(x):
    """The nearest number of 8 bits, in float32."""
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + 0x8000) & -0x10000).to(tl.float32, bitcast=True)


@triton.jit
def three_parts(x):
    """Three numbers of 8 bits, as bfloat16 has, whose sum a float32 number is.

    The interpreter, whose bfloat16 is wrong, multiplies them in float32.
    """
    high = _eight_bits(x)
    rest = x - high
    middle = _eight_bits(rest)
    low = rest - middle
    if FAST:
        return high.to(tl.bfloat16), middle.to(tl.bfloat16), low.to(tl.bfloat16)
    else:
        return high, middle, low


@triton.jit
def mm(a, b, acc, PRECISION: tl.constexpr):
    """``acc + a b``. PRECISION "parts" is for float32: the six products of parts that matter, the smallest first.

    Tensor cores truncate their sums, which over many products adds up; so each begins at zero and is added by rounding.
    """
    if PRECISION == "parts":
        ah, am, al = three_parts(a)
        bh, bm, bl = three_parts(b)
        new = tl.dot(al, bh)
        new = tl.dot(ah, bl, new)
        new = tl.dot(am, bm, new)
        new = tl.dot(am, bh, new)
        new = tl.dot(ah, bm, new)
        return acc + tl.dot(ah, bh, new)
    else:
        return tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=acc.dtype)


@triton.jit
def add_mm(state, a, b, ACC: tl.constexpr, PRECISION: tl.constexpr):
    """``state + a b``, where the state may be wider than the accumulators."""
    if state.dtype == ACC:
        return mm(a, b, state, PRECISION)
    else:
        return state + mm(a, b, tl.zeros(state.shape, ACC), PRECISION).to(state.dtype)


@triton.jit
def columns(tile, B, segments, BT: tl.constexpr, EVEN: tl.constexpr):
    """The sequence and the segment of each column, and whether there is one.

    Where loads have no mask (EVEN), a column too many reads the last sequence; it is never stored.
    """
    column = tile * BT + tl.arange(0, BT)
    b, segment = column // segments, column % segments
    live = b < B
    if EVEN:
        b = tl.minimum(b, B - 1)
    return b, segment, live


@triton.jit
def load(at, ok, EVEN: tl.constexpr):
    if EVEN:
        return tl.load(at)
    else:
        return tl.load(at, mask=ok, other=0.0)


@triton.jit
def store(at, x, ok, EVEN: tl.constexpr, FULL: tl.constexpr):
    if EVEN and FULL:
        tl.store(at, x)
    else:
        tl.store(at, x, mask=ok)


@triton.jit
def sum_up(at, x, ok, ADD: tl.constexpr):
    if ADD:
        x += tl.load(at, mask=ok, other=0.0)
    tl.store(at, x, mask=ok)


@triton.jit
def load_power(ptr, h, q, N, DENSE: tl.constexpr, ADJOINT: tl.constexpr, STATE: tl.constexpr):
    """G for ``S ← S Gᵀ``, or its adjoint: two rows (1, Q/2), or for a dense one the matrix (Q, Q)."""
    if DENSE:
        ok = (q < N)[:, None] & (q < N)[None, :]
        if ADJOINT:
            at = ptr + h * N * N + q[:, None] * N + q[None, :]
        else:
            at = ptr + h * N * N + q[None, :] * N + q[:, None]
        re = tl.load(at, mask=ok, other=0.0).to(STATE)
        im = re
    else:
        n = 2 * tl.arange(0, q.shape[0] // 2)
        re = tl.load(ptr + h * N + n, mask=n < N, other=0.0).to(STATE)[None, :]
        im = tl.load(ptr + h * N + n + 1, mask=n < N, other=0.0).to(STATE)[None, :]
        if ADJOINT:
            im = -im
    return re, im


@triton.jit
def load_factors(W_ptr, h, H, rc, q, N, C: tl.constexpr, ADJOINT: tl.constexpr, LOW: tl.constexpr, DT: tl.constexpr):
    """The factors of the low-rank part: Jᵀ (Q, C) and F (C, Q), exchanged for the adjoint.

    Each as two numbers whose sum it is, for types of 16 bits.
    """
    if LOW:
        matrix = rc[:, None] * N + q[None, :]
        F = tl.load(W_ptr + h * C * N + matrix, mask=(q < N)[None, :], other=0.0)
        J = tl.load(W_ptr + (H + h) * C * N + matrix, mask=(q < N)[None, :], other=0.0)
        if ADJOINT:
            into, out = tl.trans(F), J
        else:
            into, out = tl.trans(J), F
        if (tl.float32 == DT) or (tl.float64 == DT):
            into, out = into.to(DT), out.to(DT)
            return into, into, out, out
        else:
            into_high, out_high = into.to(tl.bfloat16), out.to(tl.bfloat16)
            into_low, out_low = (
                (into - into_high.to(tl.float32)).to(tl.bfloat16),
                (out - out_high.to(tl.float32)).to(tl.bfloat16),
            )
            return into_high, into_low, out_high, out_low
    else:
        return 0, 0, 0, 0


@triton.jit
def product(S, high, low, PRECISION: tl.constexpr):
    """``S (high + low)`` for a float32 S to 16-bit accuracy by three fast products; wider types directly."""
    if high.dtype == tl.bfloat16:
        Sh = S.to(tl.bfloat16)
        Sl = (S - Sh.to(tl.float32)).to(tl.bfloat16)
        new = tl.dot(Sl, high)
        new = tl.dot(Sh, low, new)
        return tl.dot(Sh, high, new)
    else:
        return mm(S.to(high.dtype), high, tl.zeros((S.shape[0], high.shape[1]), high.dtype), PRECISION)


@triton.jit
def narrow_product(S, high, low, PRECISION: tl.constexpr):
    """The same for a long sum and few columns: three independent chains of additions.

    (As a plain sum they would be one: the compiler begins each product with the result of the one before.)
    """
    if high.dtype == tl.bfloat16:
        Sh = S.to(tl.bfloat16)
        Sl = (S - Sh.to(tl.float32)).to(tl.bfloat16)
        rest = tl.dot(Sl, high) - (0.0 - tl.dot(Sh, low))
        return tl.dot(Sh, high) - (0.0 - rest)
    else:
        return product(S, high, low, PRECISION)


@triton.jit
def split(S):
    """The real and the imaginary parts (BT, Q/2)."""
    return tl.split(S.reshape(S.shape[0], S.shape[1] // 2, 2))


@triton.jit
def fold(x):
    """Half of a sum over rows: adds rows 8 apart, which the same thread holds in the tensor cores' layout."""
    return tl.sum(x.reshape(x.shape[0] // 16, 2, 8, x.shape[1]), 1)


@triton.jit
def advance(S, gr, gi, DENSE: tl.constexpr):
    """``S Gᵀ``; for a low-rank G only the diagonal part."""
    if DENSE:
        if S.dtype == tl.float32:
            high = gr.to(tl.bfloat16)
            return product(S, high, (gr - high.to(tl.float32)).to(tl.bfloat16), "ieee")
        else:
            return product(S, gr, gr, "ieee")
    else:
        re, im = split(S)
        return tl.join(gr * re - gi * im, gr * im + gi * re).reshape(S.shape)


@triton.jit
def feed_back(new, S, into_high, into_low, out_high, out_low, LOW: tl.constexpr, PRECISION: tl.constexpr):
    """The low-rank part of ``S Gᵀ`` added to ``new``."""
    if LOW:
        Z = narrow_product(S, into_high, into_low, PRECISION)
        return new + product(Z, out_high, out_low, PRECISION).to(new.dtype)
    else:
        return new


@triton.jit
def toeplitz(K_ptr, Kb_ptr, hk, i, j, C: tl.constexpr, BOTH: tl.constexpr, DT: tl.constexpr):
    """``T[i, j] = K[i-j]`` on and below the diagonal, the anti-causal kernel above it."""
    lag = i - j
    T = tl.load(K_ptr + hk * C + lag, mask=lag >= 0, other=0.0)
    if BOTH:
        T += tl.load(Kb_ptr + hk * C - lag - 1, mask=lag < 0, other=0.0)
    return T.to(DT)
