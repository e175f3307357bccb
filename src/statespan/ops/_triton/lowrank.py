"""The operators of a diagonal plus rank-one SSM (S4, bilinear rule) straight from its parameters: one program a head.

On packed real states with ``x·y = Re Σ conj(x) y``, and q = 1/(1 - ΔΛ/2), the Woodbury identity gives

    Ā = d + f bᵀ,   d = 2q - 1,   f = -2κ qP,   b = conj(q) P,   κ = Δ/(1 + Δ Σ |P|² Re q)
    B̄ = Δ (q B - κ (b·B) qP)

so one step costs O(N), and the c columns Ā^l B̄ and rows C Ā^l are simply stepped through, exactly as many operations as
they have entries. The dense power is a product of two such lists:

    Ā^c = d^c + F J,   F_j = d^(c-1-j) f,   J_j = bᵀ Ā^j.

Backward steps through the same lists from their ends. The lists of a head do not depend on each other, so each has a
program of its own: number 0 the columns, number 1 the rows of J, then one a channel. All in float64.
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
    mul,
    power_table,
    store_complex,
)


@triton.jit
def _dot(ar, ai, br, bi):
    return tl.sum(ar * br + ai * bi, 0)


@triton.jit
def _resolvent(dt, decay, freq, Pr, Pi):
    """q and κ."""
    qr, qi = half_resolvent(tl.minimum(dt * decay, 1.0), dt * freq)
    kappa = dt / (1.0 + dt * tl.sum((Pr * Pr + Pi * Pi) * qr, 0))
    return qr, qi, kappa


@triton.jit
def _factors(qr, qi, kappa, Pr, Pi, ok):
    """a, b, d and f."""
    ar, ai = mul(qr, qi, Pr, Pi)
    br, bi = cmul(qr, qi, Pr, Pi)
    return ar, ai, br, bi, tl.where(ok, 2.0 * qr - 1.0, 0.0), 2.0 * qi, -2.0 * kappa * ar, -2.0 * kappa * ai


@triton.jit
def _first_column(dt, qr, qi, kappa, ar, ai, br, bi, Br, Bi):
    """B̄."""
    xr, xi = mul(qr, qi, Br, Bi)
    beta = _dot(br, bi, Br, Bi)
    return dt * (xr - kappa * beta * ar), dt * (xi - kappa * beta * ai)


@triton.jit
def _step(xr, xi, dr, di, fr, fi, br, bi):
    """``d x + f (b·x)``; for a row, with conj(d) and f and b exchanged."""
    scale = _dot(br, bi, xr, xi)
    xr, xi = mul(dr, di, xr, xi)
    return xr + scale * fr, xi + scale * fi


@triton.jit
def _store_vector(ptr, n, M, re, im, ok):
    tl.store(ptr + n, re.to(ptr.dtype.element_ty), mask=ok)
    tl.store(ptr + M + n, im.to(ptr.dtype.element_ty), mask=ok)


@triton.jit
def _load_vector(ptr, n, M, ok):
    re = tl.load(ptr + n, mask=ok, other=0.0).to(tl.float64)
    im = tl.load(ptr + M + n, mask=ok, other=0.0).to(tl.float64)
    return re, im


@triton.jit
def lowrank_kernel(
    dt_ptr, decay_ptr, freq_ptr, P_ptr, B_ptr, C_ptr, D_ptr, K_ptr, E_ptr, O_ptr, F_ptr, J_ptr, G_ptr,
    H, S, M, channels, causal, rate,
    c: tl.constexpr, BITS: tl.constexpr, P: tl.constexpr, REAL: tl.constexpr, LOG: tl.constexpr,
    SKIP: tl.constexpr,
):  # fmt: skip
    """One list of one head; G gets d^c, to which F J is added afterwards."""
    h = tl.program_id(0).to(tl.int64)
    task = tl.program_id(1)
    n = tl.arange(0, P)
    ok = n < M
    own = (h % S) * M + n
    N = 2 * M
    dt = load_dt(dt_ptr, h, rate, LOG)
    decay, _slope = load_decay(decay_ptr, own, ok, REAL)
    freq = tl.load(freq_ptr + own, mask=ok, other=0.0).to(tl.float64)
    Pr, Pi = load_complex(P_ptr, own, ok)
    Br, Bi = load_complex(B_ptr, own, ok)
    qr, qi, kappa = _resolvent(dt, decay, freq, Pr, Pi)
    ar, ai, br, bi, dr, di, fr, fi = _factors(qr, qi, kappa, Pr, Pi, ok)
    xr, xi = _first_column(dt, qr, qi, kappa, ar, ai, br, bi, Br, Bi)

    if task == 0:  # columns Ā^j B̄
        for j in range(c):
            _store_vector(E_ptr + (h * c + c - 1 - j) * N, n, M, xr, xi, ok)
            xr, xi = _step(xr, xi, dr, di, fr, fi, br, bi)
    elif task == 1:  # rows bᵀ Ā^j; and F, and d^c
        rr, ri = br, bi
        for j in range(c):
            _store_vector(J_ptr + (h * c + j) * N, n, M, rr, ri, ok)
            rr, ri = _step(rr, ri, dr, -di, br, bi, fr, fi)
        lag = tl.arange(0, c)[None, :]
        vr, vi, pr, pi = power_table(dr[:, None], di[:, None], lag, BITS)
        yr, yi = mul(fr[:, None], fi[:, None], vr, vi)
        both = ok[:, None] & (lag >= 0)
        at = F_ptr + (h * N + n[:, None]) * c + (c - 1 - lag)
        tl.store(at, yr, mask=both)
        tl.store(at + M * c, yi, mask=both)
        m = tl.arange(0, P)[None, :]
        square = ok[:, None] & (m < M)
        at = G_ptr + h * N * N + n[:, None] * N + m
        pr, pi = tl.where(n[:, None] == m, pr, 0.0), tl.where(n[:, None] == m, pi, 0.0)
        tl.store(at, pr, mask=square)
        tl.store(at + M * N + M, pr, mask=square)
        tl.store(at + M * N, pi, mask=square)
        tl.store(at + M, -pi, mask=square)
    else:  # rows C Ā^j, and K_j, their products with B̄
        k = task - 2
        hk = k * H + h
        cr, ci = load_complex(C_ptr, hk * M + n, ok)
        rr, ri = 2.0 * cr, -2.0 * ci
        skip = 0.0
        if SKIP:
            skip = tl.load(D_ptr + hk, mask=k < causal, other=0.0).to(tl.float64)
        for j in range(c + 1):
            row = tl.where(k < causal, j - 1, c - 1 - j)
            _store_vector(O_ptr + (hk * c + row) * N, n, M, rr, ri, ok & (n * 0 + row >= 0))
            K = _dot(rr, ri, xr, xi) + tl.where(j == 0, skip, 0.0)
            tl.store(K_ptr + hk * c + j, K.to(K_ptr.dtype.element_ty), mask=j < c)
            rr, ri = _step(rr, ri, dr, -di, br, bi, fr, fi)


@triton.jit
def _store_share(ptr, n, P: tl.constexpr, gdr, gdi, gfr, gfi, gbr, gbi, gxr, gxi):
    tl.store(ptr + n, gdr)
    tl.store(ptr + P + n, gdi)
    tl.store(ptr + 2 * P + n, gfr)
    tl.store(ptr + 3 * P + n, gfi)
    tl.store(ptr + 4 * P + n, gbr)
    tl.store(ptr + 5 * P + n, gbi)
    tl.store(ptr + 6 * P + n, gxr)
    tl.store(ptr + 7 * P + n, gxi)


@triton.jit
def lowrank_backward_kernel(
    dt_ptr, decay_ptr, freq_ptr, P_ptr, B_ptr, C_ptr, E_ptr, O_ptr, J_ptr, dK_ptr, dE_ptr, dO_ptr, dF_ptr, dJ_ptr,
    dG_ptr, share_ptr, dC_ptr,
    H, S, M, channels, causal, rate,
    c: tl.constexpr, BITS: tl.constexpr, P: tl.constexpr, REAL: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """What one list of one head adds to the gradients of d, f, b and B̄; a channel's program also finishes its C."""
    h = tl.program_id(0).to(tl.int64)
    task = tl.program_id(1)
    n = tl.arange(0, P)
    ok = n < M
    own = (h % S) * M + n
    N = 2 * M
    dt = load_dt(dt_ptr, h, rate, LOG)
    decay, _slope = load_decay(decay_ptr, own, ok, REAL)
    freq = tl.load(freq_ptr + own, mask=ok, other=0.0).to(tl.float64)
    Pr, Pi = load_complex(P_ptr, own, ok)
    Br, Bi = load_complex(B_ptr, own, ok)
    qr, qi, kappa = _resolvent(dt, decay, freq, Pr, Pi)
    ar, ai, br, bi, dr, di, fr, fi = _factors(qr, qi, kappa, Pr, Pi, ok)
    zero = dr * 0.0
    gdr, gdi, gfr, gfi, gbr, gbi, gxr, gxi = zero, zero, zero, zero, zero, zero, zero, zero
    mr, mi = zero, zero  # the adjoint of the list's next entry

    if task == 0:  # x_{j+1} = d x_j + f (b·x_j)
        xr, xi = _load_vector(E_ptr + h * c * N, n, M, ok)
        er, ei = _load_vector(dE_ptr + h * c * N, n, M, ok)
        for i in range(c):
            ahead = tl.minimum(i + 1, c - 1)  # fetched early, to be there when the loop comes round
            nxr, nxi = _load_vector(E_ptr + (h * c + ahead) * N, n, M, ok)
            ner, nei = _load_vector(dE_ptr + (h * c + ahead) * N, n, M, ok)
            tr, ti = cmul(xr, xi, mr, mi)
            gdr += tr
            gdi += ti
            into, back = _dot(br, bi, xr, xi), _dot(fr, fi, mr, mi)
            gfr += into * mr
            gfi += into * mi
            gbr += back * xr
            gbi += back * xi
            mr, mi = cmul(dr, di, mr, mi)
            mr += back * br + er
            mi += back * bi + ei
            xr, xi, er, ei = nxr, nxi, ner, nei
        gxr, gxi = mr, mi
    else:  # r_{j+1} = conj(d) r_j + b (f·r_j)
        k = tl.maximum(task - 2, 0)
        hk = k * H + h
        is_J = task == 1
        behind = (k < causal) & (task > 1)  # O has rows 1 … c; J, and O of a channel that looks ahead, rows 0 … c-1
        cr, ci = load_complex(C_ptr, hk * M + n, ok)
        x0r, x0i = _first_column(dt, qr, qi, kappa, ar, ai, br, bi, Br, Bi)
        list_ptr = tl.where(is_J, 0, hk) * c * N
        rr, ri, er, ei = zero, zero, zero, zero
        for i in range(c + 2):  # entry j = c + 1 - i is fetched, entry j + 1 is worked on
            j = c + 1 - i
            row = tl.where(is_J, j, tl.where(behind, j - 1, c - 1 - j))
            there = ok & (n * 0 + row >= 0) & (n * 0 + row < c) & (n * 0 + j <= c)
            if is_J:
                nrr, nri = _load_vector(J_ptr + (h * c + row) * N, n, M, there)
                ner, nei = _load_vector(dJ_ptr + (h * c + row) * N, n, M, there)
            else:
                nrr, nri = _load_vector(O_ptr + list_ptr + row * N, n, M, there)
                ner, nei = _load_vector(dO_ptr + list_ptr + row * N, n, M, there)
                nrr = tl.where(n * 0 + j == 0, 2.0 * cr, nrr)
                nri = tl.where(n * 0 + j == 0, -2.0 * ci, nri)
                dK = tl.load(dK_ptr + hk * c + j, mask=j < c, other=0.0).to(tl.float64)
                ner += dK * x0r
                nei += dK * x0i
                gxr += dK * nrr
                gxi += dK * nri
            tr, ti = cmul(mr, mi, rr, ri)
            gdr += tr
            gdi += ti
            into, back = _dot(fr, fi, rr, ri), _dot(br, bi, mr, mi)
            gbr += into * mr
            gbi += into * mi
            gfr += back * rr
            gfi += back * ri
            mr, mi = mul(dr, di, mr, mi)
            mr += back * fr + er
            mi += back * fi + ei
            rr, ri, er, ei = nrr, nri, ner, nei
        # the first entry, j = 0
        tr, ti = cmul(mr, mi, rr, ri)
        gdr += tr
        gdi += ti
        into, back = _dot(fr, fi, rr, ri), _dot(br, bi, mr, mi)
        gbr += into * mr
        gbi += into * mi
        gfr += back * rr
        gfi += back * ri
        mr, mi = mul(dr, di, mr, mi)
        mr += back * fr + er
        mi += back * fi + ei
        if is_J:
            gbr += mr
            gbi += mi
            lag = tl.arange(0, c)[None, :]
            both = ok[:, None] & (lag >= 0)
            at = dF_ptr + (h * N + n[:, None]) * c + (c - 1 - lag)
            yr = tl.load(at, mask=both, other=0.0)
            yi = tl.load(at + M * c, mask=both, other=0.0)
            vr, vi, _p, _q = power_table(dr[:, None], di[:, None], lag, BITS)
            pr, pi = cmul(vr, vi, yr, yi)
            gfr += tl.sum(pr, 1)
            gfi += tl.sum(pi, 1)
            yr, yi = cmul(fr[:, None], fi[:, None], yr, yi)
            wr, wi, _p2, _q2 = power_table(dr[:, None], di[:, None], tl.maximum(lag - 1, 0), BITS)
            pr, pi = cmul(wr, wi, yr, yi)
            gdr += tl.sum(lag * pr, 1)
            gdi += tl.sum(lag * pi, 1)
            end = (lag == c - 1).to(tl.float64)
            lr, li = tl.sum(end * vr, 1), tl.sum(end * vi, 1)
            at_G = dG_ptr + h * N * N + n * (N + 1)
            gr = tl.load(at_G, mask=ok, other=0.0) + tl.load(at_G + M * N + M, mask=ok, other=0.0)
            gi = tl.load(at_G + M * N, mask=ok, other=0.0) - tl.load(at_G + M, mask=ok, other=0.0)
            pr1, pi1 = cmul(lr, li, gr.to(tl.float64), gi.to(tl.float64))
            gdr += c * pr1
            gdi += c * pi1
        else:
            store_complex(dC_ptr, hk * M + n, 2.0 * mr, -2.0 * mi, ok)
    share = share_ptr + (h * (channels + 2) + task) * 8 * P
    _store_share(share, n, P, gdr, gdi, gfr, gfi, gbr, gbi, gxr, gxi)


