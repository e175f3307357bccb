"""The operators of a diagonal SSM directly from its parameters, and their gradients: one program per head.

A thread handles one mode and one part of the chunk, sample by sample: all its data is in registers, and there is no
tile that a compiler could lay out badly across threads. The gradients need only two sums per mode of a sequence Q over
the chunk, its value as a polynomial in conj(Ā) and the derivative, ``Σ conj(Ā^l) Q_l`` and ``Σ l conj(Ā^(l-1)) Q_l``,
by Horner's rule: nothing is divided by Ā, which may be 0.
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
    power_table,
    store_complex,
)

UNROLL = tl.constexpr(8)  # samples of a part at a time: enough loads on their way, and quick to compile


@triton.jit
def _phi(zr, zi):
    """``exp(z)``, ``φ(z) = (exp(z) - 1)/z`` and ``φ'(z) = (exp(z) - φ(z))/z``, by their power series near 0."""
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
    """Ā and q, with B̄ = Δ q B, for z = ΔA; for their gradients q² (bilinear: Ā' = q², q' = q²/2) or q' (zoh, foh)."""
    if RULE == "bilinear":
        qr, qi = half_resolvent(zr, zi)
        ar, ai = mul(1.0 + 0.5 * zr, 0.5 * zi, qr, qi)
        sr, si = mul(qr, qi, qr, qi)
    else:
        ar, ai, qr, qi, sr, si = _phi(zr, zi)
        if RULE == "foh":  # q = φ²
            sr, si = mul(2.0 * qr, 2.0 * qi, sr, si)
            qr, qi = mul(qr, qi, qr, qi)
    return ar, ai, qr, qi, sr, si


@triton.jit
def _mode(
    dt_ptr, decay_ptr, freq_ptr, B_ptr, h, own, ok, RULE: tl.constexpr, REAL: tl.constexpr, LOG: tl.constexpr,
    FT: tl.constexpr,
):  # fmt: skip
    """Δ, Re A with its slope, Im A and B of modes, then Ā and B̄, and q and its square or q' as in :func:`_rule`."""
    dt = load_dt(dt_ptr, h, LOG, FT)
    decay, slope = load_decay(decay_ptr, own, ok, REAL, FT)
    freq = load_real(freq_ptr, own, ok, FT)
    Br, Bi = load_complex(B_ptr, own, ok, FT)
    ar, ai, qr, qi, sr, si = _rule(tl.minimum(dt * decay, 1.0), dt * freq, RULE)
    br, bi = mul(dt * qr, dt * qi, Br, Bi)
    return dt, decay, slope, freq, Br, Bi, ar, ai, br, bi, qr, qi, sr, si


@triton.jit
def _horner(ar, ai, qr, qi, mr, mi, sr, si):
    """One Horner step: add a sample in front of those with sums ``m`` (value) and ``s`` (derivative)."""
    sr, si = cmul(ar, ai, sr, si)
    sr += mr
    si += mi
    mr, mi = cmul(ar, ai, mr, mi)
    return mr + qr, mi + qi, sr, si


@triton.jit
def _together(mr, mi, sr, si, fr, fi, er, ei, PARTS: tl.constexpr):
    """Combine sums over parts of a chunk into sums over the chunk (P); f is ``Ā^l`` at a part's start, e its slope."""
    xr, xi = cmul(fr, fi, sr, si)
    yr, yi = cmul(er, ei, mr, mi)
    mr, mi = cmul(fr, fi, mr, mi)
    return _over_parts(mr, PARTS), _over_parts(mi, PARTS), _over_parts(xr + yr, PARTS), _over_parts(xi + yi, PARTS)


@triton.jit
def _row_sums(
    ptr, flip, CONJ: tl.constexpr, begin, M, n, ok, ar, ai, fr, fi, er, ei,
    c: tl.constexpr, PARTS: tl.constexpr, FT: tl.constexpr,
):  # fmt: skip
    """The sums of complex rows (c, M) or their conjugates; ``flip`` goes from the last row to the first."""
    U: tl.constexpr = c // PARTS
    mr, mi, sr, si = ar * 0.0, ar * 0.0, ar * 0.0, ar * 0.0
    for j in tl.range(U, loop_unroll_factor=UNROLL):
        l = begin + U - 1 - j  # noqa: E741
        qr, qi = load_complex(ptr, tl.where(flip, c - 1 - l, l) * M + n, ok, FT)
        if CONJ:
            qi = -qi
        mr, mi, sr, si = _horner(ar, ai, qr, qi, mr, mi, sr, si)
    return _together(mr, mi, sr, si, fr, fi, er, ei, PARTS)


