"""The operators of a diagonal plus low-rank SSM (S4, bilinear rule) directly from its parameters.

With Ā = d + Σ_r f_r b_rᵀ of R terms (:mod:`statespan.ops.ssm._triton.resolvent`) one step costs O(N), so the c columns
Ā^l B̄ and rows C Ā^l are simply stepped through, exactly as many operations as they have entries. The dense power is a
product of two such lists of R·c entries, term by term:

    Ā^c = d^c + Σ_r Σ_j F_rj J_rj,   F_rj = d^(c-1-j) f_r,   J_rj = b_rᵀ Ā^j.

Small ones are multiplied out. Of large ones (FACTORED) the kernels apply the factors, and G is d^c alone; then the real
and the imaginary part of a mode are neighbours, as the diagonal kernels have them.

Backward steps through the same lists from their ends. The lists of a head do not depend on each other, so each has a
program of its own: number 0 the columns E, then one for each F_r, one for each J_r, and one per channel.
"""

from __future__ import annotations

import triton
import triton.language as tl

from statespan.ops._triton.modes import cmul, last_powers, load_complex, load_real, mul, store_complex
from statespan.ops.ssm._triton.resolvent import (
    add_to,
    add_weighted,
    dot,
    dots,
    load_parameters,
    load_system,
    pick,
    pull_back_input,
    pull_back_term,
    repeated,
    resolvent,
    scaled,
    step,
    weighted,
)


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
def store_task(at, gdr, gdi, gfr, gfi, gbr, gbi, gxr, gxi, P: tl.constexpr, R: tl.constexpr):
    """Store one program's share of the gradients of d, f, b and B̄, (4 + 4R, P)."""
    tl.store(at, gdr)
    tl.store(at + P, gdi)
    for r in tl.static_range(R):
        tl.store(at + (2 + 2 * r) * P, gfr[r])
        tl.store(at + (3 + 2 * r) * P, gfi[r])
        tl.store(at + (2 + 2 * R + 2 * r) * P, gbr[r])
        tl.store(at + (3 + 2 * R + 2 * r) * P, gbi[r])
    tl.store(at + (2 + 4 * R) * P, gxr)
    tl.store(at + (3 + 4 * R) * P, gxi)


@triton.jit
def _add_rows(totals, at, STRIDE: tl.constexpr, R: tl.constexpr):
    """Add a row of a share to the total of each term."""
    out = ()
    for r in tl.static_range(R):
        out = out + (totals[r] + tl.load(at + r * STRIDE),)
    return out


