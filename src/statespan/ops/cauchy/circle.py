"""The nodes at which the Triton kernels evaluate the generating function."""

from __future__ import annotations

import torch

from statespan.ops.ssm.fftconv import fast_length


def choose_circle(length: int, dtype: torch.dtype) -> tuple[int, float]:
    """The number n of nodes, and x of the circle's radius ρ = exp(-x/length).

    n nodes cannot tell K_l from ``K_l + ρ^n K_{l+n}``. The S4 paper has n = L and ρ = 1 and removes the second term
    from C, as ``C (I - Ā^L)``. Here ρ^n makes it too small to matter, and no power of Ā is needed. Dividing by ρ^l
    multiplies rounding errors by up to e^x. As ``|C Ā^l B̄| ≤ ‖C‖ ‖B̄‖`` for all l (Re Λ ≤ 0, and -P Pᴴ only damps), the
    second term is below 3e-10 ‖C‖ ‖B̄‖ for float32, a two-hundredth of what rounding C to float32 changes, and below
    2e-14 ‖C‖ ‖B̄‖ for float64.

    Example:
        >>> choose_circle(1024, torch.float32), choose_circle(1024, torch.float64)
        ((2048, 11.0), (8192, 4.0))
    """
    times, x = (2, 11.0) if dtype == torch.float32 else (8, 4.0)
    return fast_length(times * length), x
