"""Layer normalization of a sum, as one pass forward and one backward: the sum is never in memory.

A program has some positions with all their features.

Shapes: x, z, y and their gradients (positions, D), contiguous; a scale of z's features (sequences, D).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from statespan.ops._triton.launcher import Tensors, empty, launch, repeat
from statespan.ops._triton.sums import sum_shares
from statespan.ops.norm._triton.before import BACKWARD_TILE, BLOCKS, TILE, tile_of
from statespan.ops.norm.after import ResidualSum, SavedSumNorm
from statespan.ops.norm.before import Affine


@triton.jit
def _sum(x, z, scale_ptr, r, j, L, D, ok, SCALED: tl.constexpr):
    """``x + scale z``, and the scale or 1."""
    z = z.to(tl.float32)
    scale = z * 0.0 + 1.0
    if SCALED:
        scale = tl.load(scale_ptr + (r // L)[:, None] * D + j[None, :], mask=ok, other=0.0).to(tl.float32)
    return x.to(tl.float32) + scale * z, scale


@triton.jit
def _forward_kernel(
    x_ptr, z_ptr, scale_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, rstd_ptr, rows, L, D, eps,
    SCALED: tl.constexpr, ROWS: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    j = tl.arange(0, P).to(tl.int64)
    here, real = r < rows, (j < D)[None, :]
    ok, at = here[:, None] & real, r[:, None] * D + j[None, :]
    x, z = tl.load(x_ptr + at, mask=ok, other=0.0), tl.load(z_ptr + at, mask=ok, other=0.0)
    s, _scale = _sum(x, z, scale_ptr, r, j, L, D, ok, SCALED)
    mean = tl.sum(s, 1) / D
    s = tl.where(real, s - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(s * s, 1) / D + eps)
    tl.store(mean_ptr + r, mean, mask=here)
    tl.store(rstd_ptr + r, rstd, mask=here)
    weight = tl.load(weight_ptr + j, mask=j < D, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + j, mask=j < D, other=0.0).to(tl.float32)
    y = s * rstd[:, None] * weight[None, :] + bias[None, :]
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=ok)


@triton.jit
def _backward_kernel(
    x_ptr, z_ptr, scale_ptr, weight_ptr, mean_ptr, rstd_ptr, dy_ptr, dx_ptr, dz_ptr, share_ptr, rows, L, D,
    SCALED: tl.constexpr, ROWS: tl.constexpr, P: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Compute dx, dz and this program's share of the weight's and the bias's gradients."""
    first = tl.program_id(0).to(tl.int64) * BLOCKS * ROWS
    j = tl.arange(0, P).to(tl.int64)
    real = (j < D)[None, :]
    weight = tl.load(weight_ptr + j, mask=j < D, other=0.0).to(tl.float32)[None, :]
    dweight, dbias = tl.zeros((ROWS, P), tl.float32), tl.zeros((ROWS, P), tl.float32)
    for block in range(BLOCKS):
        r = first + block * ROWS + tl.arange(0, ROWS)
        here = r < rows
        ok, at = here[:, None] & real, r[:, None] * D + j[None, :]
        x, z = tl.load(x_ptr + at, mask=ok, other=0.0), tl.load(z_ptr + at, mask=ok, other=0.0)
        dy = tl.load(dy_ptr + at, mask=ok, other=0.0).to(tl.float32)
        s, scale = _sum(x, z, scale_ptr, r, j, L, D, ok, SCALED)
        mean, rstd = tl.load(mean_ptr + r, mask=here, other=0.0), tl.load(rstd_ptr + r, mask=here, other=0.0)
        s = tl.where(ok, (s - mean[:, None]) * rstd[:, None], 0.0)
        dweight += dy * s
        dbias += dy
        dy = dy * weight
        along, level = tl.sum(dy * s, 1) / D, tl.sum(dy, 1) / D
        ds = (dy - level[:, None] - s * along[:, None]) * rstd[:, None]
        tl.store(dx_ptr + at, ds.to(dx_ptr.dtype.element_ty), mask=ok)
        tl.store(dz_ptr + at, (scale * ds).to(dz_ptr.dtype.element_ty), mask=ok)
    share = share_ptr + tl.program_id(0).to(tl.int64) * 2 * D + j
    tl.store(share, tl.sum(dweight, 0), mask=j < D)
    tl.store(share + D, tl.sum(dbias, 0), mask=j < D)


def forward(residual: ResidualSum, affine: Affine, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return y in this dtype, and the mean and the inverse deviation of each position (B, L)."""
    weight, bias, eps = affine
    return repeat(_forward, (*residual, weight, bias), (eps, dtype))  # type: ignore[return-value]


def _forward(tensors: Tensors, options: tuple[float, torch.dtype]) -> Tensors:
    (x, z, scale, weight, bias), (eps, dtype) = tensors, options
    assert x is not None
    B, L, D = x.shape
    y = empty((B, L, D), dtype, x.device)
    mean, rstd = (empty((B, L), torch.float32, x.device) for _ in range(2))
    tile = tile_of(D, TILE)
    launch(
        _forward_kernel, (-(-B * L // tile["ROWS"]),),
        x, z, x if scale is None else scale, weight, bias, y, mean, rstd, B * L, L, D, eps,
        SCALED=scale is not None, **tile,
    )  # fmt: skip
    return y, mean, rstd


def backward(saved: SavedSumNorm, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, z, the weight and the bias."""
    return repeat(_backward, (*saved, dy), None)  # type: ignore[return-value]


def _backward(tensors: Tensors, _: None) -> Tensors:
    x, z, scale, weight, mean, rstd, dy = tensors
    assert x is not None
    assert z is not None
    assert weight is not None
    B, L, D = x.shape
    dx, dz = empty(x.shape, x.dtype, x.device), empty(z.shape, z.dtype, z.device)
    tile = tile_of(D, BACKWARD_TILE)
    programs = -(-B * L // (tile["ROWS"] * BLOCKS))
    shares = empty((programs, 2 * D), torch.float32, x.device)
    launch(
        _backward_kernel, (programs,),
        x, z, x if scale is None else scale, weight, mean, rstd, dy, dx, dz, shares, B * L, L, D,
        SCALED=scale is not None, BLOCKS=BLOCKS, **tile,
    )  # fmt: skip
    dweight, dbias = (empty(weight.shape, weight.dtype, x.device) for _ in range(2))
    sum_shares(shares, [dweight, dbias])
    return dx, dz, dweight, dbias
