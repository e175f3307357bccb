"""A linear layer followed by a gated linear unit, fused on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import glu, linear

from statespan.ops.dispatch import kernels_run
from statespan.ops.glu.float32 import float32_linear, float32_linear_fits
from statespan.ops.register import differentiable, exporting, graph_is_kept, operator, traced


def linear_glu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``W₁x + b₁`` gated by ``sigmoid(W₂x + b₂)``.

    Args:
        x: (rows, features).
        weight: (2d, features).
        bias: (2d,).

    Returns:
        (rows, d).
    """
    compiling = torch.compiler.is_compiling()
    helps = torch.is_grad_enabled() and not exporting() if compiling else x.shape[0] > 0
    if not (helps and kernels_run(x)):
        return glu(linear(x, weight, bias), -1)
    if float32_linear_fits(x, weight, bias):
        return float32_linear(x, weight, bias, gated=True)
    z = linear(x, weight)
    if z.dtype not in (torch.float16, torch.bfloat16):
        return glu(z + bias, -1)
    # a compiler's own forward kernel fuses what follows; our backward kernel fuses the bias
    return _OwnBackward.apply(z, bias) if compiling else bias_glu(z, bias)


class _OwnBackward(torch.autograd.Function):
    @staticmethod
    def forward(z: Tensor, bias: Tensor) -> Tensor:
        return glu(z.float() + bias.float(), -1).to(z.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor]:
        return bias_glu_backward(*ctx.saved_tensors, dout)


def _forward(z: Tensor, bias: Tensor) -> Tensor:
    """``(z₁ + b₁) sigmoid(z₂ + b₂)`` of z (rows, 2d)."""
    from statespan.ops.glu._triton import forward

    return forward(z.contiguous(), bias)


def _forward_fake(z: Tensor, bias: Tensor) -> Tensor:
    return z.new_empty(z.shape[0], z.shape[1] // 2)


def _backward(z: Tensor, bias: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of z and of the bias."""
    from statespan.ops.glu._triton import backward

    return backward(z.contiguous(), bias, dout)


def _backward_fake(z: Tensor, bias: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(z), torch.empty_like(bias)


def _save(ctx: Any, arguments: list[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*arguments)


def _gradient(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor]:
    z, bias = ctx.saved_tensors
    if traced(z) or graph_is_kept() or not z.is_contiguous():
        return bias_glu_backward(z, bias, dout)
    from statespan.ops.glu._triton import backward

    return backward(z, bias, dout, in_place=True)  # z is not read again, so its gradient overwrites it


bias_glu_backward = operator("statespan::bias_glu_backward", _backward, _backward_fake, visible=True)
bias_glu = differentiable("statespan::bias_glu", _forward, _forward_fake, save=_save, gradient=_gradient)
