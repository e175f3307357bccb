"""Ā and B̄ of a diagonal plus low-rank SSM (bilinear rule) from its parameters, and their gradients, in registers.

On packed real states with ``x·y = Re Σ conj(x) y``, A x = Λ x - 2 Σ_r P_r (P_r·x). With q = 1/(1 - ΔΛ/2), the
resolvent is q less R real terms of rank one. The Sherman-Morrison formula adds them one at a time:

    (1 - ΔA/2)⁻¹ = q - Σ_r κ_r a_r b_rᵀ
    a_r = q P_r - Σ_{s<r} κ_s (b_s·P_r) a_s,   b_r = conj(q) P_r - Σ_{s<r} κ_s (a_s·P_r) b_s
    κ_r = Δ/(1 + Δ g_r),   g_r = P_r·a_r = Σ |P_r|² Re q - Σ_{s<r} κ_s (b_s·P_r) (a_s·P_r)

If Re Λ ≤ 0, every g_r ≥ 0, so no denominator is less than 1. Then

    Ā = d + Σ_r f_r b_rᵀ,   d = 2q - 1,   f_r = -2κ_r a_r
    B̄ = Δ (q B - Σ_r κ_r (b_r·B) a_r)

For R = 1 nothing remains of the sums, and the compiled code is that of a single term. Values of each term are a tuple
of R. Compile-time names: R rank, FT the type, REAL and LOG as in :mod:`statespan.ops._triton.modes`.
"""

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
)


@triton.jit
def dot(ar, ai, br, bi):
    return tl.sum(ar * br + ai * bi, 0)


@triton.jit
def dots(ar, ai, xr, xi, R: tl.constexpr):
    """``a_r·x``."""
    out = ()
    for r in tl.static_range(R):
        out = out + (dot(ar[r], ai[r], xr, xi),)
    return out


@triton.jit
def weighted(weights, values, R: tl.constexpr):
    """``Σ_r w_r v_r``."""
    total = weights[0] * values[0]
    for r in tl.static_range(1, R):
        total += weights[r] * values[r]
    return total


@triton.jit
def repeated(value, R: tl.constexpr):
    out = ()
    for _ in tl.static_range(R):
        out = out + (value,)
    return out


@triton.jit
def scaled(factor, values, R: tl.constexpr):
    out = ()
    for r in tl.static_range(R):
        out = out + (factor * values[r],)
    return out


@triton.jit
def add_weighted(totals, weights, value, R: tl.constexpr):
    """``t_r + w_r v``."""
    out = ()
    for r in tl.static_range(R):
        out = out + (totals[r] + weights[r] * value,)
    return out


@triton.jit
def pick(values, term, R: tl.constexpr):
    """The value of a term that is known only at run time."""
    value = values[0]
    for r in tl.static_range(1, R):
        value = tl.where(term == r, values[r], value)
    return value


@triton.jit
def add_to(values, term, value, R: tl.constexpr):
    """Add to the value of a term that is known only at run time."""
    if R == 1:
        out = (values[0] + value,)
    else:
        out = ()
        for r in tl.static_range(R):
            out = out + (tl.where(term == r, values[r] + value, values[r]),)
    return out


@triton.jit
def put(values, at: tl.constexpr, value, R: tl.constexpr):
    """The same values but one."""
    out = ()
    for r in tl.static_range(R):
        if r == at:
            out = out + (value,)
        else:
            out = out + (values[r],)
    return out


@triton.jit
def load_parameters(
    dt_ptr, decay_ptr, freq_ptr, P_ptr, B_ptr, h, own, ok, size,
    R: tl.constexpr, REAL: tl.constexpr, LOG: tl.constexpr, FT: tl.constexpr,
):  # fmt: skip
    """Δ, Λ with the slope of its real part, P and B of one head; ``size`` is the distance of the terms in P."""
    dt = load_dt(dt_ptr, h, LOG, FT)
    decay, slope = load_decay(decay_ptr, own, ok, REAL, FT)
    freq = load_real(freq_ptr, own, ok, FT)
    Pr, Pi = (), ()
    for r in tl.static_range(R):
        re, im = load_complex(P_ptr + 2 * r * size, own, ok, FT)
        Pr, Pi = Pr + (re,), Pi + (im,)
    Br, Bi = load_complex(B_ptr, own, ok, FT)
    return dt, decay, slope, freq, Pr, Pi, Br, Bi


@triton.jit
def resolvent(dt, decay, freq, Pr, Pi, R: tl.constexpr):
    """q, and κ, a and b of every term."""
    qr, qi = half_resolvent(tl.minimum(dt * decay, 1.0), dt * freq)
    kappa, ar, ai, br, bi = (), (), (), (), ()
    for r in tl.static_range(R):
        gram = tl.sum((Pr[r] * Pr[r] + Pi[r] * Pi[r]) * qr, 0)
        xr, xi = mul(qr, qi, Pr[r], Pi[r])
        yr, yi = cmul(qr, qi, Pr[r], Pi[r])
        for s in tl.static_range(r):
            of_a = kappa[s] * dot(br[s], bi[s], Pr[r], Pi[r])
            of_b = dot(ar[s], ai[s], Pr[r], Pi[r])
            gram -= of_a * of_b
            of_b = kappa[s] * of_b
            xr -= of_a * ar[s]
            xi -= of_a * ai[s]
            yr -= of_b * br[s]
            yi -= of_b * bi[s]
        kappa = kappa + (dt / (1.0 + dt * gram),)
        ar, ai, br, bi = ar + (xr,), ai + (xi,), br + (yr,), bi + (yi,)
    return qr, qi, kappa, ar, ai, br, bi


