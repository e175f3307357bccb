"""Powers by doubling: the one idea behind the Vandermonde and the Krylov kernel.

To list ``1, x, x², …`` or ``b, Ab, A²b, …``, double the list as often as needed: the second half is the first half
times the next power. log₂ n matrix products replace n small ones, and the error stays that of n roundings.

An unstable mode (Re A > 0) grows without bound. Powers saturate far below the largest float64, so that they never
become infinite and then not a number; a kernel is cut off where float32 can still convolve with it.
"""

from __future__ import annotations

from math import exp

import torch
from torch import Tensor

SATURATION = exp(300.0)  # of powers; the product of two is still finite
CUTOFF = exp(60.0)  # of kernel values, about 1e26


def powers(x: Tensor, n: int) -> Tensor:
    """The powers ``x^0 … x^{n-1}`` of complex numbers (...), along a new last axis of n ≥ 1."""
    table = torch.ones_like(x)[..., None]
    base = x
    while table.shape[-1] < n:
        table = saturate(torch.cat([table, table * base[..., None]], -1))
        base = saturate(base * base)
    return table[..., :n]


def krylov(A: Tensor, b: Tensor, n: int) -> Tensor:
    """The n ≥ 1 Krylov columns ``b, A b, …, A^{n-1} b`` (..., N, n) of real A (..., N, N) and b (..., N)."""
    columns, power = b[..., None], A
    while (missing := n - columns.shape[-1]) > 0:
        more = power @ columns[..., :missing]
        columns = torch.cat([columns, saturate(more, -2)], -1)
        if columns.shape[-1] < n:
            power = saturate(power @ power, -2, -1)
    return columns


def matrix_power(A: Tensor, n: int) -> Tensor:
    """``A^n`` of real matrices (..., N, N) by repeated squaring; n ≥ 0."""
    result = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device).expand_as(A)
    while n:
        if n & 1:
            result = saturate(result @ A, -2, -1)
        n >>= 1
        if n:
            A = saturate(A @ A, -2, -1)
    return result


def block_length(length: int) -> int:
    """The smallest power of two that is at least √length: the side of the square that a kernel is computed as."""
    return 1 << ((max(length, 1) - 1).bit_length() + 1) // 2


def cut_off(kernel: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast a kernel to its final precision, with values clamped to ±e^60."""
    return kernel.clamp(-CUTOFF, CUTOFF).to(dtype)


def saturate(x: Tensor, *dims: int) -> Tensor:
    """Scale x down where it (or its largest entry along ``dims``) exceeds e^300."""
    with torch.no_grad():  # the derivative of |x| is not a number for the subnormal powers of strongly damped modes
        size = x.abs()
        factor = SATURATION / (size.amax(dims, keepdim=True) if dims else size).clamp(min=SATURATION)
    return x * factor
