"""The gradients of the operators, from what the programs of the backward pass leave."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def shares_kernel(
    shares_ptr, dT_ptr, dE_ptr, dO_ptr, dG_ptr, size_T, size_E, size_O, size_G, tiles, BLOCK: tl.constexpr
):  # fmt: skip
    """The sums over the tiles' shares of the gradients of T, E, O and G, which lie one behind the other in a share."""
    part, zero = tl.program_id(1), tl.program_id(0).to(tl.int64) * 0
    size, before, out_ptr = zero + size_T, zero, dT_ptr
    if part == 1:
        size, before, out_ptr = zero + size_E, zero + size_T, dE_ptr
    if part == 2:
        size, before, out_ptr = zero + size_O, zero + size_T + size_E, dO_ptr
    if part == 3:
        size, before, out_ptr = zero + size_G, zero + size_T + size_E + size_O, dG_ptr
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    share = shares_ptr + before + at
    total = tl.zeros((BLOCK,), shares_ptr.dtype.element_ty)
    for _ in range(tiles):
        total += tl.load(share, mask=at < size, other=0.0)
        share += zero + size_T + size_E + size_O + size_G
    tl.store(out_ptr + at, total, mask=at < size)


@triton.jit
def diagonals_kernel(dT_ptr, dK_ptr, C: tl.constexpr, BOTH: tl.constexpr):
    """The gradient of a kernel from that of its Toeplitz matrix: sums along the diagonals.

    With BOTH, the second half of dK is for the kernel that looks ahead, above the diagonal.
    """
    hk = tl.program_id(0).to(tl.int64)
    lag, i = tl.arange(0, C)[None, :], tl.arange(0, C)[:, None]  # neighbours of a row go to neighbouring sums
    at = dT_ptr + hk * C * C + i * C + i
    total = tl.sum(tl.load(at - lag, mask=i >= lag, other=0.0), 0)
    tl.store(dK_ptr + hk * C + tl.arange(0, C), total)
    if BOTH:
        total = tl.sum(tl.load(at + lag + 1, mask=i + lag + 1 < C, other=0.0), 0)
        tl.store(dK_ptr + (tl.num_programs(0) + hk) * C + tl.arange(0, C), total)
