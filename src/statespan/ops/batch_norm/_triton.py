"""Batch normalization in training over real positions only: two passes forward and two backward.

A program has some positions of one sequence with all their features. What it finds of the mean and the variance is
merged with what the others found; no sum of squares is ever made, so that a far mean costs no digits.

Shapes: x and dx (B, L, D) with D the last axis in memory; y and dy (B, L, D), or turned (D, B, L); lengths (B,).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from statespan.ops._triton.launcher import Tensors, empty, launch, repeat
from statespan.ops._triton.sums import sum_shares
from statespan.ops.batch_norm.operator import Norm, OutputLayout, SavedBatchNorm
from statespan.ops.norm._triton.before import tile_of

TILE = 4096  # numbers of a tile, in both directions
BLOCKS = 8  # tiles over which a program sums


@triton.jit
def _end(lengths_ptr, b, L, PADDED: tl.constexpr):
    """The first position of a sequence that is not real."""
    end = b * 0 + L
    if PADDED:
        end = tl.load(lengths_ptr + b).to(tl.int64)
    return end


@triton.jit
def _place(b, l, j, B, L, D, TURNED: tl.constexpr):  # noqa: E741
    """The addresses of elements of y."""
    if TURNED:
        return (j[None, :] * B + b) * L + l[:, None]
    return (b * L + l[:, None]) * D + j[None, :]


@triton.jit
def _moments_kernel(
    x_ptr, lengths_ptr, share_ptr, count_ptr, L, D, sx_b, sx_l, groups,
    PADDED: tl.constexpr, ROWS: tl.constexpr, P: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """The count, mean and sum of squared deviations of this program's positions."""
    b, group = (tl.program_id(0) // groups).to(tl.int64), tl.program_id(0) % groups
    j = tl.arange(0, P).to(tl.int64)
    end = _end(lengths_ptr, b, L, PADDED)
    count, mean, squares = 0.0, tl.zeros((P,), tl.float32), tl.zeros((P,), tl.float32)
    for block in range(BLOCKS):
        l = (group * BLOCKS + block) * ROWS + tl.arange(0, ROWS).to(tl.int64)  # noqa: E741
        ok = (l < end)[:, None] & (j < D)[None, :]
        x = tl.load(x_ptr + b * sx_b + l[:, None] * sx_l + j[None, :], mask=ok, other=0.0).to(tl.float32)
        more = tl.sum((l < end).to(tl.float32), 0)
        here = tl.sum(x, 0) / tl.maximum(more, 1.0)
        x = tl.where(ok, x - here[None, :], 0.0)
        both = tl.maximum(count + more, 1.0)
        apart = here - mean
        squares += tl.sum(x * x, 0) + apart * apart * (count * more / both)
        mean += apart * (more / both)
        count += more
    share = share_ptr + tl.program_id(0).to(tl.int64) * 2 * D + j
    tl.store(share, mean, mask=j < D)
    tl.store(share + D, squares, mask=j < D)
    tl.store(count_ptr + tl.program_id(0), count)


@triton.jit
def _merge_kernel(
    share_ptr, count_ptr, running_mean_ptr, running_var_ptr, mean_ptr, rstd_ptr, total_ptr, moved_mean_ptr,
    moved_var_ptr, shares, D, momentum, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Mean and inverse deviation over all programs, the number of positions, and the running statistics moved."""
    j = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    known = j < D
    near = tl.load(share_ptr + j, mask=known, other=0.0)  # one of the means: the others differ little from it
    counts, sums = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS, BLOCK), tl.float32)
    for first in range(0, shares, ROWS):
        row = first + tl.arange(0, ROWS).to(tl.int64)
        ok = (row < shares)[:, None] & known[None, :]
        count = tl.load(count_ptr + row, mask=row < shares, other=0.0)
        mean = tl.load(share_ptr + row[:, None] * 2 * D + j[None, :], mask=ok, other=0.0)
        counts += count
        sums += count[:, None] * (mean - near[None, :])
    total = tl.sum(counts, 0)
    some = tl.maximum(total, 1.0)
    middle = near + tl.sum(sums, 0) / some
    squares = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in range(0, shares, ROWS):
        row = first + tl.arange(0, ROWS).to(tl.int64)
        ok = (row < shares)[:, None] & known[None, :]
        at = share_ptr + row[:, None] * 2 * D + j[None, :]
        count = tl.load(count_ptr + row, mask=row < shares, other=0.0)
        apart = tl.load(at, mask=ok, other=0.0) - middle[None, :]
        squares += tl.load(at + D, mask=ok, other=0.0) + count[:, None] * apart * apart
    squares_of_all = tl.sum(squares, 0)
    tl.store(mean_ptr + j, middle, mask=known)
    tl.store(rstd_ptr + j, 1.0 / tl.sqrt(squares_of_all / some + eps), mask=known)
    if tl.program_id(0) == 0:
        tl.store(total_ptr, total)
    share = tl.where(total > 1.0, momentum, 0.0)  # one position has no variance to learn from
    unbiased = squares_of_all / tl.maximum(total - 1.0, 1.0)
    old_mean = tl.load(running_mean_ptr + j, mask=known, other=0.0).to(tl.float32)
    old_var = tl.load(running_var_ptr + j, mask=known, other=0.0).to(tl.float32)
    kind = moved_mean_ptr.dtype.element_ty
    tl.store(moved_mean_ptr + j, (old_mean + share * (middle - old_mean)).to(kind), mask=known)
    tl.store(moved_var_ptr + j, (old_var + share * (unbiased - old_var)).to(kind), mask=known)


@triton.jit
def _normalize_kernel(
    x_ptr, lengths_ptr, weight_ptr, bias_ptr, mean_ptr, rstd_ptr, y_ptr, B, L, D, sx_b, sx_l, tiles,
    PADDED: tl.constexpr, TURNED: tl.constexpr, ROWS: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Write y, and 0 after the end of a sequence."""
    b = (tl.program_id(0) // tiles).to(tl.int64)
    l = tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS).to(tl.int64)  # noqa: E741
    j = tl.arange(0, P).to(tl.int64)
    known = j < D
    inside = (l < _end(lengths_ptr, b, L, PADDED))[:, None] & known[None, :]
    x = tl.load(x_ptr + b * sx_b + l[:, None] * sx_l + j[None, :], mask=inside, other=0.0).to(tl.float32)
    mean = tl.load(mean_ptr + j, mask=known, other=0.0)[None, :]
    scale = tl.load(rstd_ptr + j, mask=known, other=0.0) * tl.load(weight_ptr + j, mask=known, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + j, mask=known, other=0.0).to(tl.float32)[None, :]
    y = tl.where(inside, (x - mean) * scale[None, :] + bias, 0.0)
    at = _place(b, l, j, B, L, D, TURNED)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=(l < L)[:, None] & known[None, :])


@triton.jit
def _sums_kernel(
    x_ptr, lengths_ptr, mean_ptr, rstd_ptr, dy_ptr, share_ptr, B, L, D, sx_b, sx_l, groups,
    PADDED: tl.constexpr, TURNED: tl.constexpr, ROWS: tl.constexpr, P: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """This program's share of the weight's and the bias's gradients."""
    b, group = (tl.program_id(0) // groups).to(tl.int64), tl.program_id(0) % groups
    j = tl.arange(0, P).to(tl.int64)
    known = j < D
    end = _end(lengths_ptr, b, L, PADDED)
    mean = tl.load(mean_ptr + j, mask=known, other=0.0)[None, :]
    dweight, dbias = tl.zeros((ROWS, P), tl.float32), tl.zeros((ROWS, P), tl.float32)
    for block in range(BLOCKS):
        l = (group * BLOCKS + block) * ROWS + tl.arange(0, ROWS).to(tl.int64)  # noqa: E741
        ok = (l < end)[:, None] & known[None, :]
        # dy before x: a compiler then turns it around, and works in the order of the other
        dy = tl.load(dy_ptr + _place(b, l, j, B, L, D, TURNED), mask=ok, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + b * sx_b + l[:, None] * sx_l + j[None, :], mask=ok, other=0.0).to(tl.float32)
        dweight += dy * (x - mean)
        dbias += dy
    share = share_ptr + tl.program_id(0).to(tl.int64) * 2 * D + j
    tl.store(share, tl.sum(dweight, 0) * tl.load(rstd_ptr + j, mask=known, other=0.0), mask=known)
    tl.store(share + D, tl.sum(dbias, 0), mask=known)


@triton.jit
def _backward_kernel(
    x_ptr, lengths_ptr, weight_ptr, mean_ptr, rstd_ptr, count_ptr, dweight_ptr, dbias_ptr, dy_ptr, residual_ptr, dx_ptr,
    B, L, D, sx_b, sx_l, tiles,
    PADDED: tl.constexpr, TURNED: tl.constexpr, RESIDUAL: tl.constexpr, ROWS: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """dx, with the residual's gradient added."""
    b = (tl.program_id(0) // tiles).to(tl.int64)
    l = tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS).to(tl.int64)  # noqa: E741
    j = tl.arange(0, P).to(tl.int64)
    known = j < D
    here = (l < L)[:, None] & known[None, :]
    inside = (l < _end(lengths_ptr, b, L, PADDED))[:, None] & known[None, :]
    dy = tl.load(dy_ptr + _place(b, l, j, B, L, D, TURNED), mask=inside, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + b * sx_b + l[:, None] * sx_l + j[None, :], mask=inside, other=0.0).to(tl.float32)
    rstd = tl.load(rstd_ptr + j, mask=known, other=0.0)
    count = tl.maximum(tl.load(count_ptr), 1.0)
    along = tl.load(dweight_ptr + j, mask=known, other=0.0) * rstd / count
    level = tl.load(dbias_ptr + j, mask=known, other=0.0) / count
    scale = rstd * tl.load(weight_ptr + j, mask=known, other=0.0).to(tl.float32)
    mean = tl.load(mean_ptr + j, mask=known, other=0.0)
    dx = (dy - level[None, :] - (x - mean[None, :]) * along[None, :]) * scale[None, :]
    dx = tl.where(inside, dx, 0.0)
    at = (b * L + l[:, None]) * D + j[None, :]
    if RESIDUAL:
        dx += tl.load(residual_ptr + at, mask=here, other=0.0).to(tl.float32)
    tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=here)


def forward(
    x: Tensor, lengths: Tensor | None, norm: Norm, result: OutputLayout
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Y; mean and inverse deviation (D,); the number of positions (1,); the running statistics moved."""
    *parameters, momentum, eps = norm
    return repeat(_forward, (x, lengths, *parameters), (momentum, eps, *result))  # type: ignore[return-value]


def _forward(tensors: Tensors, options: tuple[float, float, bool, torch.dtype]) -> Tensors:
    (x, lengths, weight, bias, running_mean, running_var), (momentum, eps, turned, dtype) = tensors, options
    assert x is not None
    assert running_mean is not None
    B, L, D = x.shape
    y = empty((D, B, L) if turned else (B, L, D), dtype, x.device)
    mean, rstd = (empty((D,), torch.float32, x.device) for _ in range(2))
    total = empty((1,), torch.float32, x.device)
    moved_mean, moved_var = (empty(running_mean.shape, running_mean.dtype, x.device) for _ in range(2))
    given, padded = (x, False) if lengths is None else (lengths, True)
    tile = tile_of(D, TILE)
    groups = -(-L // (tile["ROWS"] * BLOCKS))
    shares = empty((B * groups, 2 * D), torch.float32, x.device)
    counts = empty((B * groups,), torch.float32, x.device)
    launch(
        _moments_kernel, (B * groups,),
        x, given, shares, counts, L, D, x.stride(0), x.stride(1), groups, PADDED=padded, BLOCKS=BLOCKS, **tile,
    )  # fmt: skip
    rows = min(256, triton.next_power_of_2(B * groups))
    block = max(8, min(64, 2048 // rows))
    launch(
        _merge_kernel, (-(-D // block),),
        shares, counts, running_mean, running_var, mean, rstd, total, moved_mean, moved_var, B * groups, D, momentum,
        eps, ROWS=rows, BLOCK=block, num_warps=4,
    )  # fmt: skip
    tiles = -(-L // tile["ROWS"])
    launch(
        _normalize_kernel, (B * tiles,),
        x, given, weight, bias, mean, rstd, y, B, L, D, x.stride(0), x.stride(1), tiles,
        PADDED=padded, TURNED=turned, **tile,
    )  # fmt: skip
    return y, mean, rstd, total, moved_mean, moved_var


def backward(saved: SavedBatchNorm, dy: Tensor, residual: Tensor | None, turned: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, with ``residual`` (B, L, D) added, of the weight and of the bias; all but x contiguous."""
    dx, dweight, dbias = repeat(_backward, (*saved, dy, residual), turned)
    assert dx is not None
    assert dweight is not None
    assert dbias is not None
    return dx, dweight.to(saved.weight.dtype), dbias.to(saved.weight.dtype)


def _backward(tensors: Tensors, turned: bool) -> Tensors:
    x, lengths, weight, mean, rstd, count, dy, residual = tensors
    assert x is not None
    assert mean is not None
    B, L, D = x.shape
    dx = empty((B, L, D), x.dtype, x.device)
    dweight, dbias = (empty(mean.shape, mean.dtype, x.device) for _ in range(2))
    given, padded = (x, False) if lengths is None else (lengths, True)
    tile = tile_of(D, TILE)
    groups = -(-L // (tile["ROWS"] * BLOCKS))
    shares = empty((B * groups, 2 * D), torch.float32, x.device)
    launch(
        _sums_kernel, (B * groups,),
        x, given, mean, rstd, dy, shares, B, L, D, x.stride(0), x.stride(1), groups,
        PADDED=padded, TURNED=turned, BLOCKS=BLOCKS, **tile,
    )  # fmt: skip
    sum_shares(shares, [dweight, dbias])
    tiles = -(-L // tile["ROWS"])
    launch(
        _backward_kernel, (B * tiles,),
        x, given, weight, mean, rstd, count, dweight, dbias, dy, x if residual is None else residual, dx,
        B, L, D, x.stride(0), x.stride(1), tiles,
        PADDED=padded, TURNED=turned, RESIDUAL=residual is not None, **tile,
    )  # fmt: skip
    return dx, dweight, dbias
