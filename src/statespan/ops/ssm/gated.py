"""A whole layer on a GPU, SSM and gated linear map, as one autograd node, to reduce host overhead.

Shapes: B batch, L length, H heads, K channels, D outputs, P = B·L positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from statespan.ops.glu.operator import bias_glu
from statespan.ops.register import graph_is_kept, no_autocast, traced, transformed
from statespan.ops.ssm.apply import at_once, request_for
from statespan.ops.ssm.arguments import ModeTensors, WholeOptions
from statespan.ops.ssm.registered.whole import ssm_at_once
from statespan.ops.ssm.source import SSMSource
from statespan.ops.ssm.tiles import SIXTEEN_BITS


def apply_gated(
    source: SSMSource, u: Tensor, D: Tensor, linear: nn.Linear, *, bidirectional: bool, activation: str | None,
    dtype: torch.dtype,
) -> Tensor | None:  # fmt: skip
    """The SSM followed by ``W₁y + b₁`` gated by ``sigmoid(W₂y + b₂)``, or None if this path does not apply.

    It applies to eager training in 16 bits if the Triton kernels build the operators.

    Args:
        source: The SSM.
        u: (B, L, H).
        D: The skip (K, H).
        linear: From K·H features to 2D, with a bias.
        bidirectional: As for :func:`statespan.ops.apply`, as are the others.
        activation: "gelu" or None.
        dtype: What to compute in.

    Returns:
        (B, L, D) in ``dtype``.
    """
    if dtype not in SIXTEEN_BITS or traced(u) or transformed() or not torch.is_grad_enabled():
        return None
    request = request_for(source, u, D, bidirectional=bidirectional, gelu=activation is not None, dtype=dtype)
    found = at_once(request)
    if found is None or not found.options.save:
        return None
    return _Gated.apply(found.options, u, *found.modes, linear.weight, linear.bias)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, options: WholeOptions, u: Tensor, *parameters: Tensor | None) -> Tensor:
        from statespan.ops._triton.launcher import repeat
        from statespan.ops.glu import _triton as glu
        from statespan.ops.ssm._triton import whole

        *modes, weight, bias = parameters
        assert weight is not None
        assert bias is not None
        y, kept, narrow = repeat(whole.forward_and_narrow, (u, *modes, weight), options)
        assert y is not None
        assert narrow is not None
        z = torch.mm(y.t(), narrow.t())
        out = glu.forward(z, bias).view(*u.shape[:2], -1)
        ctx.save_for_backward(u, *modes, weight, bias, kept, y, narrow, z)
        ctx.options = options
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        u, *modes, weight, bias, kept, y, narrow, z = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _differentiably(ctx.options, (u, *modes, weight, bias), dout)
        from statespan.ops._triton.launcher import repeat
        from statespan.ops.glu import _triton as glu
        from statespan.ops.ssm._triton import whole

        options, owned = ctx.options, not graph_is_kept()
        with no_autocast(u):
            dz, dbias = glu.backward(z, bias, dout.reshape(z.shape[0], -1), in_place=owned)
            dy = torch.mm(narrow.t(), dz.t())
            dweight = _product(dz.t(), y.t(), weight.dtype) if ctx.needs_input_grad[-2] else None
            options = options._replace(owns_kept=owned)
            gradients = repeat(whole.backward, (dy, u, kept, *modes), options)
        return None, *gradients, dweight, dbias


def _differentiably(
    options: WholeOptions, tensors: tuple[Tensor | None, ...], dout: Tensor
) -> tuple[Tensor | None, ...]:
    """The same gradients from separate autograd functions, each of which rejects second derivatives itself."""
    u, *modes, weight, bias = tensors
    assert u is not None
    assert weight is not None
    assert bias is not None
    wanted = [x for x in tensors if x is not None and x.requires_grad]
    with no_autocast(u):
        y = ssm_at_once(u, ModeTensors(*modes), options)  # type: ignore[arg-type]
        x = y.permute(2, 3, 0, 1).flatten(2).flatten(0, 1).t()
        out = bias_glu(torch.mm(x, weight.to(x.dtype).t()), bias).view(*u.shape[:2], -1)
        found = iter(torch.autograd.grad(out, wanted, dout, create_graph=True))
    return None, *(next(found) if x is not None and x.requires_grad else None for x in tensors)


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """The product of 16-bit matrices in this dtype, rounded once."""
    if dtype == torch.float32 and a.is_cuda:
        return torch.mm(a, b, out_dtype=dtype)
    return torch.mm(a, b).to(dtype)
