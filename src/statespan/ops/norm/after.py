"""``statespan::sum_norm``: layer normalization of what leaves a layer and what went past it, as one step on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statespan.ops.dispatch import kernels_run
from statespan.ops.norm.before import WIDEST
from statespan.ops.register import no_autocast, operator, traced

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def after_fits(x: Tensor, z: Tensor) -> bool:
    """Whether the kernels would normalize the sum of x and z (B, L, D). A compiler has better ones of its own."""
    if x.dtype not in _DTYPES or z.dtype not in _DTYPES or x.shape != z.shape or x.shape[2] > WIDEST:
        return False
    return x.numel() > 0 and not traced(x) and kernels_run(x)


def norm_after(x: Tensor, z: Tensor, scale: Tensor | None, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Layer normalization of ``x + scale z``.

    Args:
        x: What went past a layer, (B, L, D).
        z: What left it, (B, L, D).
        scale: Of z's features in each sequence, (B, D), without a gradient; None for one.
        weight: (D,).
        bias: (D,).
        eps: Added to the variance.

    Returns:
        (B, L, D); under autocast in float32, as torch's own, and otherwise in the wider dtype of x and z.
    """
    wide = torch.is_autocast_enabled(x.device.type)
    dtype = torch.float32 if wide else torch.promote_types(x.dtype, z.dtype)
    y, _, _ = _NormAfter.apply(x, z, scale, weight, bias, eps, dtype)
    return y


class _NormAfter(torch.autograd.Function):
    @staticmethod
    def forward(
        x: Tensor, z: Tensor, scale: Tensor | None, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        return sum_norm(x, z, scale, weight, bias, eps, dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, z, scale, weight, *_ = inputs
        _, mean, rstd = output
        ctx.mark_non_differentiable(mean, rstd)
        ctx.save_for_backward(x, z, scale, weight, mean, rstd)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, _mean: Tensor, _rstd: Tensor) -> tuple[Tensor | None, ...]:
        with no_autocast(dy):
            dx, dz, dweight, dbias = sum_norm_backward(*ctx.saved_tensors, dy)
        return dx, dz, None, dweight, dbias, None, None


def _forward(
    x: Tensor, z: Tensor, scale: Tensor | None, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Y, and the mean and inverse deviation (B, L) that the backward pass needs."""
    from statespan.ops.norm._triton.after import forward

    scale = None if scale is None else scale.contiguous()
    return forward(x.contiguous(), z.contiguous(), scale, weight, bias, eps, dtype)


def _forward_fake(
    x: Tensor, z: Tensor, scale: Tensor | None, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    mean = x.new_empty(x.shape[:2], dtype=torch.float32)
    return x.new_empty(x.shape, dtype=dtype), mean, torch.empty_like(mean)


def _backward(
    x: Tensor, z: Tensor, scale: Tensor | None, weight: Tensor, mean: Tensor, rstd: Tensor, dy: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, z, the weight and the bias."""
    from statespan.ops.norm._triton.after import backward

    scale = None if scale is None else scale.contiguous()
    return backward(x.contiguous(), z.contiguous(), scale, weight, mean, rstd, dy.contiguous())


def _backward_fake(
    x: Tensor, z: Tensor, scale: Tensor | None, weight: Tensor, mean: Tensor, rstd: Tensor, dy: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), z.new_empty(z.shape), torch.empty_like(weight), torch.empty_like(weight)


sum_norm_backward = operator("statespan::sum_norm_backward", _backward, _backward_fake)
sum_norm = operator("statespan::sum_norm", _forward, _forward_fake)
