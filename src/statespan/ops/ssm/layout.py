"""Memory layouts of sequences and of states.

People hold sequences as (batch, length, features); the engine wants each feature's samples side by side. A structure
holds the real parts of a state first, then the imaginary parts; the engine wants the two parts of a mode side by side.

Shapes: H heads, B batch, L length, N state size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statespan.ops.register import transformed
from statespan.ssm.packed import interleave

COPY_BLOCK = 512  # samples copied at a time


def ordered(x: Tensor, dense: bool) -> Tensor:
    """Convert a state from a structure's order to the engine's; with a dense G they are the same."""
    return x if dense else interleave(x)


def packed(x: Tensor, dense: bool) -> Tensor:
    """The inverse of :func:`ordered`."""
    return x if dense else torch.cat([x[..., 0::2], x[..., 1::2]], -1)


def lengthwise(x: Tensor) -> Tensor:
    """Return x (H, B, L) as a contiguous tensor."""
    if x.is_contiguous():
        return x
    tracked = torch.is_grad_enabled() and x.requires_grad
    if (
        torch.compiler.is_compiling()
        or transformed()
        or not x.is_cpu
        or x.stride(0) != 1
        or x.shape[2] <= 2 * COPY_BLOCK
    ):
        return x.contiguous()
    return _Lengthwise.apply(x) if tracked else _copy_by_blocks(x)


class _Lengthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _copy_by_blocks(x)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> Tensor:
        return dx


def _copy_by_blocks(x: Tensor) -> Tensor:
    """Copy in blocks that stay in a CPU's cache, three times as fast if the features are contiguous."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    for at in range(0, x.shape[2], COPY_BLOCK):
        out[..., at : at + COPY_BLOCK] = x[..., at : at + COPY_BLOCK]
    return out
