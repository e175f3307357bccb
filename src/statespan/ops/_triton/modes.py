"""Shared by the kernels that build operators: complex arithmetic, and the step from parameters to ΔA.

Everything is in registers, in the type FT: float64, or float32 where the results are rounded to 16 bits anyway. The
gradient of a complex number x is ``∂L/∂Re x + i ∂L/∂Im x``; behind a holomorphic ``y = f(x)`` it is ``conj(f'(x))``
times that of y.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def mul(ar, ai, br, bi):
    """``a b``."""
    return ar * br - ai * bi, ar * bi + ai * br


@triton.jit
def cmul(ar, ai, br, bi):
    """``conj(a) b``."""
    return ar * br + ai * bi, ar * bi - ai * br


@triton.jit
def power_table(ar, ai, exponent, BITS: tl.constexpr, FT: tl.constexpr):
    """``a^exponent`` for numbers and exponents below 2^BITS, and ``a^(2^BITS)``."""
    vr = tl.zeros_like(ar) + tl.zeros_like(exponent).to(FT) + 1.0
    vi = vr * 0.0
    for bit in tl.static_range(BITS):
        chosen = ((exponent >> bit) & 1) == 1
        nr, ni = mul(vr, vi, ar, ai)
        vr = tl.where(chosen, nr, vr)
        vi = tl.where(chosen, ni, vi)
        ar, ai = mul(ar, ai, ar, ai)
    return vr, vi, ar, ai


@triton.jit
def load_complex(ptr, n, ok, FT: tl.constexpr):
    """Load interleaved real and imaginary parts in one instruction."""
    at = 2 * tl.expand_dims(n, -1) + tl.arange(0, 2)
    re, im = tl.split(tl.load(ptr + at, mask=tl.expand_dims(ok, -1), other=0.0).to(FT))
    return re, im


@triton.jit
def store_complex(ptr, n, re, im, ok):
    at = 2 * tl.expand_dims(n, -1) + tl.arange(0, 2)
    tl.store(ptr + at, tl.join(re, im).to(ptr.dtype.element_ty), mask=tl.expand_dims(ok, -1))


@triton.jit
def load_dt(dt_ptr, h, LOG: tl.constexpr, FT: tl.constexpr):
    dt = tl.load(dt_ptr + h).to(FT)
    if LOG:
        dt = tl.exp(dt)
    return dt


@triton.jit
def load_decay(ptr, n, ok, REAL: tl.constexpr, FT: tl.constexpr):
    """Re A from its parameter p (see nn.real_part), and its derivative with respect to p."""
    p = tl.load(ptr + n, mask=ok, other=0.0).to(FT)
    if REAL == "exp":
        value = -tl.exp(p)
        slope = value
    elif REAL == "softplus":
        rest = tl.exp(-tl.abs(p))
        value = -(tl.maximum(p, 0.0) + tl.log(1.0 + rest))
        slope = -tl.where(p >= 0, 1.0 / (1.0 + rest), rest / (1.0 + rest))
    elif REAL == "relu":
        value = -tl.maximum(p, 0.0)
        slope = tl.where(p > 0, -1.0, 0.0)
    else:
        value = p
        slope = p * 0.0 + 1.0
    return value, slope


@triton.jit
def half_resolvent(zr, zi):
    """``1/(1 - z/2)``."""
    wr, wi = 1.0 - 0.5 * zr, -0.5 * zi
    size = wr * wr + wi * wi
    return wr / size, -wi / size


@triton.jit
def load_real(ptr, n, ok, FT: tl.constexpr):
    return tl.load(ptr + n, mask=ok, other=0.0).to(FT)


@triton.jit
def last_powers(ar, ai, BITS: tl.constexpr):
    """``a^(2^BITS - 1)`` and ``a^(2^BITS)``."""
    pr, pi = ar * 0.0 + 1.0, ai * 0.0
    for _ in tl.static_range(BITS):
        pr, pi = mul(pr, pi, ar, ai)
        ar, ai = mul(ar, ai, ar, ai)
    return pr, pi, ar, ai
