"""Chooses the chunk length of the engine, which affects speed alone.

Shapes: B batch, L length, H heads.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from statespan.ops.memory import shared_memory
from statespan.ops.ssm.chunked import CHUNK
from statespan.ops.ssm.source import SSMSource
from statespan.ops.ssm.tiles import LARGE, MIDDLE, SIXTEEN_BITS


def chunk_length(path: str, source: SSMSource, dtype: torch.dtype, u: Tensor, *, factored: bool) -> int:
    """The chunk length on path "triton" or "chunks" for inputs of the size of u (B, L, H)."""
    if path == "triton":
        memory = shared_memory(u.device)
        dense = source.dense and not factored
        return kernel_chunk_length(source.d_state, dtype, memory, dense=dense, factored=factored)
    if not u.is_cpu or torch.compiler.is_compiling():  # a graph has to serve any size
        return CHUNK
    return chunk_on_cpu(source, *u.shape[:2])


def kernel_chunk_length(d_state: int, dtype: torch.dtype, memory: int, *, dense: bool, factored: bool) -> int:
    """The chunk length for kernels: long enough for large matrix products, short enough for shared memory."""
    if dtype in SIXTEEN_BITS:
        chunk = 32 if factored else 64
        return chunk if memory >= MIDDLE or d_state <= (128 if factored else 64) else chunk // 2
    chunk = 64 if d_state <= 64 else 32 if d_state <= 128 else 16
    return chunk if memory >= (LARGE if dense else MIDDLE) else chunk // 2


def chunk_on_cpu(source: SSMSource, batch: int, length: int) -> int:
    """The chunk length at which building the operators plus applying them is cheapest (measured).

    Longer chunks have fewer states and are worth building for many samples; the size of a dense G limits that.
    """
    samples, largest = batch * length, 128
    if source.power == "rank one":
        square = 1 / (1 / (1.5 * samples) + 1 / (1.7 * source.d_state) ** 2)
        largest = 256
    else:
        square = 0.36 * samples
    chunk = min(1 << max(4, round(math.log2(square) / 2)), largest, 1 << max(length - 1, 1).bit_length())
    whole = [c for c in range(16, 2 * chunk, 16) if length % c == 0 and 3 * chunk <= 4 * c <= 6 * chunk]
    return min(whole, key=lambda c: abs(c - chunk), default=chunk)  # no padding of a partial chunk
