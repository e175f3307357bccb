"""Samples from softmaxes without writing their scores: sums over blocks of words, then the words of one block.

A part is a table of words (V, K) with a bias (V,); a row of z (B, K) scores each of them. `sums_kernel` multiplies a
tile of rows by a tile of words and keeps, for each block of words, the largest score and the sum of the exponentials:
1/64 of the scores. `fold_kernel` sums these over a part. `enter_kernel` then computes the probability of each part for
each row, and chooses the part in which the row's random number falls; `inside_kernel` continues with the block and the
word, for which it recomputes the scores of that block.

Scores have the dtype FT: float32, or float64 if the tables have it; everything after the sums is float64. Tiles and
code do not depend on the batch, so a row gets the same bits alone and among a thousand. Offsets are 64-bit.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from statespan.ops.memory import shared_memory
from statespan.ops.ssm.tiles import LARGE, SMALL

BLOCK = 128
"""Words whose scores are summed up."""
ROWS = 32
"""Rows that a program of `enter_kernel` takes."""
LOG2E = tl.constexpr(1.4426950408889634)  # a GPU has 2^x: e^x is it with a test for subnormal numbers


@triton.jit(do_not_specialize=["rows", "blocks"])
def sums_kernel(
    z_ptr, table_ptr, bias_ptr, inverse_ptr, most_ptr, sum_ptr, power_ptr, rows, words, K, blocks,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr, HOT: tl.constexpr,
    FT: tl.constexpr,
):  # fmt: skip
    """The largest score of each block (rows, blocks), Σ exp(s - most), and if HOT Σ exp((s - most) / temperature)."""
    m = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    n = tl.program_id(1).to(tl.int64) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    # beyond the end the last row and word again, which needs no mask
    z_at = z_ptr + tl.minimum(m, rows - 1)[:, None] * K + k[None, :]
    table_at = table_ptr + tl.minimum(n, words - 1)[None, :] * K + k[:, None]
    scores = tl.zeros((BM, BN), FT)
    for done in range(0, K, BK):
        if EVEN:
            z = tl.load(z_at)
            table = tl.load(table_at)
        else:
            z = tl.load(z_at, mask=k[None, :] < K - done, other=0.0)
            table = tl.load(table_at, mask=k[:, None] < K - done, other=0.0)
        scores = tl.dot(z, table, scores, input_precision="ieee", out_dtype=FT)
        z_at += BK
        table_at += BK
    bias = tl.load(bias_ptr + n, mask=n < words, other=-float("inf")).to(FT)
    scores = tl.reshape(scores + bias[None, :], (BM, BN // BLOCK, BLOCK))
    most = tl.max(scores, 2)  # (BM, BN // BLOCK)
    scores -= tl.where(most == -float("inf"), 0.0, most)[:, :, None]
    b = tl.program_id(1) * (BN // BLOCK) + tl.arange(0, BN // BLOCK)
    at = m[:, None] * blocks + b[None, :]
    ok = (m < rows)[:, None] & (b < blocks)[None, :]
    tl.store(most_ptr + at, most, mask=ok)
    tl.store(sum_ptr + at, tl.sum(tl.exp2(scores * LOG2E), 2), mask=ok)
    if HOT:
        inverse = (tl.load(inverse_ptr) * LOG2E).to(FT)
        tl.store(power_ptr + at, tl.sum(tl.exp2(scores * inverse), 2), mask=ok)


@triton.jit(do_not_specialize=["blocks", "part"])
def fold_kernel(
    most_ptr, sum_ptr, power_ptr, inverse_ptr, fold_ptr, blocks, part, PARTS: tl.constexpr, P: tl.constexpr,
    HOT: tl.constexpr,
):  # fmt: skip
    """For each part its largest score, log Σ exp(s - most), log Σ exp((s - most) / temperature): (B, 3, PARTS)."""
    row = tl.program_id(0).to(tl.int64)
    b = tl.arange(0, P)
    ok = b < blocks
    most = tl.load(most_ptr + row * blocks + b, mask=ok, other=-float("inf")).to(tl.float64)
    top = tl.max(most, 0)
    top = tl.where(top == -float("inf"), 0.0, top)
    most -= top
    sums = tl.load(sum_ptr + row * blocks + b, mask=ok, other=0.0).to(tl.float64)
    total = tl.log(tl.sum(sums * tl.exp(most), 0))
    power = total
    if HOT:
        sums = tl.load(power_ptr + row * blocks + b, mask=ok, other=0.0).to(tl.float64)
        power = tl.log(tl.sum(sums * tl.exp(most * tl.load(inverse_ptr)), 0))
    at = fold_ptr + row * 3 * PARTS + part
    tl.store(at, top)
    tl.store(at + PARTS, total)
    tl.store(at + 2 * PARTS, power)


@triton.jit
def _find(weights, share, index, N: tl.constexpr, BITS: tl.constexpr):
    """The first entry of each row whose cumulative sum exceeds this share of the total, and the position within it.

    By bisection: sums of fewer entries are never larger, even rounded, so an entry of weight 0 is never found. Weights
    are (R, N) with N = 2^BITS, shares (R, 1), the index (1, N). Where nothing is a number, the first.
    """
    target = share * tl.sum(weights, 1)[:, None]
    last = tl.max(tl.where(weights > 0.0, index, 0), 1)[:, None]
    found = last * 0
    for bit in tl.static_range(BITS):
        further = found + (N >> (bit + 1))
        before = tl.sum(tl.where(index < further, weights, 0.0), 1)[:, None]
        found = tl.where(before <= target, further, found)
    found = tl.minimum(found, last)
    before = tl.sum(tl.where(index < found, weights, 0.0), 1)[:, None]
    weight = tl.sum(tl.where(index == found, weights, 0.0), 1)[:, None]
    return found, tl.minimum(tl.maximum((target - before) / weight, 0.0), 1.0)


@triton.jit(do_not_specialize=["rows"])
def enter_kernel(
    cluster_ptr, uniform_ptr, inverse_ptr, fold_ptr, part_ptr, share_ptr, norm_ptr, rows,
    PARTS: tl.constexpr, E: tl.constexpr, E_BITS: tl.constexpr, R: tl.constexpr, HOT: tl.constexpr,
):  # fmt: skip
    """The part chosen for each row, the share of it before the choice, and the log-normalizer of its scores."""
    r = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    e = tl.arange(0, E)[None, :]
    row = r < rows
    ok = row & (e < PARTS)
    at = fold_ptr + r * 3 * PARTS + e
    top = tl.load(at, mask=ok, other=0.0)
    total = tl.load(at + PARTS, mask=ok, other=0.0)
    power = tl.load(at + 2 * PARTS, mask=ok, other=0.0)
    cluster = tl.load(cluster_ptr + r * (PARTS - 1) + e - 1, mask=ok & (e > 0), other=0.0).to(tl.float64)
    # beside the words of the first part each cluster has a score of its own
    beside = tl.where(e == 0, top + total, tl.where(e < PARTS, cluster, -float("inf")))
    largest = tl.max(beside, 1)[:, None]
    norm = largest + tl.log(tl.sum(tl.exp(beside - largest), 1))[:, None]
    # temperature makes a cluster likelier or not as a whole: by the sum of its tokens' powers
    exponent = tl.where(e == 0, top, cluster - total)
    if HOT:
        exponent *= tl.load(inverse_ptr)
    exponent = tl.where((e < PARTS) & (total > -float("inf")), exponent + power, -float("inf"))
    weights = tl.exp(exponent - tl.max(exponent, 1)[:, None])
    part, share = _find(weights, tl.load(uniform_ptr + r, mask=row, other=0.0).to(tl.float64), e, E, E_BITS)
    inside = tl.where((e == part) & (e > 0), top + total - cluster, 0.0)
    tl.store(part_ptr + r, part, mask=row)
    tl.store(share_ptr + r, share, mask=row)
    tl.store(norm_ptr + r, norm + tl.sum(inside, 1)[:, None], mask=row)


@triton.jit(do_not_specialize=["words", "blocks", "first", "part"])
def inside_kernel(
    z_ptr, table_ptr, bias_ptr, inverse_ptr, fold_ptr, most_ptr, sum_ptr, part_ptr, share_ptr, norm_ptr, token_ptr,
    log_prob_ptr, words, K, blocks, first, part,
    PARTS: tl.constexpr, P: tl.constexpr, P_BITS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_BITS: tl.constexpr,
    BK: tl.constexpr, HOT: tl.constexpr, FT: tl.constexpr,
):  # fmt: skip
    """The token and its log-probability for rows whose choice lies in this part, whose first token is ``first``."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(part_ptr + row) == part:
        b = tl.arange(0, P)[None, :]
        most = tl.load(most_ptr + row * blocks + b, mask=b < blocks, other=-float("inf")).to(tl.float64)
        sums = tl.load(sum_ptr + row * blocks + b, mask=b < blocks, other=0.0).to(tl.float64)
        most -= tl.load(fold_ptr + row * 3 * PARTS + part)
        if HOT:
            most *= tl.load(inverse_ptr)
        one = tl.zeros((1, 1), tl.float64)
        block, share = _find(sums * tl.exp(most), one + tl.load(share_ptr + row), b, P, P_BITS)
        n = block * BLOCK + tl.arange(0, BLOCK)[None, :]  # (1, BLOCK)
        k = tl.arange(0, BK)[:, None]
        table_at = table_ptr + n.to(tl.int64) * K + k
        products = tl.zeros((BK, BLOCK), FT)
        for done in range(0, K, BK):
            z = tl.load(z_ptr + row * K + done + k, mask=k < K - done, other=0.0).to(FT)
            products += z * tl.load(table_at + done, mask=(n < words) & (k < K - done), other=0.0).to(FT)
        bias = tl.load(bias_ptr + n, mask=n < words, other=-float("inf")).to(FT)
        scores = (tl.sum(products, 0)[None, :] + bias).to(tl.float64)
        exponent = scores - tl.max(scores, 1)[:, None]
        if HOT:
            exponent *= tl.load(inverse_ptr)
        i = tl.arange(0, BLOCK)[None, :]
        word, share = _find(tl.exp(exponent), share, i, BLOCK, BLOCK_BITS)
        score = tl.sum(tl.where(i == word, scores, 0.0), 1)[:, None]
        at = row + tl.zeros((1, 1), tl.int64)
        tl.store(token_ptr + at, first + (block * BLOCK + word).to(tl.int64))
        tl.store(log_prob_ptr + at, (score - tl.load(norm_ptr + row)).to(log_prob_ptr.dtype.element_ty))


