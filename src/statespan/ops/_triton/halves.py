"""Float32 matrix products by float16 ones, which tensor cores compute many times as fast.

A number times its block's scale, a power of two, is the sum of two float16 numbers: ``hi`` has its first 11 significant
bits, ``lo`` the next 11. A product of two such sums has four parts. ``lo lo`` is below 2^-22 of the whole and is left
out; the other three are products of the same tiles. Tensor cores truncate when they accumulate, an error that grows
with the number of terms. So every sum is short, and is then added to an accumulator in float32 with rounding. The
result has a smaller error than a plain float32 product, which adds term by term.

The scale brings the peak of a block of 128 × 128 numbers close to float16's largest. Numbers down to 2^-18 of the peak
keep all 22 bits; smaller ones have an error below 2^-40 of the peak. Numbers that are not finite do not count for the
scale, and their products are NaN.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 128


class Halves(NamedTuple):
    """A float32 matrix as two planes, padded with zeros to whole blocks.

    Shapes: ``planes`` (2, rows, columns) in float16; ``inverse`` (rows / 128, columns / 128), the inverse scales.
    """

    planes: Tensor
    inverse: Tensor


def padded(size: int) -> int:
    """The next multiple of a block."""
    return -(-size // BLOCK) * BLOCK


def empty_halves(rows: int, columns: int, device: torch.device) -> Halves:
    """Room for the planes of a matrix of this size, not filled."""
    rows, columns = padded(rows), padded(columns)
    planes = torch.empty(2, rows, columns, dtype=torch.float16, device=device)
    return Halves(planes, torch.empty(rows // BLOCK, columns // BLOCK, device=device))


def split(x: Tensor, gated: bool = False) -> Halves:
    """Split x (rows, columns), contiguous; ``gated`` takes rows of its first and its second half in turn."""
    (rows, columns), halves = x.shape, empty_halves(*x.shape, x.device)
    _split_kernel[halves.inverse.shape[::-1]](
        x, *halves, rows, columns, *halves.planes.shape[1:], GATED=gated, BLOCK=BLOCK, num_warps=8
    )
    return halves


@triton.jit
def _split_kernel(
    x_ptr, planes_ptr, inverse_ptr, rows, columns, padded_rows, padded_columns,
    GATED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Split a block."""
    r = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[None, :]
    source = original_row(r, rows, GATED).to(tl.int64)[:, None]
    x = tl.load(x_ptr + source * columns + c, mask=(r < rows)[:, None] & (c < columns), other=0.0)
    at = planes_ptr + r.to(tl.int64)[:, None] * padded_columns + c
    store_halves(x, at, tl.cast(padded_rows, tl.int64) * padded_columns,
                 inverse_ptr + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0))  # fmt: skip


@triton.jit
def original_row(r, rows, GATED: tl.constexpr):
    """The row of a weight that is stored as row r: with GATED a row of its first half, then one of its second."""
    if GATED:
        r = (r % 2) * (rows // 2) + r // 2
    return r


@triton.jit
def store_halves(x, at, plane, inverse_ptr):
    """Split a block x and store it at ``at``, the second plane ``plane`` numbers behind the first."""
    size = tl.abs(x)
    peak = tl.max(tl.max(tl.where(size < float("inf"), size, 0.0), 1), 0)
    # the scale is 2^(14 - e) for a peak in [2^e, 2^(e+1)): its biased exponent, kept inside float32's range
    exponent = tl.minimum(tl.maximum((peak.to(tl.int32, bitcast=True) >> 23) & 255, 27), 254)
    tl.store(inverse_ptr, ((exponent - 14) << 23).to(tl.float32, bitcast=True))
    x = x * ((268 - exponent) << 23).to(tl.float32, bitcast=True)
    hi = x.to(tl.float16)
    tl.store(at, hi)
    tl.store(at + plane, (x - hi.to(tl.float32)).to(tl.float16))


@triton.jit
def load_tile(planes_ptr, row, column, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Load a tile of a plane, or of the one behind it, whose rows follow those of the first."""
    r, c = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    return tl.load(planes_ptr + tl.cast(row, tl.int64) * columns + column + (r * columns + c))


@triton.jit
def add_product(total, a_hi, a_lo, b_hi, b_lo, inverse):
    """Add the product of two split tiles, the small parts first, times the inverse of both scales."""
    product = tl.dot(a_lo, b_hi)
    product = tl.dot(a_hi, b_lo, product)
    product = tl.dot(a_hi, b_hi, product)
    return total + product * inverse
