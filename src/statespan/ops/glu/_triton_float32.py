"""A linear map of float32 features, gated or not, by products of float16: one pass forward, three backward.

The rows of a gated weight are taken in turn, one of W₁ and one of W₂, so that a tile has both numbers of every gate.
z and its gradient have this order as well.

Shapes: P positions, F features in, N features out of the weight (2D if gated, to D outputs). y is (F, P).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from statespan.ops._triton.halves import (
    BLOCK,
    Halves,
    add_product,
    empty_halves,
    load_tile,
    original_row,
    padded,
    split,
    store_halves,
)
from statespan.ops._triton.sums import sum_shares

SHORT, LONG, DEPTH = 64, 128, 32
"""Rows and columns of a program's tile, and terms of each short sum: with three stages, three programs fit an SM."""
LAUNCH: dict[str, Any] = {
    "ROWS": SHORT, "COLUMNS": LONG, "DEPTH": DEPTH, "BLOCK": BLOCK,
    "num_warps": 4, "num_stages": 3, "maxnreg": 168,
}  # fmt: skip
PROGRAMS_PER_SM = 3
LEAST_POSITIONS, MOST_SHARES = 512, 16
"""Of the gradient of a weight: the positions of a share, and how many there are."""


@triton.jit
def _forward_kernel(
    y_ptr, y_inverse_ptr, w_ptr, w_inverse_ptr, bias_ptr, out_ptr, z_ptr, P, N, padded_p, padded_f, padded_n,
    GATED: tl.constexpr, SAVE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute z (P, N), the product and the bias, and the gated output (P, N / 2)."""
    tiles = padded_n // COLUMNS
    p0, n0 = (tl.program_id(0) // tiles) * ROWS, (tl.program_id(0) % tiles) * COLUMNS
    y_inverse_ptr += p0 // BLOCK
    w_inverse_ptr += n0 // BLOCK * (padded_f // BLOCK)
    z = tl.zeros((ROWS, COLUMNS), tl.float32)
    for f in range(0, padded_f, DEPTH):
        y_hi = load_tile(y_ptr, f, p0, padded_p, DEPTH, ROWS).T
        y_lo = load_tile(y_ptr, padded_f + f, p0, padded_p, DEPTH, ROWS).T
        w_hi = load_tile(w_ptr, n0, f, padded_f, COLUMNS, DEPTH).T
        w_lo = load_tile(w_ptr, padded_n + n0, f, padded_f, COLUMNS, DEPTH).T
        inverse = tl.load(y_inverse_ptr + f // BLOCK * (padded_p // BLOCK)) * tl.load(w_inverse_ptr + f // BLOCK)
        z = add_product(z, y_hi, y_lo, w_hi, w_lo, inverse)
    p, n = (p0 + tl.arange(0, ROWS)).to(tl.int64)[:, None], n0 + tl.arange(0, COLUMNS)
    z += tl.load(bias_ptr + original_row(n, N, GATED), mask=n < N, other=0.0)[None, :]
    if SAVE or not GATED:
        tl.store(z_ptr + p * N + n[None, :], z, mask=(p < P) & (n < N)[None, :])
    if GATED:
        a, b = tl.split(z.reshape(ROWS, COLUMNS // 2, 2))
        d = n0 // 2 + tl.arange(0, COLUMNS // 2)[None, :]
        tl.store(out_ptr + p * (N // 2) + d, a / (1.0 + tl.exp(-b)), mask=(p < P) & (d < N // 2))


@triton.jit
def _gate_backward_kernel(
    z_ptr, dout_ptr, dz_ptr, inverse_ptr, share_ptr, P, N, padded_p, padded_n,
    GATED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Split a block of dz (P, N), and sum it over positions: a share of the bias gradient."""
    p = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[:, None]
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    share_ptr += tl.program_id(0).to(tl.int64) * N
    ok = (p < P) & (n < N)
    if GATED:
        D = N // 2
        d = tl.program_id(1) * (BLOCK // 2) + tl.arange(0, BLOCK // 2)[None, :]
        g = tl.load(dout_ptr + p * D + d, mask=(p < P) & (d < D), other=0.0)
        z = tl.load(z_ptr + p * N + n, mask=ok, other=0.0)
        a, b = tl.split(z.reshape(BLOCK, BLOCK // 2, 2))
        gate = 1.0 / (1.0 + tl.exp(-b))
        da = g * gate
        db = da * a * (1.0 - gate)
        tl.store(share_ptr + d, tl.sum(da, 0)[None, :], mask=d < D)
        tl.store(share_ptr + D + d, tl.sum(db, 0)[None, :], mask=d < D)
        dz = tl.join(da, db).reshape(BLOCK, BLOCK)
    else:
        dz = tl.load(dout_ptr + p * N + n, mask=ok, other=0.0)
        tl.store(share_ptr + n, tl.sum(dz, 0)[None, :], mask=n < N)
    store_halves(dz, dz_ptr + p * padded_n + n, tl.cast(padded_p, tl.int64) * padded_n,
                 inverse_ptr + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1))  # fmt: skip


@triton.jit
def _input_gradient_kernel(
    w_ptr, w_inverse_ptr, dz_ptr, dz_inverse_ptr, dy_ptr, P, F, padded_p, padded_f, padded_n,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``dy = Wᵀ dzᵀ`` (F, P)."""
    tiles = padded_f // ROWS
    f0, p0 = (tl.program_id(0) % tiles) * ROWS, (tl.program_id(0) // tiles) * COLUMNS
    w_inverse_ptr += f0 // BLOCK
    dz_inverse_ptr += p0 // BLOCK * (padded_n // BLOCK)
    dy = tl.zeros((ROWS, COLUMNS), tl.float32)
    for n in range(0, padded_n, DEPTH):
        w_hi = load_tile(w_ptr, n, f0, padded_f, DEPTH, ROWS).T
        w_lo = load_tile(w_ptr, padded_n + n, f0, padded_f, DEPTH, ROWS).T
        dz_hi = load_tile(dz_ptr, p0, n, padded_n, COLUMNS, DEPTH).T
        dz_lo = load_tile(dz_ptr, padded_p + p0, n, padded_n, COLUMNS, DEPTH).T
        inverse = tl.load(w_inverse_ptr + n // BLOCK * (padded_f // BLOCK)) * tl.load(dz_inverse_ptr + n // BLOCK)
        dy = add_product(dy, w_hi, w_lo, dz_hi, dz_lo, inverse)
    f, p = (f0 + tl.arange(0, ROWS)).to(tl.int64)[:, None], p0 + tl.arange(0, COLUMNS)[None, :]
    tl.store(dy_ptr + f * P + p, dy, mask=(f < F) & (p < P))


@triton.jit
def _weight_gradient_kernel(
    dz_ptr, dz_inverse_ptr, y_ptr, y_inverse_ptr, share_ptr, N, F, padded_p, padded_f, padded_n, positions,
    GATED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A share of ``dW = dzᵀ yᵀ`` (N, F), over so many positions, a multiple of DEPTH."""
    across, tiles = padded_f // COLUMNS, padded_n // ROWS * (padded_f // COLUMNS)
    part, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    n0, f0 = (tile // across) * ROWS, (tile % across) * COLUMNS
    dz_inverse_ptr += n0 // BLOCK
    y_inverse_ptr += f0 // BLOCK * (padded_p // BLOCK)
    dw = tl.zeros((ROWS, COLUMNS), tl.float32)
    for p in range(part * positions, tl.minimum((part + 1) * positions, padded_p), DEPTH):
        dz_hi = load_tile(dz_ptr, p, n0, padded_n, DEPTH, ROWS).T
        dz_lo = load_tile(dz_ptr, padded_p + p, n0, padded_n, DEPTH, ROWS).T
        y_hi = load_tile(y_ptr, f0, p, padded_p, COLUMNS, DEPTH).T
        y_lo = load_tile(y_ptr, padded_f + f0, p, padded_p, COLUMNS, DEPTH).T
        inverse = tl.load(dz_inverse_ptr + p // BLOCK * (padded_n // BLOCK)) * tl.load(y_inverse_ptr + p // BLOCK)
        dw = add_product(dw, dz_hi, dz_lo, y_hi, y_lo, inverse)
    n, f = n0 + tl.arange(0, ROWS), f0 + tl.arange(0, COLUMNS)[None, :]
    row = original_row(n, N, GATED).to(tl.int64)[:, None]
    tl.store(share_ptr + part.to(tl.int64) * N * F + row * F + f, dw, mask=(n < N)[:, None] & (f < F))


def forward(y: Tensor, weight: Tensor, bias: Tensor, *, gated: bool, save: bool) -> tuple[Tensor, Tensor | None]:
    """Return the output (P, D), and for ``save`` z (P, 2D) of a gated one."""
    P, N = y.shape[1], weight.shape[0]
    ys, ws = split(y), split(weight, gated)
    padded_n, padded_f = ws.planes.shape[1:]
    out = y.new_empty(P, N // 2 if gated else N)
    z = y.new_empty(P, N) if gated and save else None
    _forward_kernel[(padded(P) // SHORT * (padded_n // LONG),)](
        ys.planes, ys.inverse, ws.planes, ws.inverse, bias, out, out if z is None else z,
        P, N, padded(P), padded_f, padded_n, GATED=gated, SAVE=z is not None, **LAUNCH,
    )  # fmt: skip
    return out, z


def backward(y: Tensor, weight: Tensor, z: Tensor | None, dout: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of y (F, P), the weight and the bias; z is there if the map is gated."""
    (F, P), N, gated = y.shape, weight.shape[0], z is not None
    dz = empty_halves(P, N, y.device)
    rows, columns = dz.inverse.shape
    shares, dbias = y.new_empty(rows, N), y.new_empty(N)
    _gate_backward_kernel[(rows, columns)](
        dout if z is None else z, dout.contiguous(), *dz, shares, P, N, *dz.planes.shape[1:],
        GATED=gated, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    sum_shares(shares, [dbias])
    dweight = _weight_gradient(dz, split(y), (N, F), gated)  # first, so that y's planes are gone before dy is there
    ws, dy = split(weight, gated), torch.empty_like(y)
    padded_p, padded_f, padded_n = padded(P), padded(F), padded(N)
    _input_gradient_kernel[(padded_f // SHORT * (padded_p // LONG),)](
        ws.planes, ws.inverse, dz.planes, dz.inverse, dy, P, F, padded_p, padded_f, padded_n, **LAUNCH
    )
    return dy, dweight, dbias


def _weight_gradient(dz: Halves, y: Halves, shape: tuple[int, int], gated: bool) -> Tensor:
    padded_p, (padded_f, padded_n) = y.planes.shape[2], (x.planes.shape[i] for x, i in ((y, 1), (dz, 2)))
    tiles = padded_n // SHORT * (padded_f // LONG)
    positions = _positions_per_share(padded_p, tiles, _programs(dz.planes.device))
    parts = -(-padded_p // positions)
    shares = torch.empty(parts, *shape, device=dz.planes.device)
    _weight_gradient_kernel[(tiles * parts,)](
        dz.planes, dz.inverse, y.planes, y.inverse, shares, *shape, padded_p, padded_f, padded_n, positions,
        GATED=gated, **LAUNCH,
    )  # fmt: skip
    if parts == 1:
        return shares.view(shape)
    dw = torch.empty(shape, device=shares.device)
    sum_shares(shares, [dw])
    return dw


def _positions_per_share(positions: int, tiles: int, programs: int) -> int:
    """Cut the positions so that the programs of all tiles fill the GPU a whole number of times."""
    most = max(1, min(MOST_SHARES, positions // LEAST_POSITIONS))
    parts = min(range(1, most + 1), key=lambda parts: -(-tiles * parts // programs) / parts)
    return -(-positions // DEPTH // parts) * DEPTH


@cache
def _programs(device: torch.device) -> int:
    """How many programs run on this device at a time."""
    if device.type != "cuda":
        return PROGRAMS_PER_SM
    return PROGRAMS_PER_SM * torch.cuda.get_device_properties(device).multi_processor_count
