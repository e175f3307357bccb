"""``statespan::lengthwise``: copies sequences into the memory order that the kernels read.

People hold (batch, length, features); a kernel wants each feature's samples side by side. The copy is made once, saved
in place of the input, and in the backward pass overwritten by its gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statespan.ops.register import differentiable, operator


def is_lengthwise(u: Tensor, dtype: torch.dtype) -> bool:
    """Whether the kernels can read u (H, B, L) as it is."""
    return u.dtype == dtype and u.stride(2) == 1


def _lengthwise(u: Tensor, dtype: torch.dtype) -> Tensor:
    """A contiguous copy of u (H, B, L) in this dtype."""
    from statespan.ops._triton.transpose import lengthwise

    copy = lengthwise(u, dtype)
    return copy.clone(memory_format=torch.contiguous_format) if copy.data_ptr() == u.data_ptr() else copy.contiguous()


def _lengthwise_fake(u: Tensor, dtype: torch.dtype) -> Tensor:
    return u.new_empty(u.shape, dtype=dtype)


def _back(x: Tensor, features_last: bool, dtype: torch.dtype) -> Tensor:
    """Return x (H, B, L) in this dtype, optionally with the features as the last axis in memory."""
    from statespan.ops._triton.transpose import featurewise

    copy = featurewise(x, dtype) if features_last else x.to(dtype).contiguous()
    return copy.clone() if copy.data_ptr() == x.data_ptr() else copy


def _back_fake(x: Tensor, features_last: bool, dtype: torch.dtype) -> Tensor:
    H, B, L = x.shape
    return x.new_empty(B, L, H, dtype=dtype).permute(2, 0, 1) if features_last else x.new_empty(x.shape, dtype=dtype)


def _save(ctx: Any, arguments: list[Any], output: Tensor) -> None:
    u, _ = arguments
    ctx.order = u.stride(0) == 1 and u.stride(2) != 1, u.dtype


def _gradient(ctx: Any, dx: Tensor) -> tuple[Tensor]:
    return (lengthwise_backward(dx, *ctx.order),)


lengthwise_backward = operator("statespan::lengthwise_backward", _back, _back_fake, ((0,), (0,)))
lengthwise = differentiable(
    "statespan::lengthwise", _lengthwise, _lengthwise_fake, save=_save, gradient=_gradient, heads=((0,), (0,))
)
