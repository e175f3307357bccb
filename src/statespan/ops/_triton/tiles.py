"""Which tile sizes to run the kernels with: a fixed rule, so that the same input gives the same bits on every run."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Tiles(NamedTuple):
    """The shape of a program's work."""

    columns: int = 64
    """Rows of the matrix products: segments of sequences worked on together."""
    per_segment: int = 1 << 30
    """Chunks of each segment, a power of two."""
    warps: int = 4
    stages: int = 2
    backward_warps: int = 4
    backward_stages: int = 2


def choose(heads: int, batch: int, length: int, d_state: int, chunk: int, dense: bool, dtype: torch.dtype) -> Tiles:
    """The tiles for this much work."""
    chunks = -(-length // chunk)
    columns = 64 if batch >= 48 else 32 if batch >= 24 else 16
    return Tiles(columns=columns, per_segment=1 << max(0, (chunks - 1).bit_length()))