@triton.jit
def lowrank_kernel(
    dt_ptr, decay_ptr, freq_ptr, P_ptr, B_ptr, C_ptr, D_ptr, K_ptr, E_ptr, O_ptr, F_ptr, J_ptr, G_ptr,
    H, S, M, channels, causal,
    c: tl.constexpr, BITS: tl.constexpr, P: tl.constexpr, REAL: tl.constexpr, LOG: tl.constexpr, FT: tl.constexpr,
    SKIP: tl.constexpr, FACTORED: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Build one list of one head; G gets d^c, to which the product of F and J may be added afterwards."""
    h = tl.program_id(0).to(tl.int64)
    task = tl.program_id(1)
    n = tl.arange(0, P)
    ok = n < M
    own = (h % S) * M + n
    N = 2 * M
    x0r, x0i, br, bi, dr, di, fr, fi = load_system(
        dt_ptr, decay_ptr, freq_ptr, P_ptr, B_ptr, h, own, ok, S * M, R, REAL, LOG, FT
    )

    if task <= R:  # columns Ā^j B̄, or d^j f_r
        feedback = tl.where(task == 0, 1.0, 0.0).to(FT)
        xr, xi = tl.where(task == 0, x0r, pick(fr, task - 1, R)), tl.where(task == 0, x0i, pick(fi, task - 1, R))
        list_F = h * R + task - 1 if R > 1 else h
        for j in range(c):
            back = c - 1 - j
            if task == 0:
                store_vector(E_ptr + (h * c + back) * N, n, M, xr, xi, ok, FACTORED)
            else:
                store_vector(F_ptr + (list_F * c + back) * N, n, M, xr, xi, ok, FACTORED)
            xr, xi = step(xr, xi, dr, di, scaled(feedback, fr, R), scaled(feedback, fi, R), br, bi, R)
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
    elif task <= 2 * R:  # rows b_rᵀ Ā^j
        rr, ri = pick(br, task - 1 - R, R), pick(bi, task - 1 - R, R)
        list_J = h * R + task - 1 - R if R > 1 else h
        for j in range(c):
            store_vector(J_ptr + (list_J * c + j) * N, n, M, rr, ri, ok, FACTORED)
            rr, ri = step(rr, ri, dr, -di, br, bi, fr, fi, R)
    else:  # rows C Ā^j, and K_j, their products with B̄
        k = task - 1 - 2 * R
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
            rr, ri = step(rr, ri, dr, -di, br, bi, fr, fi, R)


@triton.jit
def lowrank_backward_kernel(
    dt_ptr, decay_ptr, freq_ptr, P_ptr, B_ptr, C_ptr, E_ptr, O_ptr, F_ptr, J_ptr, dK_ptr, dE_ptr, dO_ptr, dF_ptr,
    dJ_ptr, dG_ptr, task_ptr, dC_ptr,
    H, S, M, channels, causal,
    c: tl.constexpr, BITS: tl.constexpr, P: tl.constexpr, REAL: tl.constexpr, LOG: tl.constexpr, FT: tl.constexpr,
    FACTORED: tl.constexpr, R: tl.constexpr,
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
    x0r, x0i, br, bi, dr, di, fr, fi = load_system(
        dt_ptr, decay_ptr, freq_ptr, P_ptr, B_ptr, h, own, ok, S * M, R, REAL, LOG, FT
    )
    zero = dr * 0.0
    gdr, gdi, gxr, gxi = zero, zero, zero, zero
    gfr, gfi, gbr, gbi = repeated(zero, R), repeated(zero, R), repeated(zero, R), repeated(zero, R)
    mr, mi = zero, zero  # the adjoint of the list's next entry

    if task <= R:  # x_{j+1} = d x_j + Σ_r f_r (b_r·x_j), or without the sum
        feedback = tl.where(task == 0, 1.0, 0.0).to(FT)
        lr, li = scaled(feedback, fr, R), scaled(feedback, fi, R)
        row = h * c
        if R > 1:
            row = tl.where(task == 0, h, h * R + task - 1) * c
        from_ptr = E_ptr if task == 0 else F_ptr
        grad_ptr = dE_ptr if task == 0 else dF_ptr
        xr, xi = load_vector(from_ptr + row * N, n, M, ok, FACTORED, FT)
        er, ei = load_vector(grad_ptr + row * N, n, M, ok, FACTORED, FT)
        for i in range(c):
            ahead = tl.minimum(i + 1, c - 1)
            nxr, nxi = load_vector(from_ptr + (row + ahead) * N, n, M, ok, FACTORED, FT)
            ner, nei = load_vector(grad_ptr + (row + ahead) * N, n, M, ok, FACTORED, FT)
            tr, ti = cmul(xr, xi, mr, mi)
            gdr += tr
            gdi += ti
            into, back = scaled(feedback, dots(br, bi, xr, xi, R), R), dots(lr, li, mr, mi, R)
            gfr, gfi = add_weighted(gfr, into, mr, R), add_weighted(gfi, into, mi, R)
            gbr, gbi = add_weighted(gbr, back, xr, R), add_weighted(gbi, back, xi, R)
            mr, mi = cmul(dr, di, mr, mi)
            mr += weighted(back, br, R) + er
            mi += weighted(back, bi, R) + ei
            xr, xi, er, ei = nxr, nxi, ner, nei
        if task == 0:
            gxr, gxi = mr, mi
        else:
            gfr, gfi = add_to(gfr, task - 1, mr, R), add_to(gfi, task - 1, mi, R)
            if task == 1:
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
    else:  # r_{j+1} = conj(d) r_j + Σ_r b_r (f_r·r_j)
        k = tl.maximum(task - 1 - 2 * R, 0)
        hk = k * H + h
        is_J = task <= 2 * R
        list_J = h * R + task - 1 - R if R > 1 else h
        # O has rows 1 … c; J, and O of a channel that looks ahead (from its end), rows 0 … c-1
        sign, offset = tl.where((k < causal) | is_J, 1, -1), tl.where(is_J, 0, tl.where(k < causal, -1, c - 1))
        from_ptr = J_ptr + list_J * c * N if is_J else O_ptr + hk * c * N
        grad_ptr = dJ_ptr + list_J * c * N if is_J else dO_ptr + hk * c * N
        cr, ci = load_complex(C_ptr, hk * M + n, ok, FT)
        from_K = tl.where(is_J, 0.0, 1.0).to(FT)
        rr, ri, er, ei = zero, zero, zero, zero
        for i in range(c + 2):  # entry j is fetched, entry j + 1 worked on
            j = c - i
            row = sign * j + offset
            there = ok & (n * 0 + row >= 0) & (n * 0 + row < c) & (n * 0 + j >= 0)
            nrr, nri = load_vector(from_ptr + row * N, n, M, there, FACTORED, FT)
            ner, nei = load_vector(grad_ptr + row * N, n, M, there, FACTORED, FT)
            start = (n * 0 + j == 0) & (n * 0 + task > 2 * R)
            nrr, nri = tl.where(start, 2.0 * cr, nrr), tl.where(start, -2.0 * ci, nri)
            dK = from_K * tl.load(dK_ptr + hk * c + j, mask=(j < c) & (j >= 0), other=0.0).to(FT)
            ner += dK * x0r
            nei += dK * x0i
            gxr += dK * nrr
            gxi += dK * nri
            tr, ti = cmul(mr, mi, rr, ri)
            gdr += tr
            gdi += ti
            into, back = dots(fr, fi, rr, ri, R), dots(br, bi, mr, mi, R)
            gbr, gbi = add_weighted(gbr, into, mr, R), add_weighted(gbi, into, mi, R)
            gfr, gfi = add_weighted(gfr, back, rr, R), add_weighted(gfi, back, ri, R)
            mr, mi = mul(dr, di, mr, mi)
            mr += weighted(back, fr, R) + er
            mi += weighted(back, fi, R) + ei
            rr, ri, er, ei = nrr, nri, ner, nei
        if is_J:
            gbr, gbi = add_to(gbr, task - 1 - R, mr, R), add_to(gbi, task - 1 - R, mi, R)
        else:
            store_complex(dC_ptr, hk * M + n, 2.0 * mr, -2.0 * mi, ok)
    at = task_ptr + (h * (channels + 1 + 2 * R) + task) * (4 + 4 * R) * P + n
    store_task(at, gdr, gdi, gfr, gfi, gbr, gbi, gxr, gxi, P, R)


@triton.jit
def lowrank_finish_kernel(
    dt_ptr, decay_ptr, freq_ptr, P_ptr, B_ptr, task_ptr, ddt_ptr, ddecay_ptr, dfreq_ptr, dB_ptr, dP_ptr, share,
    S, M, tasks, P: tl.constexpr, REAL: tl.constexpr, LOG: tl.constexpr, FT: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """From the gradients of d, f, b and B̄ to those of one head's parameters; S heads make a share of all but Δ's."""
    h = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, P)
    ok = n < M
    own = (h % S) * M + n
    share *= h // S
    dt, decay, slope, freq, Pr, Pi, Br, Bi = load_parameters(
        dt_ptr, decay_ptr, freq_ptr, P_ptr, B_ptr, h, own, ok, S * M, R, REAL, LOG, FT
    )
    zero = freq * 0.0
    gdr, gdi, gxr, gxi = zero, zero, zero, zero
    gfr, gfi, gbr, gbi = repeated(zero, R), repeated(zero, R), repeated(zero, R), repeated(zero, R)
    for task in range(tasks):
        at = task_ptr + (h * tasks + task) * (4 + 4 * R) * P + n
        gdr += tl.load(at)
        gdi += tl.load(at + P)
        gfr, gfi = _add_rows(gfr, at + 2 * P, 2 * P, R), _add_rows(gfi, at + 3 * P, 2 * P, R)
        at += (2 + 2 * R) * P
        gbr, gbi = _add_rows(gbr, at, 2 * P, R), _add_rows(gbi, at + P, 2 * P, R)
        gxr += tl.load(at + 2 * R * P)
        gxi += tl.load(at + (2 * R + 1) * P)
    qr, qi, kappa, ar, ai, br, bi = resolvent(dt, decay, freq, Pr, Pi, R)
    dBr, dBi, ddt, gqr, gqi, gkappa, gar, gai, gbr, gbi = pull_back_input(
        dt, Br, Bi, qr, qi, kappa, ar, ai, br, bi, gdr, gdi, gfr, gfi, gbr, gbi, gxr, gxi, R
    )
    store_complex(dB_ptr + share, own, dBr, dBi, ok)
    for r in tl.static_range(R - 1, -1, -1):  # each term is made of those before it
        ddt += (kappa[r] / dt) * (kappa[r] / dt) * gkappa[r]
        dPr, dPi, gqr, gqi, gkappa, gar, gai, gbr, gbi = pull_back_term(
            r, Pr, Pi, qr, qi, kappa, ar, ai, br, bi, gqr, gqi, gkappa, gar, gai, gbr, gbi, R
        )
        store_complex(dP_ptr + share + 2 * r * S * M, own, dPr, dPi, ok)
    # q = 1/(1 - z/2), z = ΔΛ
    sr, si = mul(qr, qi, qr, qi)
    dzr, dzi = cmul(0.5 * sr, 0.5 * si, gqr, gqi)
    dzr = tl.where(ok & (dt * decay <= 1.0), dzr, 0.0)  # beyond 1 the real part is capped
    dzi = tl.where(ok, dzi, 0.0)
    ddt += tl.sum(decay * dzr + freq * dzi, 0)
    tl.store(ddecay_ptr + share + own, (dt * dzr * slope).to(ddecay_ptr.dtype.element_ty), mask=ok)
    tl.store(dfreq_ptr + share + own, (dt * dzi).to(dfreq_ptr.dtype.element_ty), mask=ok)
    if LOG:
        ddt = ddt * dt
    tl.store(ddt_ptr + h, ddt.to(ddt_ptr.dtype.element_ty))
