"""Layer normalization that writes its result in the memory order the engine reads, and reads its gradient from it.

A program loads a few positions of one sequence with all their features, so that it can transpose them on the chip: each
tensor is read or written once, contiguously in its own order.

Shapes: x and dx (B, L, D) with D the last axis in memory; y and dy (D, B, L) with L the last.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from statespan.ops._triton.launcher import Tensors, empty, launch, repeat
from statespan.ops._triton.sums import sum_shares
from statespan.ops.norm.before import Affine, SavedNorm

TILE = 8192  # numbers of a tile, or more where that is under eight positions
BACKWARD_TILE = 1024  # few, as three tensors and the next tile of each are held
SHARE = 1024  # of which a warp has so many
BLOCKS = 4  # tiles over which a backward program sums the gradients of the parameters


@triton.jit
def _norm_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, rstd_ptr, B, L, D, sx_b, sx_l, eps, tiles,
    ROWS: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    b = (tl.program_id(0) // tiles).to(tl.int64)
    l = tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS).to(tl.int64)  # noqa: E741
    j = tl.arange(0, P).to(tl.int64)
    here, real = l < L, (j < D)[None, :]
    ok = here[:, None] & real
    x = tl.load(x_ptr + b * sx_b + l[:, None] * sx_l + j[None, :], mask=ok, other=0.0).to(tl.float32)
    mean = tl.sum(x, 1) / D
    x = tl.where(real, x - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(x * x, 1) / D + eps)
    tl.store(mean_ptr + b * L + l, mean, mask=here)
    tl.store(rstd_ptr + b * L + l, rstd, mask=here)
    weight = tl.load(weight_ptr + j, mask=j < D, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + j, mask=j < D, other=0.0).to(tl.float32)
    y = x * rstd[:, None] * weight[None, :] + bias[None, :]
    tl.store(y_ptr + (j[None, :] * B + b) * L + l[:, None], y.to(y_ptr.dtype.element_ty), mask=ok)


@triton.jit
def _norm_backward_kernel(
    x_ptr, weight_ptr, mean_ptr, rstd_ptr, dy_ptr, residual_ptr, dx_ptr, share_ptr, B, L, D, sx_b, sx_l, groups,
    ROWS: tl.constexpr, P: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Compute dx plus the residual's gradient, and this program's share of the weight and bias gradients."""
    b, group = (tl.program_id(0) // groups).to(tl.int64), tl.program_id(0) % groups
    j = tl.arange(0, P).to(tl.int64)
    real = (j < D)[None, :]
    weight = tl.load(weight_ptr + j, mask=j < D, other=0.0).to(tl.float32)[None, :]
    l = group * BLOCKS * ROWS + tl.arange(0, ROWS).to(tl.int64)  # noqa: E741
    end = tl.minimum(L, (group + 1) * BLOCKS * ROWS)
    # dy before x: a compiler then turns it around, and works in the order of the other three
    dy_at = dy_ptr + (j[None, :] * B + b) * L + l[:, None]
    x_at = x_ptr + b * sx_b + l[:, None] * sx_l + j[None, :]
    at = b * L * D + l[:, None] * D + j[None, :]
    ok = (l < end)[:, None] & real
    next_dy, next_x = tl.load(dy_at, mask=ok, other=0.0), tl.load(x_at, mask=ok, other=0.0)
    next_residual = tl.load(residual_ptr + at, mask=ok, other=0.0)
    dweight, dbias = tl.zeros((ROWS, P), tl.float32), tl.zeros((P,), tl.float32)
    for block in range(BLOCKS):
        dy, x, residual = next_dy.to(tl.float32), next_x.to(tl.float32), next_residual.to(tl.float32)
        here, later = l < end, (l + ROWS < end)[:, None] & real
        # the next tile is on its way while this one is worked on
        next_dy = tl.load(dy_at + (block + 1) * ROWS, mask=later, other=0.0)
        next_x = tl.load(x_at + (block + 1) * ROWS * sx_l, mask=later, other=0.0)
        next_residual = tl.load(residual_ptr + at + (block + 1) * ROWS * D, mask=later, other=0.0)
        ok = here[:, None] & real
        mean = tl.load(mean_ptr + b * L + l, mask=here, other=0.0)
        rstd = tl.load(rstd_ptr + b * L + l, mask=here, other=0.0)
        x = tl.where(ok, (x - mean[:, None]) * rstd[:, None], 0.0)
        dweight += dy * x
        dbias += tl.sum(dy, 0)
        dy = dy * weight
        along, level = tl.sum(dy * x, 1) / D, tl.sum(dy, 1) / D
        dx = (dy - level[:, None] - x * along[:, None]) * rstd[:, None] + residual
        tl.store(dx_ptr + at + block * ROWS * D, dx.to(dx_ptr.dtype.element_ty), mask=ok)
        l += ROWS  # noqa: E741
    share = share_ptr + tl.program_id(0).to(tl.int64) * 2 * D + j
    tl.store(share, tl.sum(dweight, 0), mask=j < D)
    tl.store(share + D, dbias, mask=j < D)


def tile_of(D: int, size: int) -> dict[str, int]:
    """Positions and (padded) features of a tile of about ``size`` numbers, and its number of warps."""
    P = max(16, triton.next_power_of_2(D))
    rows = min(64, max(8, size // P))
    return {"P": P, "ROWS": rows, "num_warps": max(1, rows * P // SHARE)}


def forward(x: Tensor, affine: Affine, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return y in this dtype, and the mean and the inverse deviation of each position (B, L)."""
    weight, bias, eps = affine
    return repeat(_forward, (x, weight, bias), (eps, dtype))  # type: ignore[return-value]


def _forward(tensors: Tensors, options: tuple[float, torch.dtype]) -> Tensors:
    (x, weight, bias), (eps, dtype) = tensors, options
    assert x is not None
    B, L, D = x.shape
    y = empty((D, B, L), dtype, x.device)
    mean, rstd = (empty((B, L), torch.float32, x.device) for _ in range(2))
    tile = tile_of(D, TILE)
    tiles = -(-L // tile["ROWS"])
    launch(
        _norm_kernel, (B * tiles,),
        x, weight, bias, y, mean, rstd, B, L, D, x.stride(0), x.stride(1), eps, tiles, **tile,
    )  # fmt: skip
    return y, mean, rstd


def backward(saved: SavedNorm, dy: Tensor, residual: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, with ``residual`` (B, L, D) added, of the weight and of the bias; all but x contiguous."""
    return repeat(_backward, (*saved, dy, residual), None)  # type: ignore[return-value]


def _backward(tensors: Tensors, _: None) -> Tensors:
    x, weight, mean, rstd, dy, residual = tensors
    assert x is not None
    assert weight is not None
    B, L, D = x.shape
    dx = empty((B, L, D), x.dtype, x.device)
    tile = tile_of(D, BACKWARD_TILE)
    groups = -(-L // (tile["ROWS"] * BLOCKS))
    shares = empty((B * groups, 2 * D), torch.float32, x.device)
    launch(
        _norm_backward_kernel, (B * groups,),
        x, weight, mean, rstd, dy, residual, dx, shares, B, L, D, x.stride(0), x.stride(1), groups,
        BLOCKS=BLOCKS, **tile,
    )  # fmt: skip
    dweight, dbias = (empty(weight.shape, weight.dtype, x.device) for _ in range(2))
    sum_shares(shares, [dweight, dbias])
    return dx, dweight, dbias
