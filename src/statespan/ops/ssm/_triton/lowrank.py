"""The operators of a diagonal plus rank-one SSM (S4, bilinear rule) directly from its parameters: one program per head.

On packed real states with ``x·y = Re Σ conj(x) y``, and q = 1/(1 - ΔΛ/2), the Woodbury identity gives

    Ā = d + f bᵀ,   d = 2q - 1,   f = -2κ qP,   b = conj(q) P,   κ = Δ/(1 + Δ Σ |P|² Re q)
    B̄ = Δ (q B - κ (b·B) qP)

so one step costs O(N), and the c columns Ā^l B̄ and rows C Ā^l are simply stepped through, exactly as many operations as
they have entries. The dense power is a product of two such lists:

    Ā^c = d^c + Σ_j F_j J_j,   F_j = d^(c-1-j) f,   J_j = bᵀ Ā^j.

Small ones are multiplied out. Of large ones (FACTORED) the kernels apply the factors, and G is d^c alone; then the real
and the imaginary part of a mode are neighbours, as the diagonal kernels have them.

Backward steps through the same lists from their ends. The lists of a head do not depend on each other, so each has a
program of its own: number 0 the columns E, number 1 the columns F, number 2 the rows J, then one per channel.
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
def dot(ar, ai, br, bi):
    return tl.sum(ar * br + ai * bi, 0)


@triton.jit
def _resolvent(dt, decay, freq, Pr, Pi):
    """Q and κ."""
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
    beta = dot(br, bi, Br, Bi)
    return dt * (xr - kappa * beta * ar), dt * (xi - kappa * beta * ai)


@triton.jit
def load_system(
    dt_ptr, decay_ptr, freq_ptr, P_ptr, B_ptr, h, own, ok, REAL: tl.constexpr, LOG: tl.constexpr, FT: tl.constexpr
):  # fmt: skip
    """B̄, b, d and f of one head from its parameters."""
    dt = load_dt(dt_ptr, h, LOG, FT)
    decay, _slope = load_decay(decay_ptr, own, ok, REAL, FT)
    freq = load_real(freq_ptr, own, ok, FT)
    Pr, Pi = load_complex(P_ptr, own, ok, FT)
    Br, Bi = load_complex(B_ptr, own, ok, FT)
    qr, qi, kappa = _resolvent(dt, decay, freq, Pr, Pi)
    ar, ai, br, bi, dr, di, fr, fi = _factors(qr, qi, kappa, Pr, Pi, ok)
    xr, xi = _first_column(dt, qr, qi, kappa, ar, ai, br, bi, Br, Bi)
    return xr, xi, br, bi, dr, di, fr, fi


@triton.jit
def step(xr, xi, dr, di, fr, fi, br, bi):
    """``d x + f (b·x)``; for a row, with conj(d) and f and b exchanged."""
    scale = dot(br, bi, xr, xi)
    xr, xi = mul(dr, di, xr, xi)
    return xr + scale * fr, xi + scale * fi


@triton.jit
def _places(n, M, NEAR: tl.constexpr):
    """The positions of the real and imaginary parts of modes n in a list of 2M numbers."""
    if NEAR:
        return 2 * n, 2 * n + 1
    else:
        return n, M + n


@triton.jit
def store_vector(ptr, n, M, re, im, ok, NEAR: tl.constexpr):
    at_re, at_im = _places(n, M, NEAR)
    tl.store(ptr + at_re, re.to(ptr.dtype.element_ty), mask=ok)
    tl.store(ptr + at_im, im.to(ptr.dtype.element_ty), mask=ok)


@triton.jit
def load_vector(ptr, n, M, ok, NEAR: tl.constexpr, FT: tl.constexpr):
    at_re, at_im = _places(n, M, NEAR)
    re = tl.load(ptr + at_re, mask=ok, other=0.0).to(FT)
    im = tl.load(ptr + at_im, mask=ok, other=0.0).to(FT)
    return re, im


@triton.jit
def store_task(at, gdr, gdi, gfr, gfi, gbr, gbi, gxr, gxi, P: tl.constexpr):
    """Store one program's share of the gradients of d, f, b and B̄, (8, P)."""
    tl.store(at, gdr)
    tl.store(at + P, gdi)
    tl.store(at + 2 * P, gfr)
    tl.store(at + 3 * P, gfi)
    tl.store(at + 4 * P, gbr)
    tl.store(at + 5 * P, gbi)
    tl.store(at + 6 * P, gxr)
    tl.store(at + 7 * P, gxi)


