"""From the parameters of a head to the coefficients of its Cauchy sums, and back to the parameters' gradients.

A conjugate pair of poles is one real quadratic. With z = ΔΛ/2 and a node g,

    w/(g - z) + conj(w)/(g - conj z) = (α g - β)/(g² - a g + b),
    a = 2 Re z,   b = |z|²,   α = 2 Re w,   β = 2 Re(w conj z)

so a mode has two real coefficients and each product w two more. All of it is float64. ``shared`` (H, 6, M) has a, b and
the α and β of |P|² and of conj(P) B; ``channels`` (K, H, 4, M) those of C P and of C B; ``scales`` (H, 2) has log ρ and
κ = Δ/2.
"""

from __future__ import annotations

import triton
import triton.language as tl

from statespan.ops._triton.modes import cmul, load_complex, load_decay, load_dt, load_real, mul, store_complex


@triton.jit
def _load_poles(dt_ptr, decay_ptr, freq_ptr, h, own, ok, REAL: tl.constexpr, LOG: tl.constexpr):
    """Δ, Re Λ with its derivative, Im Λ and z; growth of ΔΛ is capped as in statespan.ssm.discretize."""
    dt = load_dt(dt_ptr, h, LOG, tl.float64)
    decay, slope = load_decay(decay_ptr, own, ok, REAL, tl.float64)
    freq = load_real(freq_ptr, own, ok, tl.float64)
    growth = dt * decay
    return dt, decay, slope, freq, 0.5 * tl.where(growth > 1.0, 1.0, growth), 0.5 * dt * freq


@triton.jit
def _store_weight(ptr, n, M, ok, wr, wi, zr, zi):
    """Store α and β of a product w."""
    tl.store(ptr + n, 2.0 * wr, mask=ok)
    tl.store(ptr + M + n, 2.0 * (wr * zr + wi * zi), mask=ok)


@triton.jit
def tables_kernel(
    dt_ptr, decay_ptr, freq_ptr, P_ptr, B_ptr, C_ptr, shared_ptr, channels_ptr, scales_ptr,
    H, S, M, channels, length, X: tl.constexpr, P: tl.constexpr, REAL: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """The coefficients of one head; X is -L log ρ without growing modes."""
    h = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, P)
    ok = n < M
    own = (h % S) * M + n
    dt, _decay, _slope, _freq, zr, zi = _load_poles(dt_ptr, decay_ptr, freq_ptr, h, own, ok, REAL, LOG)
    Pr, Pi = load_complex(P_ptr, own, ok, tl.float64)
    Br, Bi = load_complex(B_ptr, own, ok, tl.float64)
    shared = shared_ptr + h * 6 * M
    tl.store(shared + n, 2.0 * zr, mask=ok)
    tl.store(shared + M + n, zr * zr + zi * zi, mask=ok)
    _store_weight(shared + 2 * M, n, M, ok, Pr * Pr + Pi * Pi, zr * 0.0, zr, zi)
    wr, wi = cmul(Pr, Pi, Br, Bi)
    _store_weight(shared + 4 * M, n, M, ok, wr, wi, zr, zi)
    for k in range(channels):
        hk = k * H + h
        Cr, Ci = load_complex(C_ptr, hk * M + n, ok, tl.float64)
        own_channel = channels_ptr + hk * 4 * M
        wr, wi = mul(Cr, Ci, Pr, Pi)
        _store_weight(own_channel, n, M, ok, wr, wi, zr, zi)
        wr, wi = mul(Cr, Ci, Br, Bi)
        _store_weight(own_channel + 2 * M, n, M, ok, wr, wi, zr, zi)
    growth = tl.max(tl.where(ok, tl.maximum(zr, 0.0), 0.0), 0)
    tl.store(scales_ptr + 2 * h, -X / (dt * 0.0 + length) - tl.log((1.0 + growth) / (1.0 - growth)))
    tl.store(scales_ptr + 2 * h + 1, 0.5 * dt)


@triton.jit
def _weight_gradient(galpha, gbeta, wr, wi, zr, zi, gzr, gzi):
    """The gradients of w and of z, to which it is added, from those of α and β."""
    return 2.0 * (galpha + zr * gbeta), 2.0 * zi * gbeta, gzr + 2.0 * wr * gbeta, gzi + 2.0 * wi * gbeta


@triton.jit
def _sum_shares(ptr, n, M, ok, shares):
    """The sum over programs of the gradients of a pair of coefficients."""
    first, second = tl.zeros_like(n).to(tl.float64), tl.zeros_like(n).to(tl.float64)
    for share in range(shares):
        first += tl.load(ptr + share * 10 * M + n, mask=ok, other=0.0)
        second += tl.load(ptr + share * 10 * M + M + n, mask=ok, other=0.0)
    return first, second


