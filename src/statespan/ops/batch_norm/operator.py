"""``statespan::batch_norm``: batch normalization in training, from the real positions of sequences only."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from statespan.ops.dispatch import kernels_run
from statespan.ops.norm.before import DTYPES, WIDEST, featurewise
from statespan.ops.register import differentiable, no_autocast, operator, traced


class Norm(NamedTuple):
    """The tensors of a batch norm: weight, bias and running statistics (D,), with momentum and eps.

    Example:
        >>> layer = torch.nn.BatchNorm1d(4)
        >>> norm = Norm(layer.weight, layer.bias, layer.running_mean, layer.running_var, momentum=0.1, eps=1e-5)
        >>> torch.nn.functional.batch_norm(torch.randn(8, 4), norm.running_mean, norm.running_var, eps=norm.eps).shape
        torch.Size([8, 4])
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor
    momentum: float
    eps: float


class Moved(NamedTuple):
    """The running statistics after a batch.

    Example:
        >>> layer = torch.nn.BatchNorm1d(2)
        >>> moved = Moved(mean=torch.zeros(2), var=torch.full((2,), 0.9))
        >>> layer.running_var.copy_(moved.var)
        tensor([0.9000, 0.9000])
    """

    mean: Tensor
    var: Tensor


class OutputLayout(NamedTuple):
    """The memory order of y, (D, B, L) or (B, L, D), and its dtype.

    Example:
        >>> layout = OutputLayout(transposed=True, dtype=torch.float32)
        >>> x = torch.zeros(2, 10, 4)  # (B, L, D)
        >>> (x.permute(2, 0, 1) if layout.transposed else x).to(layout.dtype).shape
        torch.Size([4, 2, 10])
    """

    transposed: bool
    dtype: torch.dtype


class SavedBatchNorm(NamedTuple):
    """What the backward pass needs; mean and inverse deviation (D,), and the number of positions (1,).

    Example:
        >>> x = 3 + torch.randn(2, 50, 4)
        >>> var, mean = torch.var_mean(x, (0, 1), correction=0)
        >>> saved = SavedBatchNorm(x, None, torch.ones(4), mean, var.rsqrt(), torch.tensor([100]))
        >>> ((saved.x - saved.mean) * saved.rstd).square().mean().round().item()
        1.0
    """

    x: Tensor
    lengths: Tensor | None
    weight: Tensor
    mean: Tensor
    rstd: Tensor
    positions: Tensor


def batch_fits(x: Tensor) -> bool:
    """Whether the kernels would normalize x (B, L, D). A compiler generates better ones."""
    if x.dtype not in DTYPES or x.shape[2] > WIDEST or x.shape[0] * x.shape[1] < 2:
        return False
    return not traced(x) and kernels_run(x)


def batch_norm(x: Tensor, lengths: Tensor | None, norm: Norm) -> tuple[Tensor, Moved]:
    """Normalize each feature over the batch and the length.

    Args:
        x: (B, L, D).
        lengths: True length of each sequence (B,); padding is ignored and its outputs are 0. None for L.
        norm: The module's.

    Returns:
        (B, L, D) in the dtype of x, and the running statistics after it.
    """
    y, *_, mean, var = batch(x, lengths, norm, OutputLayout(False, x.dtype))
    return y, Moved(mean, var)


def batch_norm_before(
    x: Tensor, lengths: Tensor | None, norm: Norm, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Moved]:
    """Batch normalization at the start of a residual branch, in the memory order that the engine's kernels read.

    Args:
        x: (B, L, D).
        lengths: As for :func:`batch_norm`.
        norm: The module's.
        dtype: Of the result.

    Returns:
        x for the residual; x normalized, (B, L, D) with the length as the last axis in memory; the running statistics.
        The gradients of the first two meet in one kernel, which saves a sum.
    """
    y, same, *_, mean, var = _BatchNormBefore.apply(x, lengths, *norm, dtype)
    return same, y.permute(1, 2, 0), Moved(mean, var)


class _BatchNormBefore(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, lengths: Tensor | None, *norm_and_dtype: Any) -> tuple[Tensor, ...]:
        # with a setup_context of its own, torch would inspect the signature at every call
        *norm, dtype = norm_and_dtype
        y, *rest = batch(x, lengths, Norm(*norm), OutputLayout(True, dtype))
        ctx.mark_non_differentiable(*rest)
        ctx.save_for_backward(x, lengths, norm[0], *rest[:3])
        return y, x.view_as(x), *rest

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dx: Tensor, *_rest: Tensor) -> tuple[Tensor | None, ...]:
        with no_autocast(dy):
            dx, dweight, dbias = batch_backward(SavedBatchNorm(*ctx.saved_tensors), dy, dx, True)
        return dx, None, dweight, dbias, None, None, None, None, None


def _forward(
    x: Tensor, lengths: Tensor | None, norm: Norm, result: OutputLayout
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return y, what the backward pass needs (mean, inverse deviation, count), and the running statistics."""
    from statespan.ops.batch_norm._triton import forward

    return forward(featurewise(x), lengths, norm, result)


def _forward_fake(
    x: Tensor, lengths: Tensor | None, norm: Norm, result: OutputLayout
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    B, L, D = x.shape
    y = x.new_empty((D, B, L) if result.transposed else (B, L, D), dtype=result.dtype)
    mean, rstd, count = (x.new_empty(size, dtype=torch.float32) for size in (D, D, 1))
    return y, mean, rstd, count, torch.empty_like(norm.running_mean), torch.empty_like(norm.running_var)


def _backward(
    saved: SavedBatchNorm, dy: Tensor, residual: Tensor | None, transposed: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, the weight and the bias from y's and the residual's."""
    from statespan.ops.batch_norm._triton import backward

    residual = None if residual is None else residual.contiguous()
    return backward(saved._replace(x=featurewise(saved.x)), dy.contiguous(), residual, transposed)


def _backward_fake(
    saved: SavedBatchNorm, dy: Tensor, residual: Tensor | None, transposed: bool
) -> tuple[Tensor, Tensor, Tensor]:
    x, weight = saved.x, saved.weight
    return x.new_empty(x.shape), torch.empty_like(weight), torch.empty_like(weight)


def _save(ctx: Any, arguments: list[Any], output: tuple[Tensor, ...]) -> None:
    x, lengths, norm, _ = arguments
    _, *rest = output
    ctx.mark_non_differentiable(*rest)
    ctx.save_for_backward(x, lengths, norm.weight, *rest[:3])


def _gradient(ctx: Any, dy: Tensor, *_rest: Tensor) -> tuple[Tensor | None, ...]:
    with no_autocast(dy):
        dx, dweight, dbias = batch_backward(SavedBatchNorm(*ctx.saved_tensors), dy, None, False)
    return dx, None, dweight, dbias


batch_backward = operator("statespan::batch_norm_backward", _backward, _backward_fake)
batch = differentiable("statespan::batch_norm", _forward, _forward_fake, save=_save, gradient=_gradient)