@triton.jit
def lowrank_kernel(
    dt_ptr, decay_ptr, freq_ptr, P_ptr, B_ptr, C_ptr, D_ptr, K_ptr, E_ptr, O_ptr, F_ptr, J_ptr, G_ptr,
    H, S, M, channels, causal,
    c: tl.constexpr, BITS: tl.constexpr, P: tl.constexpr, REAL: tl.constexpr, LOG: tl.constexpr, FT: tl.constexpr,
    SKIP: tl.constexpr, FACTORED: tl.constexpr,
):  # fmt: skip
    """Build one list of one head; G gets d^c, to which the product of F and J may be added afterwards."""
    h = tl.program_id(0).to(tl.int64)
    task = tl.program_id(1)
    n = tl.arange(0, P)
    ok = n < M
    own = (h % S) * M + n
    N = 2 * M
    x0r, x0i, br, bi, dr, di, fr, fi = load_system(dt_ptr, decay_ptr, freq_ptr, P_ptr, B_ptr, h, own, ok, REAL, LOG, FT)

    if task < 2:  # columns Ā^j B̄, or d^j f
        feedback = tl.where(task == 0, 1.0, 0.0).to(FT)
        xr, xi = tl.where(task == 0, x0r, fr), tl.where(task == 0, x0i, fi)
        for j in range(c):
            at = (h * c + c - 1 - j) * N
            if task == 0:
                store_vector(E_ptr + at, n, M, xr, xi, ok, FACTORED)
            else:
                store_vector(F_ptr + at, n, M, xr, xi, ok, FACTORED)
            xr, xi = step(xr, xi, dr, di, feedback * fr, feedback * fi, br, bi)
        if task == 1:
            _pr, _pi, gr, gi = last_powers(dr, di, BITS)
            if FACTORED:
                store_vector(G_ptr + h * N, n, M, gr, gi, ok, FACTORED)
            else:
                m = tl.arange(0, P)[None, :]
                square, diagonal = ok[:, None] & (m < M), n[:, None] == m
                at = G_ptr + h * N * N + n[:, None] * N + m
                Gr, Gi = tl.where(diagonal, gr[:, None], 0.0), tl.where(diagonal, gi[:, None], 0.0)
                tl.store(at, Gr, mask=square)
                tl.store(at + M * N + M, Gr, mask=square)
                tl.store(at + M * N, Gi, mask=square)
                tl.store(at + M, -Gi, mask=square)
    elif task == 2:  # rows bᵀ Ā^j
        rr, ri = br, bi
        for j in range(c):
            store_vector(J_ptr + (h * c + j) * N, n, M, rr, ri, ok, FACTORED)
            rr, ri = step(rr, ri, dr, -di, br, bi, fr, fi)
    else:  # rows C Ā^j, and K_j, their products with B̄
        k = task - 3
        hk = k * H + h
        cr, ci = load_complex(C_ptr, hk * M + n, ok, FT)
        rr, ri = 2.0 * cr, -2.0 * ci
        skip = 0.0
        if SKIP:
            skip = tl.load(D_ptr + hk, mask=k < causal, other=0.0).to(FT)
        for j in range(c + 1):
            row = tl.where(k < causal, j - 1, c - 1 - j)
            store_vector(O_ptr + (hk * c + row) * N, n, M, rr, ri, ok & (n * 0 + row >= 0), FACTORED)
            K = dot(rr, ri, x0r, x0i) + tl.where(j == 0, skip, 0.0)
            tl.store(K_ptr + hk * c + j, K.to(K_ptr.dtype.element_ty), mask=j < c)
            rr, ri = step(rr, ri, dr, -di, br, bi, fr, fi)


