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
    blocks = tl.cdiv(F, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    k = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    ok = k < F
    t = -0.5 * tl.load(scales_ptr + 2 * row)
    square, up = t * t, tl.exp(t)
    turn = PI / (t * 0.0 + count)  # in float64, which an integer alone would not make it
    series = t  # of sinh t, where the exponentials would cancel
    term = t
    for i in tl.static_range(1, 7):
        term *= square / (2 * i * (2 * i + 1))
        series += term
    sinh = tl.where(t < 0.3, series, 0.5 * (up - 1.0 / up))
    cosh = 0.5 * (up + 1.0 / up)
    sine = tl.sin(k.to(tl.float64) * turn)
    cosine = tl.sin((count - 2 * k).to(tl.float64) * (0.5 * turn))
    size = sinh * sinh + cosine * cosine
    store_complex(nodes_ptr + row * F * 2, k, sinh * cosh / size, sine * cosine / size, ok)


@triton.jit
def values_kernel(raw_ptr, scales_ptr, K_ptr, H, L, count, CUTOFF: tl.constexpr, BLOCK: tl.constexpr):
    """The values of a kernel from ``ρ^l K_l``, float64, cut off and in the precision of K."""
    blocks = tl.cdiv(L, BLOCK)
    hk = (tl.program_id(0) // blocks).to(tl.int64)
    t = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    ok = t < L
    log_radius = tl.load(scales_ptr + 2 * (hk % H))
    value = tl.load(raw_ptr + hk * count + t, mask=ok, other=0.0)
    value *= tl.exp(tl.minimum(-log_radius * t.to(tl.float64), MOST))
    value = tl.where(value > CUTOFF, CUTOFF, tl.where(value < -CUTOFF, -CUTOFF, value))  # keeps NaN
    tl.store(K_ptr + hk * L + t, value.to(K_ptr.dtype.element_ty), mask=ok)


@triton.jit
def values_backward_kernel(
    K_ptr, dK_ptr, scales_ptr, draw_ptr, dkappa_ptr, H, L, count, CUTOFF: tl.constexpr, BLOCK: tl.constexpr
):
    """The gradient of ``ρ^l K_l`` of one kernel, with zeros from L to count, and ``Σ_l K_l ∂L/∂K_l``."""
    hk = tl.program_id(0).to(tl.int64)
    log_radius = tl.load(scales_ptr + 2 * (hk % H))
    total = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, count, BLOCK):
        t = start + tl.arange(0, BLOCK)
        K = tl.load(K_ptr + hk * L + t, mask=t < L, other=0.0).to(tl.float64)
        dK = tl.load(dK_ptr + hk * L + t, mask=t < L, other=0.0).to(tl.float64)
        dK = tl.where(tl.abs(K) < 0.999999 * CUTOFF, dK, 0.0)  # a value that was cut off is constant
        total += K * dK
        dK *= tl.exp(tl.minimum(-log_radius * t.to(tl.float64), MOST))
        tl.store(draw_ptr + hk * count + t, dK, mask=t < count)
    tl.store(dkappa_ptr + hk, tl.sum(total, 0))
