"""The operators of a diagonal SSM straight from its parameters, and their gradients: one program a head.

A thread has a mode and walks through the chunk sample by sample: what it needs is in its registers, and no tile has a
shape that a compiler could lay out across threads. All that the gradients need of a sequence Q over the chunk are two
sums in each mode, its value as a polynomial in conj(Ā) and the derivative: ``Σ conj(Ā^l) Q_l`` and
``Σ l conj(Ā^(l-1)) Q_l``. They come by Horner's rule, so nothing is divided by Ā, which may be 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

from statespan.ops._triton.modes import (
    cmul,
    half_resolvent,
    last_powers,
    load_complex,
    load_decay,
    load_dt,
    load_real,
    mul,
    store_complex,
)


@triton.jit
def _phi(zr, zi):
    """``exp(z)``, ``φ(z) = (exp(z) - 1)/z`` and ``φ'(z) = (exp(z) - φ(z))/z``, by their series near 0."""
    size = tl.exp(zr)
    er, ei = size * tl.cos(zi), size * tl.sin(zi)
    square = zr * zr + zi * zi
    small = square < 1e-2
    square = tl.where(small, 1.0, square)
    pr, pi = cmul(zr, zi, er - 1.0, ei)
    pr, pi = pr / square, pi / square
    sr, si = cmul(zr, zi, er - pr, ei - pi)
    sr, si = sr / square, si / square
    fr, fi = zr * 0.0 + 1.0, zr * 0.0
    gr, gi = fr, fi
    for step in tl.static_range(8):
        k = 9 - step
        fr, fi = mul(zr / k, zi / k, fr, fi)
        fr += 1.0
        # φ'(z) = Σ z^m (m+1)/(m+2)! = ½ (1 + z (2/3) (1 + z (3/8) (1 + …)))
        gr, gi = mul(zr * k / ((k - 1) * (k + 1)), zi * k / ((k - 1) * (k + 1)), gr, gi)
        gr += 1.0
    return (er, ei, tl.where(small, fr, pr), tl.where(small, fi, pi), tl.where(small, 0.5 * gr, sr),
            tl.where(small, 0.5 * gi, si))  # fmt: skip


@triton.jit
def _rule(zr, zi, RULE: tl.constexpr):
    """Ā and q, with B̄ = Δ q B, for z = ΔA; and for their gradients q² (bilinear: Ā' = q², q' = q²/2) or φ' (zoh)."""
    if RULE == "bilinear":
        qr, qi = half_resolvent(zr, zi)
        ar, ai = mul(1.0 + 0.5 * zr, 0.5 * zi, qr, qi)
        sr, si = mul(qr, qi, qr, qi)
    else:
        ar, ai, qr, qi, sr, si = _phi(zr, zi)
    return ar, ai, qr, qi, sr, si


@triton.jit
def _horner(ar, ai, qr, qi, mr, mi, sr, si):
    """One more sample in front of those whose sums are ``m`` (the value) and ``s`` (the derivative)."""
    sr, si = cmul(ar, ai, sr, si)
    sr += mr
    si += mi
    mr, mi = cmul(ar, ai, mr, mi)
    return mr + qr, mi + qi, sr, si


