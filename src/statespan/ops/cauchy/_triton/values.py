"""The nodes of S4's generating function, and its kernel from the inverse FFT."""

from __future__ import annotations

import triton
import triton.language as tl

from statespan.ops._triton.modes import store_complex

PI: tl.constexpr = tl.constexpr(3.141592653589793)
MOST: tl.constexpr = tl.constexpr(300.0)  # of a factor's logarithm, as in statespan.ssm.dplr


@triton.jit
def nodes_kernel(scales_ptr, nodes_ptr, count, F, BLOCK: tl.constexpr):
    """``g = (1-ω)/(1+ω)`` at ``ω = ρ exp(-2πik/count)``, k = 0 … count/2, without cancellation.

    With log ρ = -2t it is ``(sinh t cosh t + i s c)/(sinh² t + c²)`` with s and c the sine and cosine of πk/count.
    """
    row = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = k < F
    t = -0.5 * tl.load(scales_ptr + 2 * row)
    square, up = t * t, tl.exp(t)
    turn = PI / (t * 0.0 + count)  # in float64, which an integer alone would not make it
    series = t * (1.0 + square / 6.0 * (1.0 + square / 20.0 * (1.0 + square / 42.0 * (
        1.0 + square / 72.0 * (1.0 + square / 110.0)))))  # fmt: skip
    sinh = tl.where(t < 0.3, series, 0.5 * (up - 1.0 / up))
    cosh = 0.5 * (up + 1.0 / up)
    sine = tl.sin(k.to(tl.float64) * turn)
    cosine = tl.sin((count - 2 * k).to(tl.float64) * (0.5 * turn))
    size = sinh * sinh + cosine * cosine
    store_complex(nodes_ptr + row * F * 2, k, sinh * cosh / size, sine * cosine / size, ok)


@triton.jit
def values_kernel(
    raw_ptr, scales_ptr, K_ptr, H, L, count, CUTOFF: tl.constexpr, BLOCK: tl.constexpr
):
    """The values of a kernel from ``ρ^l K_l``, float64, cut off and in the precision of K."""
    hk = tl.program_id(0).to(tl.int64)
    l = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = l < L
    log_radius = tl.load(scales_ptr + 2 * (hk % H))
    value = tl.load(raw_ptr + hk * count + l, mask=ok, other=0.0)
    value *= tl.exp(tl.minimum(-log_radius * l.to(tl.float64), MOST))
    value = tl.minimum(tl.maximum(value, -CUTOFF), CUTOFF)
    tl.store(K_ptr + hk * L + l, value.to(K_ptr.dtype.element_ty), mask=ok)


@triton.jit
def values_backward_kernel(
    K_ptr, dK_ptr, scales_ptr, draw_ptr, dkappa_ptr, H, L, count, CUTOFF: tl.constexpr, BLOCK: tl.constexpr
):
    """The gradient of ``ρ^l K_l`` of one kernel, with zeros from L to count, and ``Σ_l K_l ∂L/∂K_l``."""
    hk = tl.program_id(0).to(tl.int64)
    log_radius = tl.load(scales_ptr + 2 * (hk % H))
    total = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, count, BLOCK):
        l = start + tl.arange(0, BLOCK)
        K = tl.load(K_ptr + hk * L + l, mask=l < L, other=0.0).to(tl.float64)
        dK = tl.load(dK_ptr + hk * L + l, mask=l < L, other=0.0).to(tl.float64)
        dK = tl.where(tl.abs(K) < 0.999999 * CUTOFF, dK, 0.0)  # a value that was cut off is constant
        total += K * dK
        dK *= tl.exp(tl.minimum(-log_radius * l.to(tl.float64), MOST))
        tl.store(draw_ptr + hk * count + l, dK, mask=l < count)
    tl.store(dkappa_ptr + hk, tl.sum(total, 0))
