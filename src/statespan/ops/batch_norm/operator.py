"""``statespan::batch_norm``: batch normalization in training, from the real positions of sequences only."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from statespan.ops.dispatch import kernels_run
from statespan.ops.norm.before import WIDEST, featurewise
from statespan.ops.register import no_autocast, operator, traced

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Norm(NamedTuple):
    """What a module has: weight, bias and running statistics (D,), the share of a batch in them, and eps."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor
    momentum: float
    eps: float


class Moved(NamedTuple):
    """The running statistics after a batch."""

    mean: Tensor
    var: Tensor


def batch_fits(x: Tensor) -> bool:
    """Whether the kernels would normalize x (B, L, D). A compiler has better ones of its own."""
    if x.dtype not in _DTYPES or x.shape[2] > WIDEST or x.shape[0] * x.shape[1] < 2:
        return False
    return not traced(x) and kernels_run(x)


def batch_norm(x: Tensor, lengths: Tensor | None, norm: Norm) -> tuple[Tensor, Moved]:
    """Normalize each feature over the batch and the length.

    Args:
        x: (B, L, D).
        lengths: True length of each sequence (B,); what follows has no part in it, and comes out as 0.
        norm: The module's.

    Returns:
        (B, L, D) in the dtype of x, and the running statistics after it.
    """
    y, *_, mean, var = _BatchNorm.apply(x, lengths, *norm)
    return y, Moved(mean, var)


def batch_norm_before(
    x: Tensor, lengths: Tensor | None, norm: Norm, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Moved]:
    """The same in front of what a residual goes around, in the order that the engine's kernels read.

    Args:
        x: (B, L, D).
        lengths: As for :func:`batch_norm`.
        norm: The module's.
        dtype: Of the result.

    Returns:
        x for the residual; x normalized, (B, L, D) with the length as the last axis in memory; the running statistics.
        The gradients of the first two meet in the kernel that makes x's, so that they need no sum of their own.
    """
    y, same, *_, mean, var = _BatchNormBefore.apply(x, lengths, *norm, dtype)
    return same, y.permute(1, 2, 0), Moved(mean, var)


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, lengths: Tensor | None, *norm: Any) -> tuple[Tensor, ...]:
        return batch(x, lengths, *norm, False, x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, lengths, weight, *_ = inputs
        _, *rest = output
        ctx.mark_non_differentiable(*rest)
        ctx.save_for_backward(x, lengths, weight, *rest[:3])

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_rest: Tensor) -> tuple[Tensor | None, ...]:
        with no_autocast(dy):
            dx, dweight, dbias = batch_backward(*ctx.saved_tensors, dy, None, False)
        return dx, None, dweight, dbias, None, None, None, None


class _BatchNormBefore(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, lengths: Tensor | None, *norm_and_dtype: Any) -> tuple[Tensor, ...]:
        *norm, dtype = norm_and_dtype
        y, *rest = batch(x, lengths, *norm, True, dtype)
        return y, x.view_as(x), *rest

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, lengths, weight, *_ = inputs
        _, _, *rest = output
        ctx.mark_non_differentiable(*rest)
        ctx.save_for_backward(x, lengths, weight, *rest[:3])

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dx: Tensor, *_rest: Tensor) -> tuple[Tensor | None, ...]:
        with no_autocast(dy):
            dx, dweight, dbias = batch_backward(*ctx.saved_tensors, dy, dx, True)
        return dx, None, dweight, dbias, None, None, None, None, None


def _forward(
    x: Tensor, lengths: Tensor | None, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor,
    momentum: float, eps: float, turned: bool, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Y, what the backward pass needs (mean, inverse deviation, number of positions), and the running statistics."""
    from statespan.ops.batch_norm._triton import forward

    return forward(
        featurewise(x), lengths, weight, bias, running_mean, running_var, momentum, eps, turned, dtype
    )  # fmt: skip


def _forward_fake(
    x: Tensor, lengths: Tensor | None, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor,
    momentum: float, eps: float, turned: bool, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    B, L, D = x.shape
    y = x.new_empty((D, B, L) if turned else (B, L, D), dtype=dtype)
    mean, rstd, count = (x.new_empty(size, dtype=torch.float32) for size in (D, D, 1))
    return y, mean, rstd, count, torch.empty_like(running_mean), torch.empty_like(running_var)


def _backward(
    x: Tensor, lengths: Tensor | None, weight: Tensor, mean: Tensor, rstd: Tensor, count: Tensor, dy: Tensor,
    residual: Tensor | None, turned: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x, the weight and the bias from y's and the residual's."""
    from statespan.ops.batch_norm._triton import backward

    beside = None if residual is None else residual.contiguous()
    return backward(featurewise(x), lengths, weight, mean, rstd, count, dy.contiguous(), beside, turned)


def _backward_fake(
    x: Tensor, lengths: Tensor | None, weight: Tensor, mean: Tensor, rstd: Tensor, count: Tensor, dy: Tensor,
    residual: Tensor | None, turned: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return x.new_empty(x.shape), torch.empty_like(weight), torch.empty_like(weight)


batch_backward = operator("statespan::batch_norm_backward", _backward, _backward_fake)
batch = operator("statespan::batch_norm", _forward, _forward_fake)