def tile(dtype: torch.dtype, K: int, memory: int) -> dict[str, Any]:
    """The tile of `sums_kernel`: large if products dominate, small if exponentials do."""
    if dtype == torch.float64:
        return {"BM": 32, "BN": BLOCK, "BK": 16, "num_warps": 4, "num_stages": 2}
    if dtype == torch.float32:
        return {"BM": 64, "BN": BLOCK, "BK": 16, "num_warps": 8, "num_stages": 3}
    if K >= 512 and memory >= LARGE:
        return {"BM": 128, "BN": 2 * BLOCK, "BK": 64, "num_warps": 8, "num_stages": 4}
    # two programs on a multiprocessor: one has its products while the other has its exponentials
    BK, stages = min(64, max(16, 1 << bits(K))), 3 if memory >= SMALL else 2
    return {"BM": 128, "BN": BLOCK, "BK": BK, "num_warps": 8, "num_stages": stages}


def bits(count: int) -> int:
    """The exponent of the next power of two."""
    return (count - 1).bit_length()


def sample(
    parts: list[tuple[Tensor, Tensor, Tensor]], clusters: Tensor, uniform: Tensor, inverse: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Sample; see :func:`statespan.ops.sample.operator.fused_sample`.

    All tensors are contiguous, those of the parts of one dtype. ``inverse`` is one over the temperature, one float64
    number; None for temperature 1.
    """
    rows, count, hot, first = clusters.shape[0], len(parts), inverse is not None, 0
    device, wide = clusters.device, clusters.dtype == torch.float64
    dtype, FT = (torch.float64, tl.float64) if wide else (torch.float32, tl.float32)

    def empty(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    fold = empty(rows, 3, count, dtype=torch.float64)
    kept = []
    for i, (z, table, bias) in enumerate(parts):
        words, K = table.shape
        blocks = -(-words // BLOCK)
        most, sums = empty(rows, blocks), empty(rows, blocks)
        power = empty(rows, blocks) if hot else sums
        shape = tile(z.dtype, K, shared_memory(device))
        sums_kernel[(-(-rows // shape["BM"]), -(-words // shape["BN"]))](
            z, table, bias, inverse, most, sums, power, rows, words, K, blocks,
            BLOCK=BLOCK, EVEN=K % shape["BK"] == 0, HOT=hot, FT=FT, **shape,
        )  # fmt: skip
        P = 1 << bits(blocks)
        options = {"PARTS": count, "P": P, "HOT": hot, "num_warps": min(16, max(4, P // 512))}
        fold_kernel[(rows,)](most, sums, power, inverse, fold, blocks, i, **options)
        kept.append((most, power, blocks, first, options))
        first += words
    part, share, norm = empty(rows, dtype=torch.int32), *(empty(rows, dtype=torch.float64) for _ in range(2))
    enter_kernel[(-(-rows // ROWS),)](
        clusters, uniform, inverse, fold, part, share, norm, rows,
        PARTS=count, E=1 << bits(count), E_BITS=bits(count), R=ROWS, HOT=hot, num_warps=1,
    )  # fmt: skip
    token, log_prob = empty(rows, dtype=torch.int64), empty(rows)
    for i, ((z, table, bias), (most, power, blocks, first, options)) in enumerate(zip(parts, kept)):
        words, K = table.shape
        inside_kernel[(rows,)](
            z, table, bias, inverse, fold, most, power, part, share, norm, token, log_prob, words, K, blocks, first, i,
            P_BITS=bits(blocks), BLOCK=BLOCK, BLOCK_BITS=bits(BLOCK), BK=min(16 if wide else 64, max(16, 1 << bits(K))),
            FT=FT, **options,
        )  # fmt: skip
    return token, log_prob