@triton.jit
def diagonal_kernel(
    dt_ptr, decay_ptr, freq_ptr, B_ptr, C_ptr, D_ptr, K_ptr, E_ptr, G_ptr, O_ptr,
    H, S, M, channels, causal,
    c: tl.constexpr, BITS: tl.constexpr, LOW: tl.constexpr, P: tl.constexpr, RULE: tl.constexpr, REAL: tl.constexpr,
    LOG: tl.constexpr, FT: tl.constexpr, SKIP: tl.constexpr,
):  # fmt: skip
    """K, E, G and O of one head. The first ``causal`` channels look back, the others ahead."""
    U: tl.constexpr = 1 << LOW  # samples of a block, which begins with a power that has few roundings
    h = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, P)
    ok = n < M
    own = (h % S) * M + n
    dt = load_dt(dt_ptr, h, LOG, FT)
    decay, _slope = load_decay(decay_ptr, own, ok, REAL, FT)
    freq = load_real(freq_ptr, own, ok, FT)
    br, bi = load_complex(B_ptr, own, ok, FT)
    ar, ai, qr, qi, _sr, _si = _rule(tl.minimum(dt * decay, 1.0), dt * freq, RULE)
    br, bi = mul(dt * qr, dt * qi, br, bi)
    _pr, _pi, ur, ui = last_powers(ar, ai, LOW)
    _pr, _pi, gr, gi = last_powers(ar, ai, BITS)
    store_complex(G_ptr, h * M + n, gr, gi, ok)
    fr, fi = br, bi
    for block in range(c // U):
        xr, xi = fr, fi
        for j in tl.static_range(U):
            store_complex(E_ptr + (h * c + c - 1 - block * U - j) * 2 * M, n, xr, xi, ok)
            xr, xi = mul(xr, xi, ar, ai)
        fr, fi = mul(fr, fi, ur, ui)
    for k in range(channels):
        hk = k * H + h
        cr, ci = load_complex(C_ptr, hk * M + n, ok, FT)
        fr, fi = mul(2.0 * cr, 2.0 * ci, br, bi)  # K = 2 Re Σ C B̄ Ā^l
        one_r, one_i = tl.where(k < causal, ar, 1.0), tl.where(k < causal, ai, 0.0)
        pr, pi = mul(2.0 * cr, 2.0 * ci, one_r, one_i)  # O = p Ā^l
        for block in range(c // U):
            xr, xi, yr, yi = fr, fi, pr, pi
            for j in tl.static_range(U):
                l = block * U + j  # noqa: E741
                K = tl.sum(xr, 0)
                if SKIP:
                    K += tl.load(D_ptr + hk, mask=(k < causal) & (l == 0), other=0.0).to(FT)
                tl.store(K_ptr + hk * c + l, K.to(K_ptr.dtype.element_ty))
                row = tl.where(k < causal, l, c - 1 - l)
                store_complex(O_ptr + (hk * c + row) * 2 * M, n, yr, -yi, ok)
                xr, xi = mul(xr, xi, ar, ai)
                yr, yi = mul(yr, yi, ar, ai)
            fr, fi = mul(fr, fi, ur, ui)
            pr, pi = mul(pr, pi, ur, ui)


@triton.jit
def diagonal_backward_kernel(
    dt_ptr, decay_ptr, freq_ptr, B_ptr, C_ptr, dK_ptr, dE_ptr, dG_ptr, dO_ptr,
    ddt_ptr, dC_ptr, share_ptr,
    H, S, M, channels, causal,
    c: tl.constexpr, BITS: tl.constexpr, LOW: tl.constexpr, P: tl.constexpr, RULE: tl.constexpr, REAL: tl.constexpr,
    LOG: tl.constexpr, FT: tl.constexpr,
):  # fmt: skip
    """The gradients of one head's parameters from those of its operators. A's and B's go into the share of S heads."""
    U: tl.constexpr = 1 << LOW  # samples that are read at a time
    h = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, P)
    ok = n < M
    own = (h % S) * M + n
    share_ptr += h // S * 4 * S * M
    dt = load_dt(dt_ptr, h, LOG, FT)
    decay, slope = load_decay(decay_ptr, own, ok, REAL, FT)
    freq = load_real(freq_ptr, own, ok, FT)
    Br, Bi = load_complex(B_ptr, own, ok, FT)
    ar, ai, qr, qi, sr, si = _rule(tl.minimum(dt * decay, 1.0), dt * freq, RULE)
    br, bi = mul(dt * qr, dt * qi, Br, Bi)
    zero = br * 0.0
    # E = B̄ Ā^(c-1-row)
    dbr, dbi, tr, ti = zero, zero, zero, zero
    for block in range(c // U):
        for j in tl.static_range(U):
            xr, xi = load_complex(dE_ptr + (h * c + block * U + j) * 2 * M, n, ok, FT)
            dbr, dbi, tr, ti = _horner(ar, ai, xr, xi, dbr, dbi, tr, ti)
    dar, dai = cmul(br, bi, tr, ti)
    for k in range(channels):
        hk = k * H + h
        cr, ci = load_complex(C_ptr, hk * M + n, ok, FT)
        kr, ki, vr, vi, mr, mi, tr, ti = zero, zero, zero, zero, zero, zero, zero, zero
        for block in range(c // U):
            for j in tl.static_range(U):
                l = c - 1 - block * U - j  # noqa: E741
                kr, ki, vr, vi = _horner(ar, ai, tl.load(dK_ptr + hk * c + l).to(FT), 0.0, kr, ki, vr, vi)
                row = tl.where(k < causal, l, c - 1 - l)
                xr, xi = load_complex(dO_ptr + (hk * c + row) * 2 * M, n, ok, FT)
                mr, mi, tr, ti = _horner(ar, ai, xr, -xi, mr, mi, tr, ti)
        # K = 2 Re Σ C B̄ Ā^l
        cr, ci = 2.0 * cr, 2.0 * ci
        xr, xi = cmul(cr, ci, kr, ki)
        dbr += xr
        dbi += xi
        xr, xi = mul(br, bi, cr, ci)
        vr, vi = cmul(xr, xi, vr, vi)
        dar += vr
        dai += vi
        dcr, dci = cmul(br, bi, kr, ki)
        # O = (Re, -Im) of 2 p Ā^l, p = C Ā or C
        one_r, one_i = tl.where(k < causal, ar, 1.0), tl.where(k < causal, ai, 0.0)
        pr, pi = mul(cr, ci, one_r, one_i)
        tr, ti = cmul(pr, pi, tr, ti)
        xr, xi = cmul(cr, ci, mr, mi)
        dar += tr + tl.where(k < causal, xr, 0.0)
        dai += ti + tl.where(k < causal, xi, 0.0)
        xr, xi = cmul(one_r, one_i, mr, mi)
        store_complex(dC_ptr, hk * M + n, 2.0 * (dcr + xr), 2.0 * (dci + xi), ok)
    # G = Ā^c
    gr, gi = load_complex(dG_ptr, h * M + n, ok, FT)
    pr, pi, _gr, _gi = last_powers(ar, ai, BITS)
    tr, ti = cmul(pr, pi, gr, gi)
    dar += c * tr
    dai += c * ti
    # B̄ = Δ q B
    tr, ti = mul(qr, qi, Br, Bi)
    ddt = tl.sum(tr * dbr + ti * dbi, 0)
    tr, ti = cmul(qr, qi, dbr, dbi)
    store_complex(share_ptr + 2 * S * M, own, dt * tr, dt * ti, ok)
    dqr, dqi = cmul(Br, Bi, dt * dbr, dt * dbi)
    # Ā and q from z
    if RULE == "bilinear":
        dzr, dzi = cmul(sr, si, dar + 0.5 * dqr, dai + 0.5 * dqi)
    else:
        tr, ti = cmul(ar, ai, dar, dai)
        dzr, dzi = cmul(sr, si, dqr, dqi)
        dzr += tr
        dzi += ti
    dzr = tl.where(dt * decay <= 1.0, dzr, 0.0)
    ddt += tl.sum(decay * dzr + freq * dzi, 0)
    tl.store(share_ptr + own, (dt * dzr * slope).to(share_ptr.dtype.element_ty), mask=ok)
    tl.store(share_ptr + S * M + own, (dt * dzi).to(share_ptr.dtype.element_ty), mask=ok)
    if LOG:
        ddt = ddt * dt
    tl.store(ddt_ptr + h, ddt.to(ddt_ptr.dtype.element_ty))
