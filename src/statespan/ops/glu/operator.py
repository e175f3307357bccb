"""A linear layer followed by a gated linear unit, fused on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import glu, linear

from statespan.ops.dispatch import kernels_run
from statespan.ops.register import differentiable, exporting, graph_is_kept, no_autocast, operator, traced


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


def gate_sequences(y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The same of y (B, L, K, D) in 16 bits, with the length as its last axis in memory, for (B, L, d).

    One node of autograd for the linear map and the gate; for a y that has no other use, outside of compiled code.
    """
    return _GateSequences.apply(y, weight, bias)


class _GateSequences(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        from statespan.ops.glu._triton import forward

        narrow = weight.to(y.dtype)
        z = torch.mm(_rows(y), narrow.t())
        ctx.save_for_backward(y, narrow, bias, z)
        ctx.weight_dtype = weight.dtype
        return forward(z, bias).view(*y.shape[:2], -1)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        from statespan.ops.glu._triton import backward

        y, weight, bias, z = ctx.saved_tensors
        dout = dout.reshape(z.shape[0], -1)
        wants_y, wants_weight, _ = ctx.needs_input_grad
        with no_autocast(y):
            x = _rows(y)
            if torch.is_grad_enabled():  # from tensors that autograd knows, so that a second derivative is refused
                dz, dbias = bias_glu_backward(linear(x, weight), bias, dout)
            else:
                dz, dbias = backward(z, bias, dout, in_place=not graph_is_kept())
            dy = torch.mm(weight.t(), dz.t()).view(*y.shape[2:], *y.shape[:2]).permute(2, 3, 0, 1) if wants_y else None
            dweight = _product(dz.t(), x, ctx.weight_dtype) if wants_weight else None
        return dy, dweight, dbias


def _rows(y: Tensor) -> Tensor:
    """A view of y (B, L, K, D) as (B·L, K·D)."""
    return y.permute(2, 3, 0, 1).flatten(2).flatten(0, 1).t()


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """The product of 16-bit matrices in this dtype, rounded once."""
    if dtype == torch.float32 and not torch.is_grad_enabled():
        return torch.mm(a, b, out_dtype=dtype)
    return torch.mm(a, b).to(dtype)


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
