"""Keeps a NaN or an infinity at time t from reaching outputs before t.

Products with a triangular matrix and FFTs multiply such a value by zeros, which gives NaN: in the chunk engine from the
start of the chunk, in a convolution by FFT everywhere. Searching the input in advance would cost a pass over it. The
last output of a causal SSM depends on all samples, so it alone shows whether there was one; the rest runs only then.

Shapes: B batch, L length, H heads, K channels.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from statespan.ops.register import traced, transformed


class Mended(NamedTuple):
    """An input with its non-finite values removed.

    Example:
        >>> mended = without_spoiled(torch.tensor([1.0, torch.nan, 2.0]).view(1, 3, 1))
        >>> mended.u.flatten(), mended.nan.flatten()
        (tensor([1., 0., 2.]), tensor([0., nan, nan]))
    """

    u: Tensor
    """(B, L, H), with 0 in those places."""
    nan: Tensor
    """(B, L, 1, H): NaN from the first of them on in each sequence and head, 0 before."""


def is_spoiled(y: Tensor) -> bool:
    """Whether the last outputs of a causal y (B, L, K, H) show that a NaN or an infinity occurred.

    False where the answer would require synchronization: on a GPU, in compiled code, under transforms of torch.func.
    """
    if not y.is_cpu or traced(y) or transformed() or 0 in y.shape[:2]:
        return False
    return not math.isfinite(y[:, -1].detach().sum().item())


def without_spoiled(u: Tensor) -> Mended | None:
    """The input with its non-finite values removed; None if it is all finite and another quantity overflowed."""
    bad = torch.isfinite(u).logical_not()
    if not bool(bad.any()):
        return None
    behind = bad.cumsum(1) > 0
    nan = torch.zeros(u.shape, dtype=torch.float32, device=u.device).masked_fill(behind, math.nan)
    return Mended(u.masked_fill(bad, 0.0), nan[:, :, None])
