"""The dense power of a diagonal plus low-rank matrix from its two factors: one launch forward, one backward.

Shapes: H heads, N state size; F and J (H, rows, N) in float64, or in float32 if the operators are rounded to 16 bits.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from statespan.ops._triton.launcher import empty, launch

COLUMNS = 32  # of the result per program


@triton.jit
def _square(ptr, rows, columns, N, real):
    """Part of a matrix with N columns."""
    return tl.load(ptr + rows[:, None] * N + columns[None, :], mask=real, other=0.0)


@triton.jit
def _add_product_kernel(
    G_ptr, F_ptr, J_ptr, rows, N, ROWS: tl.constexpr, Q: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Add F*J (the product of F transposed and J) to some columns of one head's G."""
    h = tl.program_id(0).to(tl.int64)
    q, r = tl.arange(0, Q), tl.arange(0, ROWS)
    j = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    F = _square(F_ptr + h * rows * N, r, q, N, (r < rows)[:, None] & (q < N)[None, :])
    J = _square(J_ptr + h * rows * N, r, j, N, (r < rows)[:, None] & (j < N)[None, :])
    inside = (q < N)[:, None] & (j < N)[None, :]
    at = G_ptr + h * N * N + q[:, None] * N + j[None, :]
    G = tl.load(at, mask=inside, other=0.0)
    G = tl.dot(tl.trans(F), J, G, input_precision=PRECISION, out_dtype=G.dtype)
    tl.store(at, G, mask=inside)


@triton.jit
def _gradients_kernel(
    dG_ptr, F_ptr, J_ptr, dF_ptr, dJ_ptr, rows, N,
    ROWS: tl.constexpr, Q: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Some columns of one head's dF = J dGᵀ and dJ = F dG."""
    h = tl.program_id(0).to(tl.int64)
    q, r = tl.arange(0, Q), tl.arange(0, ROWS)
    j = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    known, inside = (r < rows)[:, None], (q < N)[:, None] & (j < N)[None, :]
    whole, at = known & (q < N)[None, :], r[:, None] * N + j[None, :]
    for turned in tl.static_range(2):
        x = _square((F_ptr if turned else J_ptr) + h * rows * N, r, q, N, whole)
        dG = tl.load(
            dG_ptr + h * N * N + (q[:, None] * N + j[None, :] if turned else j[None, :] * N + q[:, None]),
            mask=inside, other=0.0,
        ).to(x.dtype)  # fmt: skip
        out = tl.dot(x, dG, input_precision=PRECISION, out_dtype=x.dtype)
        to_ptr = dJ_ptr if turned else dF_ptr
        tl.store(to_ptr + h * rows * N + at, out.to(to_ptr.dtype.element_ty), mask=known & (j < N)[None, :])


def _constants(F: Tensor) -> dict[str, object]:
    _, rows, N = F.shape
    Q = max(16, triton.next_power_of_2(N))
    return {
        "ROWS": max(16, triton.next_power_of_2(rows)), "Q": Q, "COLUMNS": min(COLUMNS, Q),
        "PRECISION": "tf32x3" if F.dtype.itemsize == 4 else "ieee", "num_warps": 4,
    }  # fmt: skip


def add_product(G: Tensor, F: Tensor, J: Tensor) -> None:
    """Add the product of F transposed and J to G (H, N, N), in place."""
    (H, rows, N), constants = F.shape, _constants(F)
    grid = (H, -(-N // int(constants["COLUMNS"])))
    launch(_add_product_kernel, grid, G, F, J, rows, N, **constants)


def product_gradients(dG: Tensor, F: Tensor, J: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of F and J from that of their product, in its dtype, which those of the other lists have too."""
    (H, rows, N), constants = F.shape, _constants(F)
    dF, dJ = (empty(F.shape, dG.dtype, F.device) for _ in range(2))
    grid = (H, -(-N // int(constants["COLUMNS"])))
    launch(_gradients_kernel, grid, dG, F, J, dF, dJ, rows, N, **constants)
    return dF, dJ
