"""Forward and backward pass of one layer, the work of most benchmarks.

Shapes: B batch, L length, D features.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from statespan import S4, S4D
from statespan.ops import use_path
from statespan.papers.bench.case import BenchOptions, Floor, Tensors, Work, count_parameters

KINDS = {"S4D": S4D, "S4": S4}
Forward = Callable[[nn.Module, Tensor], Tensor]
OWN_FORWARD: Forward = nn.Module.__call__
PIECE = 1 << 25
"""Input elements that a reference processes at a time."""


def paths(device: torch.device) -> tuple[str, ...]:
    """The paths of the library for applying an SSM to a sequence on this kind of device."""
    return ("triton", "chunks", "fft") if device.type == "cuda" else ("chunks", "fft")


def layer_work(
    make: Callable[[], nn.Module],
    options: BenchOptions,
    batch: int,
    length: int,
    *,
    path: str = "auto",
    forward: Forward = OWN_FORWARD,
    compared: bool = True,
) -> Work:
    """A layer's forward and backward pass with the gradients of the input and all parameters.

    ``forward`` is what to run in place of the layer's own forward pass. Unless ``compared`` is False, the reference is
    a copy of the layer in wide precision on the path "fft".
    """
    layer = make().to(options.device, options.parameter_dtype)
    shape = (batch, length, cast(int, layer.d_model))
    x, dy = (torch.randn(shape, device=options.device).to(options.dtype) for _ in range(2))

    def run() -> Tensors:
        with use_path(path), options.autocast():
            y = forward(layer, x.requires_grad_())
        return with_gradients(y, x, dy, dict(layer.named_parameters()))

    def reference() -> Tensors:
        return wide_results(copy.deepcopy(layer), x.detach(), dy, options.wide)

    return Work(run, reference if compared else None, count_parameters(layer, trained=True), graph=True)


def wide_results(layer: nn.Module, x: Tensor, dy: Tensor, dtype: torch.dtype) -> Tensors:
    """The results of a layer, which is converted to ``dtype``, on the path "fft"."""
    wide = layer.to(dtype)

    def piece(x: Tensor, dy: Tensor) -> Tensors:
        with use_path("fft"):
            y = wide(x.requires_grad_())
        return with_gradients(y, x, dy, dict(wide.named_parameters()))

    return in_pieces(piece, x, dy, dtype)


def in_pieces(results: Callable[[Tensor, Tensor], Tensors], x: Tensor, dy: Tensor, dtype: torch.dtype) -> Tensors:
    """A reference computed on a few sequences at a time, so that its memory stays small.

    ``results`` takes inputs and output gradients (B, L, D) in ``dtype``. Of what it returns, names that start with
    "gradient of" are summed over the pieces; the others have a batch dimension and are joined.
    """
    size = max(1, PIECE // max(1, x[0].numel()))
    pieces = [results(part.to(dtype, copy=True), dpart) for part, dpart in zip(x.split(size), dy.split(size))]
    return {
        name: torch.stack([piece[name] for piece in pieces]).sum(0)
        if name.startswith("gradient of")
        else torch.cat([piece[name] for piece in pieces])
        for name in pieces[0]
    }


def with_gradients(y: Tensor, x: Tensor, dy: Tensor, parameters: dict[str, Tensor]) -> Tensors:
    """The output and the gradients of the input and of each trained parameter."""
    trained = {name: p for name, p in parameters.items() if p.requires_grad}
    dx, *gradients = torch.autograd.grad(y, [x, *trained.values()], dy.to(y.dtype))
    named = {f"gradient of {name}": gradient for name, gradient in zip(trained, gradients)}
    return {"output": y.detach(), "input gradient": dx, **named}


def ssm_floor(options: BenchOptions, tokens: int, d_model: int, mixed: int) -> Floor:
    """The floor of an SSM layer's forward and backward pass, for any state size.

    There are B · L ``tokens``, and its linear map has ``mixed`` outputs: D, 2 D with a GLU, 0 without one.
    """
    moved = "x read twice, y and dx written, dy read"
    return Floor(
        bytes=5.0 * tokens * d_model * options.dtype.itemsize,
        flops=6.0 * tokens * d_model * mixed,
        how=f"{moved}; three products with the mixing matrix" if mixed else moved,
    )


def attention_floor(options: BenchOptions, batch: int, length: int, d_model: int, *, inner: int, causal: bool) -> Floor:
    """The floor of an attention layer's forward and backward pass, with heads of ``inner`` features in total."""
    tokens = batch * length
    return Floor(
        bytes=5.0 * tokens * d_model * options.dtype.itemsize,
        flops=24.0 * tokens * d_model * inner + 12.0 * tokens * length * inner / (2 if causal else 1),
        how="x read twice, y and dx written, dy read; products of the projections and of the L × L weights",
    )
