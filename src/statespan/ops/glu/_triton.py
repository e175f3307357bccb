"""The gated linear unit after a linear layer, including the layer's bias: one pass forward, one backward."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from statespan.ops._triton.launcher import Tensors, empty, launch, repeat
from statespan.ops._triton.sums import sum_shares

ROWS, COLUMNS = 16, 128
BACKWARD_ROWS, BLOCKS = 4, 16  # a backward program sums the bias gradient over so many blocks of so many rows


@triton.jit
def _glu_kernel(z_ptr, bias_ptr, out_ptr, rows, d, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    j = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    ok = (r < rows) & (j < d)
    a = tl.load(z_ptr + r * 2 * d + j, mask=ok, other=0.0).to(tl.float32)
    b = tl.load(z_ptr + r * 2 * d + d + j, mask=ok, other=0.0).to(tl.float32)
    a += tl.load(bias_ptr + j, mask=j < d, other=0.0).to(tl.float32)
    b += tl.load(bias_ptr + d + j, mask=j < d, other=0.0).to(tl.float32)
    out = a / (1.0 + tl.exp(-b))
    tl.store(out_ptr + r * d + j, out.to(out_ptr.dtype.element_ty), mask=ok)


@triton.jit
def _glu_backward_kernel(
    z_ptr, bias_ptr, dout_ptr, dz_ptr, share_ptr, rows, d,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Compute dz, and this program's share of the bias gradient."""
    j = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    bias_a = tl.load(bias_ptr + j, mask=j < d, other=0.0).to(tl.float32)
    bias_b = tl.load(bias_ptr + d + j, mask=j < d, other=0.0).to(tl.float32)
    sum_a, sum_b = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
    for block in range(BLOCKS):
        r = (tl.program_id(0).to(tl.int64) * BLOCKS + block) * ROWS + tl.arange(0, ROWS)[:, None]
        ok = (r < rows) & (j < d)
        a = tl.load(z_ptr + r * 2 * d + j, mask=ok, other=0.0).to(tl.float32) + bias_a
        b = tl.load(z_ptr + r * 2 * d + d + j, mask=ok, other=0.0).to(tl.float32) + bias_b
        g = tl.load(dout_ptr + r * d + j, mask=ok, other=0.0).to(tl.float32)
        gate = 1.0 / (1.0 + tl.exp(-b))
        da = g * gate
        db = da * a * (1.0 - gate)
        tl.store(dz_ptr + r * 2 * d + j, da.to(dz_ptr.dtype.element_ty), mask=ok)
        tl.store(dz_ptr + r * 2 * d + d + j, db.to(dz_ptr.dtype.element_ty), mask=ok)
        sum_a += da
        sum_b += db
    at = share_ptr + tl.program_id(0) * 2 * d + j
    tl.store(at, tl.sum(sum_a, 0)[None, :], mask=j < d)
    tl.store(at + d, tl.sum(sum_b, 0)[None, :], mask=j < d)


def forward(z: Tensor, bias: Tensor) -> Tensor:
    """``(z₁ + b₁) sigmoid(z₂ + b₂)`` of z (rows, 2d), contiguous."""
    (out,) = repeat(_forward, (z, bias), None)
    assert out is not None
    return out


def _forward(tensors: Tensors, _: None) -> Tensors:
    z, bias = tensors
    assert z is not None
    rows, d = z.shape[0], z.shape[1] // 2
    out = empty((rows, d), z.dtype, z.device)
    grid = (-(-rows // ROWS), -(-d // COLUMNS))
    launch(_glu_kernel, grid, z, bias, out, rows, d, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4)
    return (out,)


def backward(z: Tensor, bias: Tensor, dout: Tensor, *, in_place: bool = False) -> tuple[Tensor, Tensor]:
    """The gradients of z, which takes the place of z with ``in_place``, and of the bias."""
    dz, dbias = repeat(_backward, (z, bias, dout.contiguous()), in_place)
    assert dbias is not None
    return z if dz is None else dz, dbias


def _backward(tensors: Tensors, in_place: bool) -> Tensors:
    z, bias, dout = tensors
    assert z is not None
    assert bias is not None
    rows, d = z.shape[0], z.shape[1] // 2
    dz = z if in_place else empty(z.shape, z.dtype, z.device)
    programs = -(-rows // (BACKWARD_ROWS * BLOCKS))
    shares = empty((programs, 2 * d), torch.float32, z.device)
    launch(
        _glu_backward_kernel, (programs, -(-d // COLUMNS)),
        z, bias, dout, dz, shares, rows, d, ROWS=BACKWARD_ROWS, COLUMNS=COLUMNS, BLOCKS=BLOCKS, num_warps=2,
    )  # fmt: skip
    dbias = empty(bias.shape, bias.dtype, bias.device)
    sum_shares(shares, [dbias])
    return None if in_place else dz, dbias
