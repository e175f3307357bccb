"""Sums the partial gradients of the programs of a backward pass, always in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from statespan.ops._triton.launcher import empty, is_traced, launch

TILE = 2048  # numbers that a program adds to its sums at a time


@triton.jit
def _shares_kernel(
    shares_ptr, a_ptr, b_ptr, c_ptr, d_ptr, size_a, size_b, size_c, size_d, shares,
    PARTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    part, zero = tl.program_id(1), tl.program_id(0).to(tl.int64) * 0
    size, before, out_ptr = zero + size_a, zero, a_ptr
    if PARTS > 1:
        if part == 1:
            size, before, out_ptr = zero + size_b, zero + size_a, b_ptr
    if PARTS > 2:
        if part == 2:
            size, before, out_ptr = zero + size_c, zero + size_a + size_b, c_ptr
    if PARTS > 3:
        if part == 3:
            size, before, out_ptr = zero + size_d, zero + size_a + size_b + size_c, d_ptr
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[None, :]
    width = zero + size_a + size_b + size_c + size_d
    total = tl.zeros((ROWS, BLOCK), shares_ptr.dtype.element_ty)
    for first in range(0, shares, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        total += tl.load(shares_ptr + row * width + before + at, mask=(row < shares) & (at < size), other=0.0)
    tl.store(out_ptr + at, tl.sum(total, 0)[None, :].to(out_ptr.dtype.element_ty), mask=at < size)


def sum_shares(shares: Tensor, out: Sequence[Tensor]) -> None:
    """Sum rows of shares, each the concatenation of up to four parts, into one tensor per part.

    Of many shares a program reads narrow columns, so that there are enough programs.
    """
    sizes = [x.numel() for x in out] + [0] * (4 - len(out))
    rows = min(256, triton.next_power_of_2(shares.shape[0]))
    block = TILE // rows
    launch(
        _shares_kernel, (-(-max(sizes) // block), len(out)),
        shares, *out, *[None] * (4 - len(out)), *sizes, shares.shape[0], PARTS=len(out), ROWS=rows, BLOCK=block,
        num_warps=4,
    )  # fmt: skip


class PartialSums:
    """Where programs write their shares of sums: side by side in one row each, which one kernel then adds.

    A single program writes the sums themselves. A compiler has to be told of each tensor that a kernel writes as a
    whole. Then the kernel has the rows and where each part starts, which :meth:`places` returns.

    Args:
        totals: The sums, contiguous.
        programs: How many programs have a share of each.
        is_split: Whether a kernel writes only part of one of the sums.
    """

    def __init__(self, totals: Sequence[Tensor], programs: int, *, is_split: bool = False) -> None:
        self.sizes = [x.numel() for x in totals]
        self.totals, self.first, self.size, self.programs = totals, totals, sum(self.sizes), programs
        self.is_joined = is_traced() and (programs > 1 or is_split)
        if programs > 1 or self.is_joined:
            self.rows = empty((programs, self.size), totals[0].dtype, totals[0].device)
        if programs > 1 and not self.is_joined:
            self.first = self.rows[0].split(self.sizes)

    def places(self) -> tuple[Any, ...]:
        """The rows, and where each part starts in one."""
        return self.rows, *(sum(self.sizes[:i]) for i in range(len(self.sizes)))

    def sum(self) -> Sequence[Tensor]:
        """The sums, once all programs have run."""
        if self.programs > 1:
            sum_shares(self.rows, self.totals)
        return self.rows.view(-1).split(self.sizes) if self.is_joined and self.programs == 1 else self.totals


@triton.jit
def diagonals_kernel(dT_ptr, dK_ptr, dD_ptr, C: tl.constexpr, BOTH: tl.constexpr, SKIP: tl.constexpr):
    """The gradient of a kernel from that of its Toeplitz matrix, by sums along the diagonals.

    With BOTH, the second half of dK is for the kernel that looks ahead, above the diagonal. SKIP also writes the
    gradient of a skip, which is part of the kernel's first value.
    """
    hk = tl.program_id(0).to(tl.int64)
    lag, i = tl.arange(0, C)[None, :], tl.arange(0, C)[:, None]  # neighbours of a row go to neighbouring sums
    at = dT_ptr + hk * C * C + i * C + i
    total = tl.sum(tl.load(at - lag, mask=i >= lag, other=0.0), 0)
    tl.store(dK_ptr + hk * C + tl.arange(0, C), total)
    if SKIP:
        own = tl.arange(0, C) * 0 + hk
        tl.store(dD_ptr + own, total.to(dD_ptr.dtype.element_ty), mask=tl.arange(0, C) == 0)
    if BOTH:
        total = tl.sum(tl.load(at + lag + 1, mask=i + lag + 1 < C, other=0.0), 0)
        tl.store(dK_ptr + (tl.num_programs(0) + hk) * C + tl.arange(0, C), total)
