"""How long the chunks of the engine are: a matter of speed alone.

Shapes: B batch, L length, H heads.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from statespan.ops import tiles
from statespan.ops.chunked import CHUNK
from statespan.ops.memory import shared_memory

if TYPE_CHECKING:
    from statespan.ops.source import Source


def chunk_length(path: str, source: Source, dtype: torch.dtype, u: Tensor, *, factored: bool) -> int:
    """Samples of a chunk: long enough for large matrix products, short enough for the chip, or for what is to do.

    Args:
        path: "triton" or "chunks".
        source: The SSM.
        dtype: What is computed in.
        u: An input (B, L, H) like those to come.
        factored: Whether the kernels keep G in its factors.
    """
    if path == "triton":
        memory = shared_memory(u.device)
        return tiles.chunk_length(source.d_state, source.dense and not factored, factored, dtype, memory)
    if not u.is_cpu or torch.compiler.is_compiling():  # a graph has to serve any size
        return CHUNK
    return chunk_on_cpu(source, *u.shape[:2])


def chunk_on_cpu(source: Source, batch: int, length: int) -> int:
    """Where building the operators, which grow with the chunk, and applying them cost least together (measured).

    Longer chunks have fewer states, and are worth building for many samples; a dense G limits that with its size.
    """
    samples, largest = batch * length, 128
    if source.power == "rank one":
        square = 1 / (1 / (1.5 * samples) + 1 / (1.7 * source.d_state) ** 2)
        largest = 256
    else:
        square = 0.36 * samples
    chunk = min(1 << max(4, round(math.log2(square) / 2)), largest, 1 << max(length - 1, 1).bit_length())
    whole = [c for c in range(16, 2 * chunk, 16) if length % c == 0 and 3 * chunk <= 4 * c <= 6 * chunk]
    return min(whole, key=lambda c: abs(c - chunk), default=chunk)  # without a rest, which would have to be filled up
