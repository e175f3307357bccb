"""Transposes (batch, length, heads) to (heads, batch, length) and back, with a cast, at the speed of a copy."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from statespan.ops._triton.launcher import empty, launch

TILE = 64
BLOCK = 2048


@triton.jit
def _transpose_kernel(x_ptr, out_ptr, rows, columns, sx_b, so_b, sx_r, so_c, tiles, TILE: tl.constexpr):
    """out[b, column, row] = x[b, row, column]; both contiguous along their last axis."""
    b = (tl.program_id(0) // tiles).to(tl.int64)
    r = (tl.program_id(0) % tiles) * TILE + tl.arange(0, TILE)
    c = tl.program_id(1) * TILE + tl.arange(0, TILE)
    r, c = r.to(tl.int64), c.to(tl.int64)
    ok = (r < rows)[:, None] & (c < columns)[None, :]
    x = tl.load(x_ptr + b * sx_b + r[:, None] * sx_r + c[None, :], mask=ok, other=0.0)
    x = tl.trans(x.to(out_ptr.dtype.element_ty))
    tl.store(out_ptr + b * so_b + c[:, None] * so_c + r[None, :], x, mask=tl.trans(ok))


def lengthwise(u: Tensor, dtype: torch.dtype) -> Tensor:
    """Return u (H, B, L) with stride 1 along L, in this dtype."""
    H, B, L = u.shape
    if u.stride(2) == 1 or u.stride(0) != 1:
        return u.to(dtype) if u.stride(2) == 1 else u.to(dtype).contiguous()
    return lengthwise_into(empty((H, B, L), dtype, u.device), u)


def lengthwise_into(out: Tensor, u: Tensor) -> Tensor:
    """Copy u (H, B, L) with stride 1 along H into ``out``, contiguous; returns it."""
    H, B, L = u.shape
    if u.stride(0) != 1:
        return out.copy_(u)
    tiles = -(-L // TILE)
    launch(
        _transpose_kernel, (B * tiles, -(-H // TILE)),
        u, out, L, H, u.stride(1), out.stride(1), u.stride(2), out.stride(0), tiles, TILE=TILE, num_warps=8,
    )  # fmt: skip
    return out


@triton.jit
def _narrow_kernel(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < size, other=0.0)
    tl.store(out_ptr + at, x.to(out_ptr.dtype.element_ty), mask=at < size)


def narrowed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A contiguous copy of x in this dtype."""
    if not x.is_contiguous():
        return x.to(dtype, memory_format=torch.contiguous_format, copy=True)
    out = empty(x.shape, dtype, x.device)
    launch(_narrow_kernel, (-(-x.numel() // BLOCK),), x, out, x.numel(), BLOCK=BLOCK, num_warps=4)
    return out


def like(x: Tensor, model: Tensor) -> Tensor:
    """Return x (H, B, L), contiguous, in the memory order and dtype of ``model``."""
    if model.stride(2) == 1 or model.stride(0) != 1:
        return x.to(model.dtype)
    return featurewise(x, model.dtype)


def featurewise(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x (H, B, L), contiguous, as (B, L, H) in memory and in this dtype."""
    H, B, L = x.shape
    if x.stride(2) != 1:
        x = x.contiguous()
    out = empty((B, L, H), dtype, x.device)
    tiles = -(-H // TILE)
    launch(
        _transpose_kernel, (B * tiles, -(-L // TILE)),
        x, out, H, L, x.stride(1), out.stride(0), x.stride(0), out.stride(1), tiles, TILE=TILE, num_warps=8,
    )  # fmt: skip
    return out.permute(2, 0, 1)
