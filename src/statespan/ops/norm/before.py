"""``statespan::norm``: layer normalization in front of a layer, in the memory order that the engine's kernels read."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from statespan.ops.dispatch import kernels_run
from statespan.ops.register import exporting, no_autocast, operator

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WIDEST = 1024  # features that a program has room for


class Affine(NamedTuple):
    """The parameters of a layer normalization: weight and bias (D,), and eps.

    Example:
        >>> affine = Affine(weight=torch.ones(4), bias=torch.zeros(4), eps=1e-5)
        >>> torch.nn.functional.layer_norm(torch.randn(2, 10, 4), (4,), *affine).shape
        torch.Size([2, 10, 4])
    """

    weight: Tensor
    bias: Tensor
    eps: float


class SavedNorm(NamedTuple):
    """What the backward pass needs: x (B, L, D), the weight, and the mean and inverse deviation (B, L).

    Example:
        >>> x = torch.randn(2, 10, 4)
        >>> var, mean = torch.var_mean(x, -1, correction=0)
        >>> saved = SavedNorm(x, torch.ones(4), mean, var.rsqrt())
        >>> ((saved.x - saved.mean[..., None]) * saved.rstd[..., None]).shape
        torch.Size([2, 10, 4])
    """

    x: Tensor
    weight: Tensor
    mean: Tensor
    rstd: Tensor


def norm_fits(x: Tensor, dtype: torch.dtype) -> bool:
    """Whether the kernels would normalize x (B, L, D) for an engine that computes in this dtype."""
    if dtype not in (torch.float16, torch.bfloat16) or x.dtype == torch.float64 or x.shape[2] > WIDEST:
        return False
    return x.numel() > 0 and not exporting() and kernels_run(x)


def norm_before(x: Tensor, affine: Affine, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Layer normalization of x (B, L, D) at the start of a residual branch.

    Returns:
        x for the residual, and x normalized, (B, L, D) in this dtype with the length as the last axis in memory. The
        gradients of both meet in one kernel, which saves a sum.
    """
    y, same, _, _ = _Norm.apply(x, *affine, dtype)
    return same, y.permute(1, 2, 0)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *affine_and_dtype: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # with a setup_context of its own, torch would inspect the signature at every call
        *affine, dtype = affine_and_dtype
        y, mean, rstd = norm(x, Affine(*affine), dtype)
        ctx.mark_non_differentiable(mean, rstd)
        ctx.save_for_backward(x, affine[0], mean, rstd)
        return y, x.view_as(x), mean, rstd

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dx: Tensor, _mean: Tensor, _rstd: Tensor) -> tuple[Tensor | None, ...]:
        with no_autocast(dy):
            return *norm_backward(SavedNorm(*ctx.saved_tensors), dy, dx), None, None


def _forward(x: Tensor, affine: Affine, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return y (D, B, L), and the mean and inverse deviation (B, L) that the backward pass needs."""
    from statespan.ops.norm._triton.before import forward

    return forward(featurewise(x), affine, dtype)


def _forward_fake(x: Tensor, affine: Affine, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    B, L, D = x.shape
    mean = x.new_empty(B, L, dtype=torch.float32)
    return x.new_empty(D, B, L, dtype=dtype), mean, torch.empty_like(mean)


def _backward(saved: SavedNorm, dy: Tensor, residual: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, the weight and the bias from y's and the residual's."""
    from statespan.ops.norm._triton.before import backward

    return backward(saved._replace(x=featurewise(saved.x)), dy.contiguous(), residual.contiguous())


def _backward_fake(saved: SavedNorm, dy: Tensor, residual: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, weight, *_ = saved
    return x.new_empty(x.shape), torch.empty_like(weight), torch.empty_like(weight)


def featurewise(x: Tensor) -> Tensor:
    """Return x (B, L, D) with the features as the last axis in memory."""
    return x if x.stride(2) == 1 else x.contiguous()


norm_backward = operator("statespan::norm_backward", _backward, _backward_fake, visible=True)
norm = operator("statespan::norm", _forward, _forward_fake, visible=True)
