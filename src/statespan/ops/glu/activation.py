"""GELU, and GELU followed by a linear map, with a backward pass that reuses memory on a CPU.

On a CPU, allocating memory costs more than the arithmetic. A gradient therefore overwrites its tensor if that is no
longer needed.

Shapes: P positions, F features, D outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from statespan.ops.register import graph_is_kept, no_autocast, traced, transformed

_gelu_backward = torch.ops.aten.gelu_backward


def gelu(y: Tensor) -> Tensor:
    """GELU of a tensor, of any shape and order in memory, that has no other use."""
    return _Gelu.apply(y) if _plain(y) else functional.gelu(y)


def gelu_linear(y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``W gelu(y) + b`` at each position, for a y that has no other use.

    Args:
        y: (P, F), in any order in memory.
        weight: (D, F).
        bias: (D,).

    Returns:
        (P, D).
    """
    if not _plain(y) or torch.is_autocast_enabled("cpu") or {weight.dtype, bias.dtype} != {y.dtype}:
        return functional.linear(gelu(y), weight, bias)
    return _GeluLinear.apply(y, weight, bias)[0]


def _plain(y: Tensor) -> bool:
    """Whether a backward pass on a CPU follows and nothing traces or transforms this call."""
    return y.is_cpu and not traced(y) and not transformed() and torch.is_grad_enabled() and y.requires_grad


def _free() -> bool:
    """Whether a backward pass may overwrite its saved tensors: the graph is not kept and not differentiated again."""
    return not torch.is_grad_enabled() and not graph_is_kept()


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(y: Tensor) -> Tensor:
        return functional.gelu(y)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return _before_gelu(dz, y) if _free() else _gelu_backward(dz, y)


class _GeluLinear(torch.autograd.Function):
    @staticmethod
    def forward(y: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        g = functional.gelu(y)
        return functional.linear(g, weight, bias), g

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs[:2], output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dz: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        y, weight, g = ctx.saved_tensors
        if dz is None:
            return None, None, None
        with no_autocast(y):
            if torch.is_grad_enabled():
                return _gelu_backward(dz @ weight, y), dz.t() @ functional.gelu(y), dz.sum(0)
            dweight = (g.t() @ dz).t()  # in this order the product reads both as they lie in memory
            if not _free():
                return _gelu_backward((weight.t() @ dz.t()).t(), y), dweight, dz.sum(0)
            dg = torch.mm(weight.t(), dz.t(), out=g.detach().t()).t()
            return _before_gelu(dg, y), dweight, dz.sum(0)


def _before_gelu(dz: Tensor, y: Tensor) -> Tensor:
    """Compute the gradient of y in place of y."""
    y = y.detach()
    return _gelu_backward.grad_input(dz, y, grad_input=y)
