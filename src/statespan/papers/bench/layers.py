"""Forward and backward of one layer: what most benchmarks run.

Shapes: B batch, L length, D features.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
from torch import Tensor, nn

from statespan.ops import use_path
from statespan.papers.bench.case import Floor, Settings, Tensors, Work
from statespan.papers.bench.compare import in_pieces

Forward = Callable[[nn.Module, Tensor], Tensor]


def call(layer: nn.Module, x: Tensor) -> Tensor:
    """The layer's own forward pass."""
    return layer(x)


def layer_work(
    make: Callable[[], nn.Module],
    settings: Settings,
    batch: int,
    length: int,
    *,
    path: str = "auto",
    forward: Forward = call,
    reference: Forward | None = call,
) -> Work:
    """A layer's forward and backward pass with the gradients of the input and all parameters.

    Args:
        make: Makes the layer, from (B, L, D) to the same.
        settings: The user's choices; half precision runs under autocast.
        batch: B.
        length: L.
        path: How an SSM is applied.
        forward: What to run in place of the layer's forward pass.
        reference: What a copy of the layer in wide precision runs, on the path "fft", to compare with; or None.

    Returns:
        The work. Results and reference: "output", "input gradient" and the gradient of each parameter.
    """
    layer = make().to(settings.device, settings.parameter_dtype)
    shape = (batch, length, cast(int, layer.d_model))
    x, dy = (torch.randn(shape, device=settings.device).to(settings.dtype) for _ in range(2))

    def results(
        layer: nn.Module, x: Tensor, dy: Tensor, forward: Forward, path: str, context: AbstractContextManager[object]
    ) -> Tensors:
        with use_path(path), context:
            y = forward(layer, x.requires_grad_())
        named = {name: p for name, p in layer.named_parameters() if p.requires_grad}
        dx, *gradients = torch.autograd.grad(y, [x, *named.values()], dy.to(y.dtype))
        return {"output": y.detach(), "input gradient": dx} | {f"gradient of {n}": g for n, g in zip(named, gradients)}

    def run() -> Tensors:
        return results(layer, x, dy, forward, path, settings.autocast())

    def wanted() -> Tensors:
        wide = copy.deepcopy(layer).to(settings.wide)

        def piece(x: Tensor, dy: Tensor) -> Tensors:
            return results(wide, x, dy, reference or call, "fft", nullcontext())

        return in_pieces(piece, x.detach(), dy, settings.wide)

    parameters = sum(p.numel() for p in layer.parameters() if p.requires_grad)
    return Work(run, None if reference is None else wanted, parameters, graph=True)


def ssm_floor(settings: Settings, tokens: int, d_model: int, mixed: int) -> Floor:
    """The floor of an SSM layer's forward and backward pass, whatever its state.

    Args:
        settings: For the size of a number.
        tokens: B · L.
        d_model: D.
        mixed: Outputs of the linear map: D, or 2 D with a GLU; 0 without one.
    """
    moved = "x read twice, y and dx written, dy read"
    return Floor(
        bytes=5.0 * tokens * d_model * settings.dtype.itemsize,
        flops=6.0 * tokens * d_model * mixed,
        how=f"{moved}; three products with the mixing matrix" if mixed else moved,
    )


def attention_floor(settings: Settings, batch: int, length: int, d_model: int, inner: int, causal: bool) -> Floor:
    """The floor of an attention layer's forward and backward pass.

    Args:
        settings: For the size of a number.
        batch: B.
        length: L.
        d_model: D.
        inner: Features of all heads together.
        causal: Whether half of the weights are zero.
    """
    tokens = batch * length
    return Floor(
        bytes=5.0 * tokens * d_model * settings.dtype.itemsize,
        flops=24.0 * tokens * d_model * inner + 12.0 * tokens * length * inner / (2 if causal else 1),
        how="x read twice, y and dx written, dy read; products of the projections and of the L × L weights",
    )
