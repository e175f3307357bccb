"""The Cauchy sums of S4's generating function at its nodes, the Woodbury identity, and their gradients.

The Cauchy matrix is never in memory. With the coefficients of :mod:`statespan.ops.cauchy._triton.tables`, and with

    r_w = Σ_n (α_n g - β_n)/(g² - a_n g + b_n)   for w = conj(P) P, conj(P) B, C P and C B,

the generating function at a node is ``κ (1+g) (r_CB - e₁ r_CP)`` with ``e₁ = κ r_PB/(1 + κ r_PP)``. Forward, a thread
has a node and goes through the modes. Backward, a thread has a mode and goes through the nodes; with G the arriving
gradient and ``e₂ = κ r_CP/(1 + κ r_PP)``, what arrives at the sums is

    T = conj(κ (1+g)) G   for r_CB,   -conj(e₁) T   for r_CP,   -conj(e₂) T   for r_PB,   conj(e₁ e₂) T   for r_PP

so e₁ and e₂ are all that is saved. No sum depends on the order in which programs run.
"""

from __future__ import annotations

import triton
import triton.language as tl

from statespan.ops._triton.modes import cmul, load_complex, mul, store_complex


@triton.jit
def _inverse(gr, gi, a, b):
    """``1/(g² - a g + b)``."""
    rest = gr - a
    dr = gr * rest - gi * gi + b
    di = gi * (gr + rest)
    scale = 1.0 / (dr * dr + di * di)
    return dr * scale, -di * scale


@triton.jit
def _numerators(gr, gi, ar, ai, br, bi):
    """``g A - B`` of the sums A with α and B with β."""
    tr, ti = mul(gr, gi, ar, ai)
    return tr - br, ti - bi


