"""``statespan::float32_linear``: a linear map of float32 features, gated or not, by products of float16 on a GPU.

It takes the place of products in float32, which do not use the tensor cores, and is at least as accurate: see
:mod:`statespan.ops._triton.halves`. If the user allows TF32, torch's own products run.

Shapes: P positions, F features in, N features out of the weight: D, or 2D if gated.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from statespan.ops.dispatch import kernels_run
from statespan.ops.register import ABSENT, differentiable, exporting, no_autocast, operator, traced

CAPABILITY = 9
"""Of Hopper. Older GPUs have much slower tensor cores and have not been measured."""
LEAST_FEATURES = 128
LEAST_WORK, LEAST_WORK_EAGER = 1 << 31, 1 << 33
"""From this width and this many multiplications on, it is faster on an H200.

The limit is higher in eager mode, where the CPU takes longer to launch ten kernels than a GPU to run small ones.
"""
MOST_POSITIONS = 1 << 24
"""Up to here, addresses inside a tile fit into 32 bits."""


class LinearOptions(NamedTuple):
    """Whether the map is gated, and whether a backward pass follows.

    Example:
        >>> LinearOptions(gated=True, save=False)._replace(save=True)
        LinearOptions(gated=True, save=True)
    """

    gated: bool
    save: bool


class SavedLinear(NamedTuple):
    """What the backward pass needs: the input, the weight, and, if gated, z (P, 2D) with W₁'s and W₂'s in turn.

    Example:
        >>> x, weight = torch.randn(5, 8), torch.randn(6, 8)
        >>> saved = SavedLinear(x, weight, z=torch.empty(0))
        >>> torch.ones(5, 6).mT.mm(saved.x).shape  # the gradient of the weight for dy = 1
        torch.Size([6, 8])
    """

    x: Tensor
    weight: Tensor
    z: Tensor


def float32_linear_fits(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether this runs, and is faster than a product in float32."""
    (positions, features), outputs = x.shape, weight.shape[0]
    if not x.is_cuda or exporting() or torch.is_autocast_enabled("cuda"):
        return False
    if any(t.dtype != torch.float32 for t in (x, weight, bias)):
        return False
    if min(features, outputs) < LEAST_FEATURES or positions >= MOST_POSITIONS:
        return False
    least_work = LEAST_WORK if torch.compiler.is_compiling() else LEAST_WORK_EAGER
    if positions * features * outputs < least_work:
        return False
    return _is_capable(x.device) and _is_full_precision() and kernels_run(x)


def _is_capable(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] >= CAPABILITY


def _is_full_precision() -> bool:
    """Whether float32 products are float32: torch's two interfaces for TF32, of which the old one may not ask."""
    matmul = torch.backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", None)
    return not matmul.allow_tf32 if precision is None else precision in ("none", "ieee")


# to a tracer, as in statespan.ops.memory
_is_capable._dynamo_marked_constant = True  # type: ignore[attr-defined]
_is_full_precision._dynamo_marked_constant = True  # type: ignore[attr-defined]


def float32_linear(x: Tensor, weight: Tensor, bias: Tensor, *, gated: bool) -> Tensor:
    """``Wx + b``; gated, ``W₁x + b₁`` times ``sigmoid(W₂x + b₂)``.

    Args:
        x: (P, F); without a copy, if the positions are its last axis in memory.
        weight: (N, F).
        bias: (N,).
        gated: Whether N is 2D.

    Returns:
        (P, D), contiguous.
    """
    save = torch.is_grad_enabled() and any(t.requires_grad for t in (x, weight, bias))
    return linear_of_halves(x, weight, bias, LinearOptions(gated, save))[0]


def _forward(x: Tensor, weight: Tensor, bias: Tensor, options: LinearOptions) -> tuple[Tensor, Tensor]:
    """The output, and what a SavedLinear calls z; empty where it was not asked for."""
    from statespan.ops.glu._triton_float32 import forward

    y = x.t().contiguous()
    out, z = forward(y, weight.contiguous(), bias.contiguous(), gated=options.gated, save=options.save)
    return out, x.new_empty(ABSENT) if z is None else z


def _forward_fake(x: Tensor, weight: Tensor, bias: Tensor, options: LinearOptions) -> tuple[Tensor, Tensor]:
    P, N = x.shape[0], weight.shape[0]
    out = x.new_empty(P, N // 2 if options.gated else N)
    return out, x.new_empty((P, N) if options.gated and options.save else ABSENT)


def _backward(saved: SavedLinear, dout: Tensor, gated: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, the weight and the bias; that of x has its positions as the last axis in memory."""
    from statespan.ops.glu._triton_float32 import backward

    x, weight, z = saved
    dy, dweight, dbias = backward(x.t().contiguous(), weight.contiguous(), z if gated else None, dout)
    return dy.t(), dweight, dbias


def _backward_fake(saved: SavedLinear, dout: Tensor, gated: bool) -> tuple[Tensor, Tensor, Tensor]:
    (P, F), N = saved.x.shape, saved.weight.shape[0]
    return dout.new_empty(F, P).t(), dout.new_empty(N, F), dout.new_empty(N)


linear_of_halves_backward = operator("statespan::float32_linear_backward", _backward, _backward_fake)


def _save(ctx: Any, arguments: list[Any], output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, options = arguments
    ctx.save_for_backward(x, weight, bias, output[1])
    ctx.gated = options.gated
    ctx.set_materialize_grads(False)


def _gradient(ctx: Any, dout: Tensor | None, _z: Tensor | None) -> tuple[Tensor | None, ...]:
    x, weight, bias, z = ctx.saved_tensors
    if dout is None:
        return ()
    if torch.is_grad_enabled() and not traced(x):
        with no_autocast(x):
            return _differentiable_gradient((x, weight, bias), dout, ctx.gated)
    return linear_of_halves_backward(SavedLinear(x, weight, z), dout, ctx.gated)


def _differentiable_gradient(
    inputs: tuple[Tensor, Tensor, Tensor], dout: Tensor, gated: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The same in torch, for second derivatives."""
    (x, weight, bias), dz = inputs, dout
    if gated:
        a, b = torch.nn.functional.linear(x, weight, bias).chunk(2, -1)
        gate = b.sigmoid()
        dz = torch.cat((dout * gate, dout * a * gate * (1 - gate)), -1)
    return dz @ weight, dz.t() @ x, dz.sum(0)


linear_of_halves = differentiable("statespan::float32_linear", _forward, _forward_fake, save=_save, gradient=_gradient)