@triton.jit
def lowrank_backward_kernel(
    dt_ptr, decay_ptr, freq_ptr, P_ptr, B_ptr, C_ptr, E_ptr, O_ptr, F_ptr, J_ptr, dK_ptr, dE_ptr, dO_ptr, dF_ptr,
    dJ_ptr, dG_ptr, task_ptr, dC_ptr,
    H, S, M, channels, causal,
    c: tl.constexpr, BITS: tl.constexpr, P: tl.constexpr, REAL: tl.constexpr, LOG: tl.constexpr, FT: tl.constexpr,
    FACTORED: tl.constexpr,
):  # fmt: skip
    """The share of one list of one head in the gradients of d, f, b and B̄; a channel's program also finishes its C.

    Each entry is fetched one round early, to be there when the loop comes to it.
    """
    h = tl.program_id(0).to(tl.int64)
    task = tl.program_id(1)
    n = tl.arange(0, P)
    ok = n < M
    own = (h % S) * M + n
    N = 2 * M
    x0r, x0i, br, bi, dr, di, fr, fi = load_system(dt_ptr, decay_ptr, freq_ptr, P_ptr, B_ptr, h, own, ok, REAL, LOG, FT)
    zero = dr * 0.0
    gdr, gdi, gfr, gfi, gbr, gbi, gxr, gxi = zero, zero, zero, zero, zero, zero, zero, zero
    mr, mi = zero, zero  # the adjoint of the list's next entry

    if task < 2:  # x_{j+1} = d x_j + f (b·x_j), or without the second term
        feedback = tl.where(task == 0, 1.0, 0.0).to(FT)
        lr, li = feedback * fr, feedback * fi
        from_ptr = E_ptr if task == 0 else F_ptr
        grad_ptr = dE_ptr if task == 0 else dF_ptr
        xr, xi = load_vector(from_ptr + h * c * N, n, M, ok, FACTORED, FT)
        er, ei = load_vector(grad_ptr + h * c * N, n, M, ok, FACTORED, FT)
        for i in range(c):
            ahead = tl.minimum(i + 1, c - 1)
            nxr, nxi = load_vector(from_ptr + (h * c + ahead) * N, n, M, ok, FACTORED, FT)
            ner, nei = load_vector(grad_ptr + (h * c + ahead) * N, n, M, ok, FACTORED, FT)
            tr, ti = cmul(xr, xi, mr, mi)
            gdr += tr
            gdi += ti
            into, back = feedback * dot(br, bi, xr, xi), dot(lr, li, mr, mi)
            gfr += into * mr
            gfi += into * mi
            gbr += back * xr
            gbi += back * xi
            mr, mi = cmul(dr, di, mr, mi)
            mr += back * br + er
            mi += back * bi + ei
            xr, xi, er, ei = nxr, nxi, ner, nei
        if task == 0:
            gxr, gxi = mr, mi
        else:
            gfr += mr
            gfi += mi
            pr, pi, _gr, _gi = last_powers(dr, di, BITS)
            if FACTORED:
                gr, gi = load_vector(dG_ptr + h * N, n, M, ok, FACTORED, FT)
            else:
                at = dG_ptr + h * N * N + n * (N + 1)
                gr = load_real(at, 0, ok, FT) + load_real(at, M * N + M, ok, FT)
                gi = load_real(at, M * N, ok, FT) - load_real(at, M, ok, FT)
            tr, ti = cmul(pr, pi, gr, gi)
            gdr += c * tr
            gdi += c * ti
    else:  # r_{j+1} = conj(d) r_j + b (f·r_j)
        k = tl.maximum(task - 3, 0)
        hk = k * H + h
        is_J = task == 2
        # O has rows 1 … c; J, and O of a channel that looks ahead (from its end), rows 0 … c-1
        sign, offset = tl.where((k < causal) | is_J, 1, -1), tl.where(is_J, 0, tl.where(k < causal, -1, c - 1))
        from_ptr = J_ptr + h * c * N if is_J else O_ptr + hk * c * N
        grad_ptr = dJ_ptr + h * c * N if is_J else dO_ptr + hk * c * N
        cr, ci = load_complex(C_ptr, hk * M + n, ok, FT)
        from_K = tl.where(is_J, 0.0, 1.0).to(FT)
        rr, ri, er, ei = zero, zero, zero, zero
        for i in range(c + 2):  # entry j is fetched, entry j + 1 worked on
            j = c - i
            row = sign * j + offset
            there = ok & (n * 0 + row >= 0) & (n * 0 + row < c) & (n * 0 + j >= 0)
            nrr, nri = load_vector(from_ptr + row * N, n, M, there, FACTORED, FT)
            ner, nei = load_vector(grad_ptr + row * N, n, M, there, FACTORED, FT)
            start = (n * 0 + j == 0) & (n * 0 + task > 2)
            nrr, nri = tl.where(start, 2.0 * cr, nrr), tl.where(start, -2.0 * ci, nri)
            dK = from_K * tl.load(dK_ptr + hk * c + j, mask=(j < c) & (j >= 0), other=0.0).to(FT)
            ner += dK * x0r
            nei += dK * x0i
            gxr += dK * nrr
            gxi += dK * nri
            tr, ti = cmul(mr, mi, rr, ri)
            gdr += tr
            gdi += ti
            into, back = dot(fr, fi, rr, ri), dot(br, bi, mr, mi)
            gbr += into * mr
            gbi += into * mi
            gfr += back * rr
            gfi += back * ri
            mr, mi = mul(dr, di, mr, mi)
            mr += back * fr + er
            mi += back * fi + ei
            rr, ri, er, ei = nrr, nri, ner, nei
        if is_J:
            gbr += mr
            gbi += mi
        else:
            store_complex(dC_ptr, hk * M + n, 2.0 * mr, -2.0 * mi, ok)
    at = task_ptr + (h * (channels + 3) + task) * 8 * P + n
    store_task(at, gdr, gdi, gfr, gfi, gbr, gbi, gxr, gxi, P)