@triton.jit
def sums_kernel(
    shared_ptr, channels_ptr, scales_ptr, nodes_ptr, spectrum_ptr, e1_ptr, e2_ptr,
    H, M, F, node_stride, SAVE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The generating function of one head and channel at a block of nodes, (K, H, F)."""
    blocks = tl.cdiv(F, BLOCK)
    h, k = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(1)
    f = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    ok = f < F
    hk = k * H + h
    gr, gi = load_complex(nodes_ptr + h * node_stride, f, ok, tl.float64)
    gr = tl.where(ok, gr, 1.0)  # 0 may be a pole
    shared, channel = shared_ptr + h * 6 * M, channels_ptr + hk * 4 * M
    zero = gr * 0.0
    pp_ar, pp_ai, pp_br, pp_bi, pb_ar, pb_ai, pb_br, pb_bi = zero, zero, zero, zero, zero, zero, zero, zero
    cp_ar, cp_ai, cp_br, cp_bi, cb_ar, cb_ai, cb_br, cb_bi = zero, zero, zero, zero, zero, zero, zero, zero
    for n in range(M):
        ir, ii = _inverse(gr, gi, tl.load(shared + n), tl.load(shared + M + n))
        alpha, beta = tl.load(shared + 2 * M + n), tl.load(shared + 3 * M + n)
        pp_ar += alpha * ir
        pp_ai += alpha * ii
        pp_br += beta * ir
        pp_bi += beta * ii
        alpha, beta = tl.load(shared + 4 * M + n), tl.load(shared + 5 * M + n)
        pb_ar += alpha * ir
        pb_ai += alpha * ii
        pb_br += beta * ir
        pb_bi += beta * ii
        alpha, beta = tl.load(channel + n), tl.load(channel + M + n)
        cp_ar += alpha * ir
        cp_ai += alpha * ii
        cp_br += beta * ir
        cp_bi += beta * ii
        alpha, beta = tl.load(channel + 2 * M + n), tl.load(channel + 3 * M + n)
        cb_ar += alpha * ir
        cb_ai += alpha * ii
        cb_br += beta * ir
        cb_bi += beta * ii
    kappa = tl.load(scales_ptr + 2 * h + 1)
    ppr, ppi = _numerators(gr, gi, pp_ar, pp_ai, pp_br, pp_bi)
    pbr, pbi = _numerators(gr, gi, pb_ar, pb_ai, pb_br, pb_bi)
    cpr, cpi = _numerators(gr, gi, cp_ar, cp_ai, cp_br, cp_bi)
    cbr, cbi = _numerators(gr, gi, cb_ar, cb_ai, cb_br, cb_bi)
    dr, di = 1.0 + kappa * ppr, kappa * ppi  # its real part is at least 1: nothing is ill-conditioned
    scale = kappa / (dr * dr + di * di)
    dr, di = dr * scale, -di * scale
    e1r, e1i = mul(dr, di, pbr, pbi)
    tr, ti = mul(cpr, cpi, e1r, e1i)
    sr, si = mul(1.0 + gr, gi, cbr - tr, cbi - ti)
    store_complex(spectrum_ptr + hk * F * 2, f, kappa * sr, kappa * si, ok)
    if SAVE:
        e2r, e2i = mul(dr, di, cpr, cpi)
        store_complex(e2_ptr + hk * F * 2, f, e2r, e2i, ok)
        if k == 0:
            store_complex(e1_ptr + h * F * 2, f, e1r, e1i, ok)


@triton.jit
def arriving_kernel(
    spectrum_ptr, e1_ptr, e2_ptr, nodes_ptr, scales_ptr, dkappa_ptr, H, F, count, node_stride, BLOCK: tl.constexpr
):
    """From the FFT of a kernel's gradient to T, in place; completes the gradient of κ beside z.

    ``dkappa`` has Σ_l K_l ∂L/∂K_l, the part of κ as a factor of the whole; the rest is that of κ in front of r_PP.
    """
    hk = tl.program_id(0).to(tl.int64)
    h = hk % H
    kappa = tl.load(scales_ptr + 2 * h + 1)
    total = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, F, BLOCK):
        f = start + tl.arange(0, BLOCK)
        ok = f < F
        gr, gi = load_complex(nodes_ptr + h * node_stride, f, ok, tl.float64)
        sr, si = load_complex(spectrum_ptr + hk * F * 2, f, ok, tl.float64)
        # all nodes but the first and the last stand for two: ω and conj ω
        weight = tl.where((f == 0) | (f == F - 1), 1.0, 2.0) * kappa / count
        tr, ti = cmul(1.0 + gr, gi, weight * sr, weight * si)
        store_complex(spectrum_ptr + hk * F * 2, f, tr, ti, ok)
        e1r, e1i = load_complex(e1_ptr + h * F * 2, f, ok, tl.float64)
        e2r, e2i = load_complex(e2_ptr + hk * F * 2, f, ok, tl.float64)
        er, ei = mul(e1r, e1i, e2r, e2i)
        total += er * tr + ei * ti
    factor = tl.load(dkappa_ptr + hk)
    tl.store(dkappa_ptr + hk, (factor - tl.sum(total, 0) / kappa) / kappa)


@triton.jit
def _load_scalar(ptr, f):
    return tl.load(ptr + 2 * f), tl.load(ptr + 2 * f + 1)


@triton.jit
def sums_backward_kernel(
    shared_ptr, channels_ptr, nodes_ptr, arriving_ptr, e1_ptr, e2_ptr, parts_ptr,
    H, M, F, channels, node_stride, segments, size, BLOCK: tl.constexpr,
):  # fmt: skip
    """The share of one channel and one segment of nodes in the gradients of a block of modes' coefficients."""
    h, part = tl.program_id(0).to(tl.int64), tl.program_id(2)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = n < M
    k, segment = part // segments, part % segments
    hk = k * H + h
    shared, channel = shared_ptr + h * 6 * M + n, channels_ptr + hk * 4 * M + n
    a, b = tl.load(shared, mask=ok, other=-2.0), tl.load(shared + M, mask=ok, other=1.0)  # elsewhere a pole at -1
    pp_a, pp_b = tl.load(shared + 2 * M, mask=ok, other=0.0), tl.load(shared + 3 * M, mask=ok, other=0.0)
    pb_a, pb_b = tl.load(shared + 4 * M, mask=ok, other=0.0), tl.load(shared + 5 * M, mask=ok, other=0.0)
    cp_a, cp_b = tl.load(channel, mask=ok, other=0.0), tl.load(channel + M, mask=ok, other=0.0)
    cb_a, cb_b = tl.load(channel + 2 * M, mask=ok, other=0.0), tl.load(channel + 3 * M, mask=ok, other=0.0)
    zero = a * 0.0
    ga, gb, gpp_a, gpp_b, gpb_a, gpb_b, gcp_a, gcp_b, gcb_a, gcb_b = (
        zero, zero, zero, zero, zero, zero, zero, zero, zero, zero
    )  # fmt: skip
    nodes, arriving = nodes_ptr + h * node_stride, arriving_ptr + hk * F * 2
    e1, e2 = e1_ptr + h * F * 2, e2_ptr + hk * F * 2
    for f in range(segment * size, tl.minimum(F, (segment + 1) * size)):
        gr, gi = _load_scalar(nodes, f)
        cbr, cbi = _load_scalar(arriving, f)
        e1r, e1i = _load_scalar(e1, f)
        e2r, e2i = _load_scalar(e2, f)
        cpr, cpi = cmul(-e1r, -e1i, cbr, cbi)
        pbr, pbi = cmul(-e2r, -e2i, cbr, cbi)
        ppr, ppi = cmul(-e1r, -e1i, pbr, pbi)
        ir, ii = _inverse(gr, gi, a, b)
        gir, gii = mul(gr, gi, ir, ii)
        # each += one fused multiply-add
        gpp_a += gir * ppr
        gpp_a += gii * ppi
        gpp_b -= ir * ppr
        gpp_b -= ii * ppi
        gpb_a += gir * pbr
        gpb_a += gii * pbi
        gpb_b -= ir * pbr
        gpb_b -= ii * pbi
        gcp_a += gir * cpr
        gcp_a += gii * cpi
        gcp_b -= ir * cpr
        gcp_b -= ii * cpi
        gcb_a += gir * cbr
        gcb_a += gii * cbi
        gcb_b -= ir * cbr
        gcb_b -= ii * cbi
        xr = pp_a * ppr + pb_a * pbr + cp_a * cpr + cb_a * cbr
        xi = pp_a * ppi + pb_a * pbi + cp_a * cpi + cb_a * cbi
        xr, xi = cmul(gr, gi, xr, xi)
        xr = xr - pp_b * ppr - pb_b * pbr - cp_b * cpr - cb_b * cbr
        xi = xi - pp_b * ppi - pb_b * pbi - cp_b * cpi - cb_b * cbi
        tr, ti = cmul(ir, ii, xr, xi)
        xr, xi = cmul(ir, ii, tr, ti)  # less the gradient of g² - a g + b
        ga += gr * xr
        ga += gi * xi
        gb -= xr
    at = parts_ptr + ((h * channels + k) * segments + segment) * 10 * M + n
    tl.store(at, ga, mask=ok)
    tl.store(at + M, gb, mask=ok)
    tl.store(at + 2 * M, gpp_a, mask=ok)
    tl.store(at + 3 * M, gpp_b, mask=ok)
    tl.store(at + 4 * M, gpb_a, mask=ok)
    tl.store(at + 5 * M, gpb_b, mask=ok)
    tl.store(at + 6 * M, gcp_a, mask=ok)
    tl.store(at + 7 * M, gcp_b, mask=ok)
    tl.store(at + 8 * M, gcb_a, mask=ok)
    tl.store(at + 9 * M, gcb_b, mask=ok)