@triton.jit
def parameters_kernel(
    dt_ptr, decay_ptr, freq_ptr, P_ptr, B_ptr, C_ptr, parts_ptr, dkappa_ptr,
    ddt_ptr, ddecay_ptr, dfreq_ptr, dB_ptr, dP_ptr, dC_ptr, share,
    H, S, M, channels, segments, P: tl.constexpr, REAL: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """The gradients of one head's parameters; S heads make a share of all but those of Δ and C.

    ``parts`` (H, K, segments, 10, M) are the programs' sums for a, b, |P|², conj(P) B, C P and C B; ``dkappa`` (K, H)
    is the gradient of κ where it is not part of z.
    """
    h = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, P)
    ok = n < M
    own = (h % S) * M + n
    share *= h // S
    dt, decay, slope, freq, zr, zi = _load_poles(dt_ptr, decay_ptr, freq_ptr, h, own, ok, REAL, LOG)
    Pr, Pi = load_complex(P_ptr, own, ok, tl.float64)
    Br, Bi = load_complex(B_ptr, own, ok, tl.float64)
    parts = parts_ptr + h * channels * segments * 10 * M
    shares = channels * segments

    ga, gb = _sum_shares(parts, n, M, ok, shares)
    gzr, gzi = 2.0 * (ga + zr * gb), 2.0 * zi * gb
    galpha, gbeta = _sum_shares(parts + 2 * M, n, M, ok, shares)
    size = Pr * Pr + Pi * Pi
    gwr, _gwi, gzr, gzi = _weight_gradient(galpha, gbeta, size, size * 0.0, zr, zi, gzr, gzi)
    gPr, gPi = 2.0 * gwr * Pr, 2.0 * gwr * Pi
    galpha, gbeta = _sum_shares(parts + 4 * M, n, M, ok, shares)
    wr, wi = cmul(Pr, Pi, Br, Bi)
    gwr, gwi, gzr, gzi = _weight_gradient(galpha, gbeta, wr, wi, zr, zi, gzr, gzi)
    gBr, gBi = mul(Pr, Pi, gwr, gwi)
    tr, ti = cmul(gwr, gwi, Br, Bi)
    gPr += tr
    gPi += ti
    gkappa = dt * 0.0
    for k in range(channels):
        hk = k * H + h
        Cr, Ci = load_complex(C_ptr, hk * M + n, ok, tl.float64)
        mine = parts + k * segments * 10 * M
        galpha, gbeta = _sum_shares(mine + 6 * M, n, M, ok, segments)
        wr, wi = mul(Cr, Ci, Pr, Pi)
        gwr, gwi, gzr, gzi = _weight_gradient(galpha, gbeta, wr, wi, zr, zi, gzr, gzi)
        gCr, gCi = cmul(Pr, Pi, gwr, gwi)
        tr, ti = cmul(Cr, Ci, gwr, gwi)
        gPr += tr
        gPi += ti
        galpha, gbeta = _sum_shares(mine + 8 * M, n, M, ok, segments)
        wr, wi = mul(Cr, Ci, Br, Bi)
        gwr, gwi, gzr, gzi = _weight_gradient(galpha, gbeta, wr, wi, zr, zi, gzr, gzi)
        tr, ti = cmul(Br, Bi, gwr, gwi)
        store_complex(dC_ptr, hk * M + n, gCr + tr, gCi + ti, ok)
        tr, ti = cmul(Cr, Ci, gwr, gwi)
        gBr += tr
        gBi += ti
        gkappa += tl.load(dkappa_ptr + hk)
    store_complex(dB_ptr + share, own, gBr, gBi, ok)
    store_complex(dP_ptr + share, own, gPr, gPi, ok)
    gzr = tl.where(dt * decay <= 1.0, 0.5 * gzr, 0.0)
    gzi = 0.5 * gzi
    ddt = 0.5 * gkappa + tl.sum(tl.where(ok, decay * gzr + freq * gzi, 0.0), 0)
    tl.store(ddecay_ptr + share + own, (dt * gzr * slope).to(ddecay_ptr.dtype.element_ty), mask=ok)
    tl.store(dfreq_ptr + share + own, (dt * gzi).to(dfreq_ptr.dtype.element_ty), mask=ok)
    if LOG:
        ddt = ddt * dt
    tl.store(ddt_ptr + h, ddt.to(ddt_ptr.dtype.element_ty))