@triton.jit
def lowrank_finish_kernel(
    dt_ptr, decay_ptr, freq_ptr, P_ptr, B_ptr, task_ptr, ddt_ptr, ddecay_ptr, dfreq_ptr, dB_ptr, dP_ptr, share,
    S, M, tasks, P: tl.constexpr, REAL: tl.constexpr, LOG: tl.constexpr, FT: tl.constexpr,
):  # fmt: skip
    """From the gradients of d, f, b and B̄ to those of one head's parameters; S heads make a share of all but Δ's."""
    h = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, P)
    ok = n < M
    own = (h % S) * M + n
    share *= h // S
    dt = load_dt(dt_ptr, h, LOG, FT)
    decay, slope = load_decay(decay_ptr, own, ok, REAL, FT)
    freq = load_real(freq_ptr, own, ok, FT)
    Pr, Pi = load_complex(P_ptr, own, ok, FT)
    Br, Bi = load_complex(B_ptr, own, ok, FT)
    qr, qi, kappa = _resolvent(dt, decay, freq, Pr, Pi)
    ar, ai, br, bi, _dr, _di, _fr, _fi = _factors(qr, qi, kappa, Pr, Pi, ok)
    zero = qr * 0.0
    gdr, gdi, gfr, gfi, gbr, gbi, gBr, gBi = zero, zero, zero, zero, zero, zero, zero, zero
    for task in range(tasks):
        at = task_ptr + (h * tasks + task) * 8 * P + n
        gdr += tl.load(at)
        gdi += tl.load(at + P)
        gfr += tl.load(at + 2 * P)
        gfi += tl.load(at + 3 * P)
        gbr += tl.load(at + 4 * P)
        gbi += tl.load(at + 5 * P)
        gBr += tl.load(at + 6 * P)
        gBi += tl.load(at + 7 * P)

    # B̄ = Δ (q B - κ β a), β = b·B
    beta = dot(br, bi, Br, Bi)
    tr, ti = mul(qr, qi, Br, Bi)
    ddt = dot(tr - kappa * beta * ar, ti - kappa * beta * ai, gBr, gBi)
    along = dt * dot(ar, ai, gBr, gBi)
    gqr, gqi = cmul(Br, Bi, dt * gBr, dt * gBi)
    tr, ti = cmul(qr, qi, dt * gBr, dt * gBi)
    store_complex(dB_ptr + share, own, tr - kappa * along * br, ti - kappa * along * bi, ok)
    gbr += -kappa * along * Br
    gbi += -kappa * along * Bi
    gkappa = -beta * along - 2.0 * dot(ar, ai, gfr, gfi)
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
    store_complex(dP_ptr + share, own, tr + ur + 2.0 * gram * Pr * qr, ti + ui + 2.0 * gram * Pi * qr, ok)
    # q = 1/(1 - z/2), z = ΔΛ
    sr, si = mul(qr, qi, qr, qi)
    dzr, dzi = cmul(0.5 * sr, 0.5 * si, gqr, gqi)
    dzr = tl.where(ok & (dt * decay <= 1.0), dzr, 0.0)
    dzi = tl.where(ok, dzi, 0.0)
    ddt += tl.sum(decay * dzr + freq * dzi, 0)
    tl.store(ddecay_ptr + share + own, (dt * dzr * slope).to(ddecay_ptr.dtype.element_ty), mask=ok)
    tl.store(dfreq_ptr + share + own, (dt * dzi).to(dfreq_ptr.dtype.element_ty), mask=ok)
    if LOG:
        ddt = ddt * dt
    tl.store(ddt_ptr + h, ddt.to(ddt_ptr.dtype.element_ty))