@triton.jit
def load_system(
    dt_ptr, decay_ptr, freq_ptr, P_ptr, B_ptr, h, own, ok, size,
    R: tl.constexpr, REAL: tl.constexpr, LOG: tl.constexpr, FT: tl.constexpr,
):  # fmt: skip
    """B̄, b, d and f of one head from its parameters."""
    dt, decay, _slope, freq, Pr, Pi, Br, Bi = load_parameters(
        dt_ptr, decay_ptr, freq_ptr, P_ptr, B_ptr, h, own, ok, size, R, REAL, LOG, FT
    )
    qr, qi, kappa, ar, ai, br, bi = resolvent(dt, decay, freq, Pr, Pi, R)
    xr, xi = mul(qr, qi, Br, Bi)
    fr, fi = (), ()
    for r in tl.static_range(R):
        weight = kappa[r] * dot(br[r], bi[r], Br, Bi)
        xr -= weight * ar[r]
        xi -= weight * ai[r]
        fr, fi = fr + (-2.0 * kappa[r] * ar[r],), fi + (-2.0 * kappa[r] * ai[r],)
    return dt * xr, dt * xi, br, bi, tl.where(ok, 2.0 * qr - 1.0, 0.0), 2.0 * qi, fr, fi


@triton.jit
def step(xr, xi, dr, di, fr, fi, br, bi, R: tl.constexpr):
    """``d x + Σ_r f_r (b_r·x)``; for a row, with conj(d) and f and b exchanged."""
    scales = dots(br, bi, xr, xi, R)
    xr, xi = mul(dr, di, xr, xi)
    return xr + weighted(scales, fr, R), xi + weighted(scales, fi, R)


@triton.jit
def pull_back_input(
    dt, Br, Bi, qr, qi, kappa, ar, ai, br, bi, gdr, gdi, gfr, gfi, gbr, gbi, gxr, gxi, R: tl.constexpr
):  # fmt: skip
    """From the gradients of d, f, b and B̄ to those of B, Δ and q, and of κ, a and b of every term."""
    xr, xi = mul(qr, qi, Br, Bi)
    gqr, gqi = cmul(Br, Bi, dt * gxr, dt * gxi)
    dBr, dBi = cmul(qr, qi, dt * gxr, dt * gxi)
    gkappa, gar, gai = (), (), ()
    for r in tl.static_range(R):
        beta = dot(br[r], bi[r], Br, Bi)
        along = dt * dot(ar[r], ai[r], gxr, gxi)
        xr -= kappa[r] * beta * ar[r]
        xi -= kappa[r] * beta * ai[r]
        dBr -= kappa[r] * along * br[r]
        dBi -= kappa[r] * along * bi[r]
        gbr = put(gbr, r, gbr[r] - kappa[r] * along * Br, R)
        gbi = put(gbi, r, gbi[r] - kappa[r] * along * Bi, R)
        gkappa = gkappa + (-beta * along - 2.0 * dot(ar[r], ai[r], gfr[r], gfi[r]),)
        gar = gar + (-2.0 * kappa[r] * gfr[r] - dt * kappa[r] * beta * gxr,)
        gai = gai + (-2.0 * kappa[r] * gfi[r] - dt * kappa[r] * beta * gxi,)
    return dBr, dBi, dot(xr, xi, gxr, gxi), gqr + 2.0 * gdr, gqi + 2.0 * gdi, gkappa, gar, gai, gbr, gbi


@triton.jit
def pull_back_term(
    r: tl.constexpr, Pr, Pi, qr, qi, kappa, ar, ai, br, bi, gqr, gqi, gkappa, gar, gai, gbr, gbi, R: tl.constexpr
):  # fmt: skip
    """From the gradients of κ, a and b of term r to that of its P, and what it adds to those of q and earlier terms."""
    gram = -kappa[r] * kappa[r] * gkappa[r]
    tr, ti = cmul(Pr[r], Pi[r], gar[r], gai[r])
    gqr += tr
    gqi += ti
    tr, ti = cmul(gbr[r], gbi[r], Pr[r], Pi[r])
    gqr += tr
    gqi += ti
    gqr += gram * (Pr[r] * Pr[r] + Pi[r] * Pi[r])
    tr, ti = cmul(qr, qi, gar[r], gai[r])
    ur, ui = mul(qr, qi, gbr[r], gbi[r])
    dPr, dPi = tr + ur + 2.0 * gram * Pr[r] * qr, ti + ui + 2.0 * gram * Pi[r] * qr
    for s in tl.static_range(r):
        of_a, of_b = dot(br[s], bi[s], Pr[r], Pi[r]), dot(ar[s], ai[s], Pr[r], Pi[r])
        back_a, back_b = dot(ar[s], ai[s], gar[r], gai[r]), dot(br[s], bi[s], gbr[r], gbi[r])
        into_a, into_b = -kappa[s] * (back_a + gram * of_b), -kappa[s] * (back_b + gram * of_a)
        dPr += into_a * br[s] + into_b * ar[s]
        dPi += into_a * bi[s] + into_b * ai[s]
        gkappa = put(gkappa, s, gkappa[s] - of_a * back_a - of_b * back_b - gram * of_a * of_b, R)
        gar = put(gar, s, gar[s] - kappa[s] * of_a * gar[r] + into_b * Pr[r], R)
        gai = put(gai, s, gai[s] - kappa[s] * of_a * gai[r] + into_b * Pi[r], R)
        gbr = put(gbr, s, gbr[s] - kappa[s] * of_b * gbr[r] + into_a * Pr[r], R)
        gbi = put(gbi, s, gbi[s] - kappa[s] * of_b * gbi[r] + into_a * Pi[r], R)
    return dPr, dPi, gqr, gqi, gkappa, gar, gai, gbr, gbi
