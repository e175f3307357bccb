"""GELU inside the kernels, and its backward pass as a kernel of its own."""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from statespan.ops._triton.launcher import empty, launch

BLOCK = 1024
FAST = tl.constexpr(os.environ.get("TRITON_INTERPRET", "0") != "1")
"""Whether to use a GPU's own approximations, which the interpreter does not know."""


@triton.jit
def erf_parts(y, DT: tl.constexpr):
    """The normal distribution's Φ(y) and ``exp(-y²/2)``.

    In float64 exactly; otherwise by ``Φ(-|y|) = exp(-y²/2) t p(t)`` with ``t = 1/(1 + a |y|)`` and a polynomial p. For
    float32 it is accurate to 1.1e-8, and with its rounding errors to 2.5e-7; for 16-bit results to 1.5e-7.
    """
    if tl.float64 == DT:
        return 0.5 * (1.0 + tl.erf(y * 0.7071067811865476)), tl.exp(-0.5 * y * y)
    elif tl.float32 == DT:
        t, bell = 1.0 + 0.28 * tl.abs(y), tl.exp2(-0.7213475204444817 * (y * y))
        if FAST:  # accurate to two units in the last place
            t = libdevice.fast_dividef(1.0, t)
        else:
            t = 1.0 / t
        tail = 0.06622913 + t * (0.27197331 + t * (-0.2406707 + t * (0.39206782 + t * -0.10632876)))
        tail = bell * (t * (0.11672919 + t * tail))
        return tl.where(y >= 0, 1.0 - tail, tail), bell
    else:
        t = 1.0 + 0.23164189 * tl.abs(y)
        if FAST:  # what is lost is in the last bits of 32
            bell, t = libdevice.fast_expf(-0.5 * y * y), libdevice.fast_dividef(1.0, t)
        else:
            bell, t = tl.exp(-0.5 * y * y), 1.0 / t
        tail = t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))))
        tail = tail * bell
        return tl.where(y >= 0, 1.0 - tail, tail), bell


@triton.jit
def slope(y, DT: tl.constexpr):
    """GELU's derivative at y."""
    normal, bell = erf_parts(y, DT)
    return normal + 0.3989422804014327 * y * bell


@triton.jit
def _backward_kernel(dz_ptr, y_ptr, dy_ptr, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = at < size
    y = tl.load(y_ptr + at, mask=ok, other=0.0).to(tl.float32)
    dz = tl.load(dz_ptr + at, mask=ok, other=0.0).to(tl.float32)
    tl.store(dy_ptr + at, (dz * slope(y, dy_ptr.dtype.element_ty)).to(dy_ptr.dtype.element_ty), mask=ok)


def backward(dz: Tensor, y: Tensor) -> Tensor:
    """The gradient of y from ``dz``, the gradient of ``gelu(y)``, at memory speed.

    The library's kernel for this takes longer to compute than to read in 16 bits; in more it is exact to the last one.
    """
    if dz.dtype not in (torch.float16, torch.bfloat16) or not (dz.is_contiguous() and y.is_contiguous()):
        return torch.ops.aten.gelu_backward(dz, y)
    dy = empty(y.shape, y.dtype, y.device)
    launch(_backward_kernel, (-(-y.numel() // BLOCK),), dz, y, dy, y.numel(), BLOCK=BLOCK, num_warps=4)
    return dy
