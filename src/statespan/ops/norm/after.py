"""``statespan::sum_norm``: layer normalization of a layer's output plus its residual, fused on a GPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from statespan.ops.dispatch import kernels_run
from statespan.ops.norm.before import DTYPES, WIDEST, Affine
from statespan.ops.register import differentiable, no_autocast, operator, traced


def after_fits(x: Tensor, z: Tensor) -> bool:
    """Whether the kernels would normalize the sum of x and z (B, L, D). A compiler generates better ones."""
    if x.dtype not in DTYPES or z.dtype not in DTYPES or x.shape != z.shape or x.shape[2] > WIDEST:
        return False
    return x.numel() > 0 and not traced(x) and kernels_run(x)


class ResidualSum(NamedTuple):
    """``x + scale z``: the residual x plus a layer's output z, (B, L, D); scale (B, D) is constant, or None for 1.

    Example:
        >>> scale = torch.tensor([[0.0], [2.0]]).expand(2, 4)
        >>> terms = ResidualSum(x=torch.ones(2, 10, 4), z=torch.ones(2, 10, 4), scale=scale)
        >>> (terms.x + terms.scale[:, None] * terms.z)[:, 0, 0]
        tensor([1., 3.])
    """

    x: Tensor
    z: Tensor
    scale: Tensor | None


class SavedSumNorm(NamedTuple):
    """What the backward pass needs: the summands, the weight, and the mean and inverse deviation (B, L).

    Example:
        >>> x, z = torch.randn(2, 10, 4), torch.randn(2, 10, 4)
        >>> var, mean = torch.var_mean(x + z, -1, correction=0)
        >>> saved = SavedSumNorm(x, z, None, torch.ones(4), mean, var.rsqrt())
        >>> ((saved.x + saved.z - saved.mean[..., None]) * saved.rstd[..., None]).shape
        torch.Size([2, 10, 4])
    """

    x: Tensor
    z: Tensor
    scale: Tensor | None
    weight: Tensor
    mean: Tensor
    rstd: Tensor


def norm_after(residual: ResidualSum, affine: Affine) -> Tensor:
    """Layer normalization of a residual sum.

    Returns:
        (B, L, D); under autocast in float32, like torch's own, and otherwise in the wider dtype of x and z.
    """
    x, z, _ = residual
    wide = torch.is_autocast_enabled(x.device.type)
    dtype = torch.float32 if wide else torch.promote_types(x.dtype, z.dtype)
    return sum_norm(residual, affine, dtype)[0]


def _forward(residual: ResidualSum, affine: Affine, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, and the mean and inverse deviation (B, L) that the backward pass needs."""
    from statespan.ops.norm._triton.after import forward

    return forward(ResidualSum(*(_contiguous(t) for t in residual)), affine, dtype)  # type: ignore[arg-type]


def _forward_fake(residual: ResidualSum, affine: Affine, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    x = residual.x
    mean = x.new_empty(x.shape[:2], dtype=torch.float32)
    return x.new_empty(x.shape, dtype=dtype), mean, torch.empty_like(mean)


def _backward(saved: SavedSumNorm, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, z, the weight and the bias."""
    from statespan.ops.norm._triton.after import backward

    return backward(SavedSumNorm(*(_contiguous(t) for t in saved)), dy.contiguous())  # type: ignore[arg-type]


def _backward_fake(saved: SavedSumNorm, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, z, _, weight, *_ = saved
    return x.new_empty(x.shape), z.new_empty(z.shape), torch.empty_like(weight), torch.empty_like(weight)


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _save(ctx: Any, arguments: list[Any], output: tuple[Tensor, ...]) -> None:
    residual, affine, _ = arguments
    _, mean, rstd = output
    ctx.mark_non_differentiable(mean, rstd)
    ctx.save_for_backward(*residual, affine.weight, mean, rstd)


def _gradient(ctx: Any, dy: Tensor, _mean: Tensor, _rstd: Tensor) -> tuple[Tensor | None, ...]:
    with no_autocast(dy):
        dx, dz, dweight, dbias = sum_norm_backward(SavedSumNorm(*ctx.saved_tensors), dy)
    return dx, dz, None, dweight, dbias


sum_norm_backward = operator("statespan::sum_norm_backward", _backward, _backward_fake)
sum_norm = differentiable("statespan::sum_norm", _forward, _forward_fake, save=_save, gradient=_gradient)