@triton.jit
def lowrank_finish_kernel(
    dt_ptr, decay_ptr, freq_ptr, P_ptr, B_ptr, share_ptr, ddt_ptr, ddecay_ptr, dfreq_ptr, dP_ptr, dB_ptr,
    S, M, tasks, rate, P: tl.constexpr, REAL: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """From the gradients of d, f, b and B̄ to those of one head's parameters. Those of Λ, P and B come out per head."""
    h = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, P)
    ok = n < M
    own = (h % S) * M + n
    dt = load_dt(dt_ptr, h, rate, LOG)
    decay, slope = load_decay(decay_ptr, own, ok, REAL)
    freq = tl.load(freq_ptr + own, mask=ok, other=0.0).to(tl.float64)
    Pr, Pi = load_complex(P_ptr, own, ok)
    Br, Bi = load_complex(B_ptr, own, ok)
    qr, qi, kappa = _resolvent(dt, decay, freq, Pr, Pi)
    ar, ai, br, bi, _dr, _di, _fr, _fi = _factors(qr, qi, kappa, Pr, Pi, ok)
    zero = qr * 0.0
    gdr, gdi, gfr, gfi, gbr, gbi, gBr, gBi = zero, zero, zero, zero, zero, zero, zero, zero
    for task in range(tasks):
        at = share_ptr + (h * tasks + task) * 8 * P + n
        gdr += tl.load(at)
        gdi += tl.load(at + P)
        gfr += tl.load(at + 2 * P)
        gfi += tl.load(at + 3 * P)
        gbr += tl.load(at + 4 * P)
        gbi += tl.load(at + 5 * P)
        gBr += tl.load(at + 6 * P)
        gBi += tl.load(at + 7 * P)

    # B̄ = Δ (q B - κ β a), β = b·B
    beta = _dot(br, bi, Br, Bi)
    tr, ti = mul(qr, qi, Br, Bi)
    ddt = _dot(tr - kappa * beta * ar, ti - kappa * beta * ai, gBr, gBi)
    along = dt * _dot(ar, ai, gBr, gBi)
    gqr, gqi = cmul(Br, Bi, dt * gBr, dt * gBi)
    tr, ti = cmul(qr, qi, dt * gBr, dt * gBi)
    store_complex(dB_ptr, h * M + n, tr - kappa * along * br, ti - kappa * along * bi, ok)
    gbr += -kappa * along * Br
    gbi += -kappa * along * Bi
    gkappa = -beta * along - 2.0 * _dot(ar, ai, gfr, gfi)
    gar, gai = -2.0 * kappa * gfr - dt * kappa * beta * gBr, -2.0 * kappa * gfi - dt * kappa * beta * gBi
    # a = q P, b = conj(q) P, d = 2q - 1, κ
    tr, ti = cmul(Pr, Pi, gar, gai)
    gqr += tr + 2.0 * gdr
    gqi += ti + 2.0 * gdi
    tr, ti = cmul(gbr, gbi, Pr, Pi)
    gqr += tr
    gqi += ti
    gram = -kappa * kappa * gkappa
    gqr += gram * (Pr * Pr + Pi * Pi)
    ddt += (kappa / dt) * (kappa / dt) * gkappa
    tr, ti = cmul(qr, qi, gar, gai)
    ur, ui = mul(qr, qi, gbr, gbi)
    store_complex(dP_ptr, h * M + n, tr + ur + 2.0 * gram * Pr * qr, ti + ui + 2.0 * gram * Pi * qr, ok)
    # q = 1/(1 - z/2), z = ΔΛ
    sr, si = mul(qr, qi, qr, qi)
    dzr, dzi = cmul(0.5 * sr, 0.5 * si, gqr, gqi)
    dzr = tl.where(ok & (dt * decay <= 1.0), dzr, 0.0)
    dzi = tl.where(ok, dzi, 0.0)
    ddt += tl.sum(decay * dzr + freq * dzi, 0)
    tl.store(ddecay_ptr + h * M + n, (dt * dzr * slope).to(ddecay_ptr.dtype.element_ty), mask=ok)
    tl.store(dfreq_ptr + h * M + n, (dt * dzi).to(dfreq_ptr.dtype.element_ty), mask=ok)
    if LOG:
        ddt = ddt * dt
    else:
        ddt = ddt * rate
    tl.store(ddt_ptr + h, ddt.to(ddt_ptr.dtype.element_ty))