@triton.jit
def _kernel_sums(
    ptr, begin, ar, ai, fr, fi, er, ei, c: tl.constexpr, PARTS: tl.constexpr, FT: tl.constexpr
):  # fmt: skip
    """The sums of real numbers (c), the same for all modes."""
    U: tl.constexpr = c // PARTS
    mr, mi, sr, si = ar * 0.0, ar * 0.0, ar * 0.0, ar * 0.0
    for j in tl.range(U, loop_unroll_factor=UNROLL):
        q = tl.load(ptr + begin + U - 1 - j).to(FT)
        mr, mi, sr, si = _horner(ar, ai, q, 0.0, mr, mi, sr, si)
    return _together(mr, mi, sr, si, fr, fi, er, ei, PARTS)


@triton.jit
def _over_parts(x, PARTS: tl.constexpr):
    return tl.sum(tl.reshape(x, (PARTS, x.shape[0] // PARTS)), 0)


@triton.jit
def diagonal_kernel(
    dt_ptr, decay_ptr, freq_ptr, B_ptr, C_ptr, D_ptr, K_ptr, E_ptr, G_ptr, O_ptr,
    H, S, M, channels, causal,
    c: tl.constexpr, BITS: tl.constexpr, PARTS: tl.constexpr, P: tl.constexpr, RULE: tl.constexpr, REAL: tl.constexpr,
    LOG: tl.constexpr, FT: tl.constexpr, SKIP: tl.constexpr,
):  # fmt: skip
    """K, E, G and O of one head. The first ``causal`` channels look back, the others ahead."""
    U: tl.constexpr = c // PARTS
    h = tl.program_id(0).to(tl.int64)
    t = tl.arange(0, PARTS * P)
    n, begin = t % P, t // P * U
    ok = n < M
    _dt, _decay, _slope, _freq, _Br, _Bi, ar, ai, br, bi, _qr, _qi, _sr, _si = _mode(
        dt_ptr, decay_ptr, freq_ptr, B_ptr, h, (h % S) * M + n, ok, RULE, REAL, LOG, FT
    )
    vr, vi, gr, gi = power_table(ar, ai, begin, BITS, FT)
    store_complex(G_ptr, h * M + n, gr, gi, ok & (begin == 0))
    xr, xi = mul(br, bi, vr, vi)
    for j in tl.range(U, loop_unroll_factor=UNROLL):
        store_complex(E_ptr, (h * c + c - 1 - begin - j) * M + n, xr, xi, ok)
        xr, xi = mul(xr, xi, ar, ai)
    for k in range(channels):
        hk = k * H + h
        cr, ci = load_complex(C_ptr, hk * M + n, ok, FT)
        wr, wi = mul(2.0 * cr, 2.0 * ci, vr, vi)
        xr, xi = mul(wr, wi, br, bi)  # K = 2 Re Σ C B̄ Ā^l
        one_r, one_i = tl.where(k < causal, ar, 1.0), tl.where(k < causal, ai, 0.0)
        yr, yi = mul(wr, wi, one_r, one_i)  # O = 2 p Ā^l, p = C Ā or C
        for j in tl.range(U, loop_unroll_factor=UNROLL):
            K = tl.sum(tl.reshape(xr, (PARTS, P)), 1, keep_dims=True)
            K = tl.reshape(tl.broadcast_to(K, (PARTS, P)), (PARTS * P,))
            if SKIP:
                K += tl.load(D_ptr + hk + t, mask=(t + j == 0) & (t + k < causal), other=0.0).to(FT)
            tl.store(K_ptr + hk * c + begin + j, K.to(K_ptr.dtype.element_ty), mask=n == 0)
            row = tl.where(k < causal, begin + j, c - 1 - begin - j)
            store_complex(O_ptr, (hk * c + row) * M + n, yr, -yi, ok)
            xr, xi = mul(xr, xi, ar, ai)
            yr, yi = mul(yr, yi, ar, ai)


@triton.jit
def diagonal_backward_kernel(
    dt_ptr, decay_ptr, freq_ptr, B_ptr, C_ptr, dK_ptr, dE_ptr, dG_ptr, dO_ptr,
    ddt_ptr, dC_ptr, ddecay_ptr, dfreq_ptr, dB_ptr, share,
    H, S, M, channels, causal,
    c: tl.constexpr, BITS: tl.constexpr, PARTS: tl.constexpr, P: tl.constexpr, RULE: tl.constexpr, REAL: tl.constexpr,
    LOG: tl.constexpr, FT: tl.constexpr,
):  # fmt: skip
    """The gradients of one head's parameters from those of its operators.

    Each S heads make a share of A's and B's; shares are ``share`` numbers apart.
    """
    U: tl.constexpr = c // PARTS
    h = tl.program_id(0).to(tl.int64)
    t = tl.arange(0, PARTS * P)
    m, begin, live = t % P, t // P * U, t % P < M
    _dt, _decay, _slope, _freq, _Br, _Bi, vr, vi, _br, _bi, _qr, _qi, _sr, _si = _mode(
        dt_ptr, decay_ptr, freq_ptr, B_ptr, h, (h % S) * M + m, live, RULE, REAL, LOG, FT
    )
    fr, fi, _gr, _gi = power_table(vr, vi, begin, BITS, FT)
    er, ei, _gr, _gi = power_table(vr, vi, tl.maximum(begin - 1, 0), BITS, FT)
    er, ei = begin.to(FT) * er, begin.to(FT) * ei
    n = tl.arange(0, P)
    ok, own = n < M, (h % S) * M + n
    share *= h // S
    dt, decay, slope, freq, Br, Bi, ar, ai, br, bi, qr, qi, sr, si = _mode(
        dt_ptr, decay_ptr, freq_ptr, B_ptr, h, own, ok, RULE, REAL, LOG, FT
    )
    # E = B̄ Ā^(c-1-row)
    dbr, dbi, tr, ti = _row_sums(
        dE_ptr + h * c * 2 * M, True, False, begin, M, m, live, vr, vi, fr, fi, er, ei, c, PARTS, FT
    )
    dar, dai = cmul(br, bi, tr, ti)
    for k in range(channels):
        hk = k * H + h
        cr, ci = load_complex(C_ptr, hk * M + n, ok, FT)
        kr, ki, wr, wi = _kernel_sums(dK_ptr + hk * c, begin, vr, vi, fr, fi, er, ei, c, PARTS, FT)
        mr, mi, tr, ti = _row_sums(
            dO_ptr + hk * c * 2 * M, k >= causal, True, begin, M, m, live, vr, vi, fr, fi, er, ei, c, PARTS, FT
        )
        # K = 2 Re Σ C B̄ Ā^l
        cr, ci = 2.0 * cr, 2.0 * ci
        xr, xi = cmul(cr, ci, kr, ki)
        dbr += xr
        dbi += xi
        xr, xi = mul(br, bi, cr, ci)
        wr, wi = cmul(xr, xi, wr, wi)
        dcr, dci = cmul(br, bi, kr, ki)
        # O = (Re, -Im) of 2 p Ā^l, p = C Ā or C
        one_r, one_i = tl.where(k < causal, ar, 1.0), tl.where(k < causal, ai, 0.0)
        pr, pi = mul(cr, ci, one_r, one_i)
        tr, ti = cmul(pr, pi, tr, ti)
        xr, xi = cmul(cr, ci, mr, mi)
        dar += wr + tr + tl.where(k < causal, xr, 0.0)
        dai += wi + ti + tl.where(k < causal, xi, 0.0)
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
    store_complex(dB_ptr + share, own, dt * tr, dt * ti, ok)
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
    tl.store(ddecay_ptr + share + own, (dt * dzr * slope).to(ddecay_ptr.dtype.element_ty), mask=ok)
    tl.store(dfreq_ptr + share + own, (dt * dzi).to(dfreq_ptr.dtype.element_ty), mask=ok)
    if LOG:
        ddt = ddt * dt
    tl.store(ddt_ptr + h, ddt.to(ddt_ptr.dtype.element_ty))
