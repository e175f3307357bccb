"""Powers by doubling: the one idea behind the Vandermonde and the Krylov kernel.

To list ``1, x, x², …`` or ``b, Ab, A²b, …``, double the list as often as needed: the second half is the first half
times the next power. log₂ n matrix products replace n small ones, and the error stays that of n roundings.
"""

from __future__ import annotations

from math import exp

import torch
from torch import Tensor

# |x^k| saturates here, so that an unstable mode (Re A > 0) gives large numbers rather than infinities and NaN.
SATURATION = exp(30.0)


def powers(x: Tensor, n: int) -> Tensor:
    """Powers of complex numbers.

    Args:
        x: Any shape (...), complex.
        n: How many, at least 1.

    Returns:
        ``x^0 … x^{n-1}``, shape (..., n), moduli saturated at e^30.
    """
    table = torch.ones_like(x)[..., None]
    base = x
    while table.shape[-1] < n:
        table = torch.cat([table, table * base[..., None]], -1)
        base = _saturate(base * base)
    return _saturate(table[..., :n])


def krylov(A: Tensor, b: Tensor, n: int) -> Tensor:
    """Krylov columns of real matrices.

    Args:
        A: (..., N, N).
        b: (..., N), broadcast against the batch of A.
        n: How many columns, at least 1.

    Returns:
        ``b, A b, …, A^{n-1} b``, shape (..., N, n).
    """
    columns, power = b[..., None], A
    while columns.shape[-1] < n:
        missing = n - columns.shape[-1]
        columns = torch.cat([columns, power @ columns[..., :missing]], -1)
        if columns.shape[-1] < n:
            power = power @ power
    return columns


def block_length(length: int) -> int:
    """The power of two next above √length: the side of the square that a kernel is computed as."""
    return 1 << ((max(length, 1) - 1).bit_length() + 1) // 2


def _saturate(x: Tensor) -> Tensor:
    with torch.no_grad():  # the derivative of |x| is not a number for the subnormal powers of strongly damped modes
        factor = SATURATION / x.abs().clamp(min=SATURATION)
    return x * factor
