"""The operators of a diagonal SSM straight from its parameters, and their gradients: one program a head."""

from __future__ import annotations

import triton
import triton.language as tl

from statespan.ops._triton.modes import (
    cmul,
    half_resolvent,
    load_complex,
    load_decay,
    load_dt,
    load_real,
    mul,
    power_table,
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
def diagonal_kernel(
    dt_ptr, decay_ptr, freq_ptr, B_ptr, C_ptr, D_ptr, K_ptr, E_ptr, G_ptr, O_ptr,
    H, S, M, channels, causal,
    c: tl.constexpr, BITS: tl.constexpr, P: tl.constexpr, RULE: tl.constexpr, REAL: tl.constexpr, LOG: tl.constexpr,
    FT: tl.constexpr, SKIP: tl.constexpr,
):  # fmt: skip
    """K, E, G and O of one head. The first ``causal`` channels look back, the others ahead."""
    h = tl.program_id(0).to(tl.int64)
    n, l = tl.arange(0, P), tl.arange(0, c)[None, :]  # noqa: E741
    ok = n < M
    both = ok[:, None] & (l >= 0)
    own = (h % S) * M + n
    dt = load_dt(dt_ptr, h, LOG, FT)
    decay, _slope = load_decay(decay_ptr, own, ok, REAL, FT)
    freq = load_real(freq_ptr, own, ok, FT)
    br, bi = load_complex(B_ptr, own, ok, FT)
    ar, ai, qr, qi, _sr, _si = _rule(tl.minimum(dt * decay, 1.0), dt * freq, RULE)
    br, bi = mul(dt * qr, dt * qi, br, bi)
    vr, vi, gr, gi = power_table(ar[:, None], ai[:, None], l, BITS, FT)
    store_complex(G_ptr, h * M + n[:, None], gr, gi, ok[:, None])
    er, ei = mul(br[:, None], bi[:, None], vr, vi)
    store_complex(E_ptr, (h * c + c - 1 - l) * M + n[:, None], er, ei, both)
    for k in range(channels):
        hk = k * H + h
        cr, ci = load_complex(C_ptr, hk * M + n, ok, FT)
        # K = 2 Re Σ C E; E was made from the same powers
        K = 2.0 * tl.sum(cr[:, None] * er - ci[:, None] * ei, 0)[None, :]
        if SKIP:
            K += tl.where(l == 0, tl.load(D_ptr + hk, mask=k < causal, other=0.0).to(FT), 0.0)
        tl.store(K_ptr + hk * c + l, K.to(K_ptr.dtype.element_ty))
        one_r, one_i = tl.where(k < causal, ar, 1.0), tl.where(k < causal, ai, 0.0)
        cr, ci = mul(cr, ci, one_r, one_i)
        xr, xi = mul(cr[:, None], ci[:, None], vr, vi)
        row = tl.where(k < causal, l, c - 1 - l)
        store_complex(O_ptr, (hk * c + row) * M + n[:, None], 2.0 * xr, -2.0 * xi, both)


@triton.jit
def diagonal_backward_kernel(
    dt_ptr, decay_ptr, freq_ptr, B_ptr, C_ptr, dK_ptr, dE_ptr, dG_ptr, dO_ptr,
    ddt_ptr, ddecay_ptr, dfreq_ptr, dB_ptr, dC_ptr,
    H, S, M, channels, causal,
    c: tl.constexpr, BITS: tl.constexpr, P: tl.constexpr, RULE: tl.constexpr, REAL: tl.constexpr, LOG: tl.constexpr,
    FT: tl.constexpr,
):  # fmt: skip
    """The gradients of one head's parameters from those of its operators. A and B come out per head."""
    h = tl.program_id(0).to(tl.int64)
    n, l = tl.arange(0, P), tl.arange(0, c)[None, :]  # noqa: E741
    ok = n < M
    both = ok[:, None] & (l >= 0)
    own = (h % S) * M + n
    dt = load_dt(dt_ptr, h, LOG, FT)
    decay, slope = load_decay(decay_ptr, own, ok, REAL, FT)
    freq = load_real(freq_ptr, own, ok, FT)
    Br, Bi = load_complex(B_ptr, own, ok, FT)
    ar, ai, qr, qi, sr, si = _rule(tl.minimum(dt * decay, 1.0), dt * freq, RULE)
    br, bi = mul(dt * qr, dt * qi, Br, Bi)
    vr, vi, _gr, _gi = power_table(ar[:, None], ai[:, None], l, BITS, FT)
    wr, wi, _gr, _gi = power_table(ar[:, None], ai[:, None], tl.maximum(l - 1, 0), BITS, FT)  # Ā^(l-1)
    er, ei = load_complex(dE_ptr, (h * c + c - 1 - l) * M + n[:, None], both, FT)
    lag = l.to(FT)
    zero = br * 0.0
    dar, dai = zero, zero
    for k in range(channels):
        hk = k * H + h
        cr, ci = load_complex(C_ptr, hk * M + n, ok, FT)
        dK = 2.0 * tl.load(dK_ptr + hk * c + l).to(FT)
        # K = Re Σ 2 C E: it reaches E and C
        er += dK * cr[:, None]
        ei += -dK * ci[:, None]
        xr, xi = mul(br[:, None], bi[:, None], vr, vi)
        dcr, dci = tl.sum(dK * xr, 1), -tl.sum(dK * xi, 1)
        row = tl.where(k < causal, l, c - 1 - l)
        xr, xi = load_complex(dO_ptr, (hk * c + row) * M + n[:, None], both, FT)
        xr, xi = 2.0 * xr, -2.0 * xi
        one_r, one_i = tl.where(k < causal, ar, 1.0), tl.where(k < causal, ai, 0.0)
        pr, pi = mul(cr, ci, one_r, one_i)  # O = p V, p = C Ā or C
        tr, ti = cmul(vr, vi, xr, xi)
        dpr, dpi = tl.sum(tr, 1), tl.sum(ti, 1)
        tr, ti = cmul(one_r, one_i, dpr, dpi)
        store_complex(dC_ptr, hk * M + n, dcr + tr, dci + ti, ok)
        tr, ti = cmul(cr, ci, dpr, dpi)
        dar += tl.where(k < causal, tr, 0.0)
        dai += tl.where(k < causal, ti, 0.0)
        xr, xi = cmul(pr[:, None], pi[:, None], xr, xi)  # of V
        tr, ti = cmul(wr, wi, xr, xi)
        dar += tl.sum(lag * tr, 1)
        dai += tl.sum(lag * ti, 1)
    # E = B̄ V
    tr, ti = cmul(vr, vi, er, ei)
    dbr, dbi = tl.sum(tr, 1), tl.sum(ti, 1)
    xr, xi = cmul(br[:, None], bi[:, None], er, ei)
    tr, ti = cmul(wr, wi, xr, xi)
    dar += tl.sum(lag * tr, 1)
    dai += tl.sum(lag * ti, 1)
    # G = Ā^c
    gr, gi = load_complex(dG_ptr, h * M + n, ok, FT)
    end = (l == c - 1).to(FT)
    pr, pi = tl.sum(end * vr, 1), tl.sum(end * vi, 1)  # Ā^(c-1)
    tr, ti = cmul(pr, pi, gr, gi)
    dar += c * tr
    dai += c * ti
    # B̄ = Δ q B
    tr, ti = mul(qr, qi, Br, Bi)
    ddt = tl.sum(tr * dbr + ti * dbi, 0)
    tr, ti = cmul(qr, qi, dbr, dbi)
    store_complex(dB_ptr, h * M + n, dt * tr, dt * ti, ok)
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
    tl.store(ddecay_ptr + h * M + n, (dt * dzr * slope).to(ddecay_ptr.dtype.element_ty), mask=ok)
    tl.store(dfreq_ptr + h * M + n, (dt * dzi).to(dfreq_ptr.dtype.element_ty), mask=ok)
    if LOG:
        ddt = ddt * dt
    tl.store(ddt_ptr + h, ddt.to(ddt_ptr.dtype.element_ty))
