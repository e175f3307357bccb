"""``statespan::modes``: builds the operators of a chunk on a GPU from the parameters of a modal SSM.

Shapes: H heads, M modes, N = 2M, c chunk, K channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statespan.ops.register import ABSENT, differentiable, no_autocast, operator
from statespan.ops.ssm.arguments import BuildOptions, BuiltLists, ChunkOperators, ModeTensors


def _forward(modes: ModeTensors, options: BuildOptions) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """K, E, G, O and W, the factors of a low-rank G.

    Beside a diagonal G, W is its low-rank part (``factored``); beside a dense one it is for the backward pass alone. It
    is empty without a low-rank part.
    """
    from statespan.ops.ssm._triton import build

    *operators, W = build.forward(modes, options)
    return (*operators, modes.dt.new_empty(ABSENT) if W is None else W)  # type: ignore[return-value]


def _fake(modes: ModeTensors, options: BuildOptions) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    C, P, chunk = modes.C, modes.P, options.chunk
    channels, H, M, _ = C.shape
    N, dtype = 2 * M, torch.float64 if options.precise else torch.float32
    lists = torch.float32 if options.rounded else dtype
    K, E, O = (C.new_empty(s, dtype=lists) for s in ((channels, H, chunk), (H, chunk, N), (channels, H, chunk, N)))  # noqa: E741
    G = C.new_empty((H, N) if P is None or options.factored else (H, N, N), dtype=dtype)
    if P is None:
        return K, E, G, O, modes.dt.new_empty(ABSENT)
    return K, E, G, O, C.new_empty(2, H, P.shape[0] * chunk, N, dtype=dtype)


def _backward(
    arriving: ChunkOperators, modes: ModeTensors, built: BuiltLists, options: BuildOptions
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of dt, decay, freq, B, C and P (empty without one)."""
    from statespan.ops.ssm._triton import build

    dt, decay, freq, B, C, _, P = build.backward(arriving, modes, built, options)
    return dt, decay, freq, B, C, modes.dt.new_empty(ABSENT) if P is None else P


def _backward_fake(
    arriving: ChunkOperators, modes: ModeTensors, built: BuiltLists, options: BuildOptions
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    last = modes.dt.new_empty(ABSENT) if modes.P is None else torch.empty_like(modes.P)
    return (*(torch.empty_like(x) for x in modes[:5]), last)  # type: ignore[return-value]


modes_backward = operator(
    "statespan::modes_backward", _backward, _backward_fake,
    ((1, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 0, 1, 1), (0, 0, 0, 0, 1, 1)),
)  # fmt: skip


def _save(ctx: Any, arguments: list[Any], output: tuple[Tensor, ...]) -> None:
    modes, ctx.options = arguments
    _, E, _, O, W = output  # noqa: E741
    ctx.skip = None if modes.D is None else (modes.D.shape, modes.D.dtype)
    built = (W, W, W) if modes.P is None else (E, O, W)  # a diagonal SSM recomputes its tables
    ctx.save_for_backward(*modes[:5], modes.P, *built)


def _gradient(ctx: Any, *arriving: Tensor) -> tuple[Tensor | None, ...]:
    *parameters, P, E, O, W = ctx.saved_tensors  # noqa: E741
    dK, dE, dG, dO, dW = arriving
    doperators = ChunkOperators(dK, dE, dG, dO, dW if ctx.options.factored else None)
    with no_autocast(dK):
        dt, decay, freq, B, C = parameters
        modes = ModeTensors(dt, decay, freq, B, C, None, P)
        *gradients, dP = modes_backward(doperators, modes, BuiltLists(E, O, W), ctx.options)
    dD = None
    if ctx.skip is not None:
        shape, dtype = ctx.skip
        dD = dK[: shape[0], :, 0].to(dtype)
    return *gradients, dD, None if P is None else dP


modes = differentiable(
    "statespan::modes", _forward, _fake, save=_save, gradient=_gradient,
    heads=((0, 0, 0, 0, 1, 1, 1), (1, 0, 0, 1, 1)),
)  # fmt: skip
