"""``statespan::recurrence``: runs a diagonal plus low-rank SSM sample by sample from its parameters.

It builds no operators of chunks and saves nothing but its inputs; for large states on a GPU.

Shapes: H heads, S sets of modes that the heads share in turn, M modes, B batch, L length, N = 2M, K channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statespan.ops.register import ABSENT, differentiable, no_autocast, operator
from statespan.ops.ssm.arguments import ModeTensors, OutputGradients, RecurrenceOptions, Sequences


def _forward(inputs: Sequences, modes: ModeTensors, options: RecurrenceOptions) -> tuple[Tensor, Tensor]:
    """Return y (K, H, B, L) and, if requested, the state after the last sample (H, B, N) in float64; empty otherwise.

    Anti-causal channels add to the causal ones in front of them.
    """
    from statespan.ops._triton.transpose import lengthwise
    from statespan.ops.ssm._triton import recurrence

    u, first = inputs
    y, end = recurrence.forward(Sequences(lengthwise(u, options.dtype), first), modes, options)
    return y, u.new_empty(ABSENT, dtype=torch.float64) if end is None else end


def _fake(inputs: Sequences, modes: ModeTensors, options: RecurrenceOptions) -> tuple[Tensor, Tensor]:
    u = inputs.u
    H, batch, L = u.shape
    end = u.new_empty((H, batch, 2 * modes.decay.shape[1]) if options.last else ABSENT, dtype=torch.float64)
    return u.new_empty(modes.C.shape[0] - options.ahead, H, batch, L, dtype=options.dtype), end


_Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _backward(
    arriving: OutputGradients, inputs: Sequences, modes: ModeTensors, options: RecurrenceOptions
) -> _Gradients:
    """The gradients of u, the first state, dt, decay, freq, B, C, D and P; empty for absent inputs."""
    from statespan.ops._triton.transpose import lengthwise, like
    from statespan.ops.ssm._triton import recurrence

    (u, first), dtype = inputs, options.dtype
    dy = lengthwise(arriving.y.reshape(-1, *u.shape[1:]), dtype)
    du, dfirst, dmodes = recurrence.backward(
        OutputGradients(dy, arriving.last), Sequences(lengthwise(u, dtype), first), modes, options
    )
    empty = modes.dt.new_empty(ABSENT)
    dfirst = empty if dfirst is None or first is None else dfirst.to(first.dtype)
    return like(du, u), dfirst, *(empty.clone() if x is None else x for x in dmodes)  # type: ignore[return-value]


def _backward_fake(
    arriving: OutputGradients, inputs: Sequences, modes: ModeTensors, options: RecurrenceOptions
) -> _Gradients:
    u = inputs.u
    H, batch, L = u.shape
    features_last = u.stride(0) == 1 and u.stride(2) != 1
    du = u.new_empty(batch, L, H).permute(2, 0, 1) if features_last else u.new_empty(u.shape)
    rest = [modes.dt.new_empty(ABSENT) if x is None else x.new_empty(x.shape) for x in (inputs.first, *modes)]
    return (du, *rest)  # type: ignore[return-value]


recurrence_backward = operator(
    "statespan::recurrence_backward", _backward, _backward_fake,
    ((1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1), (0, 0, 0, 0, 0, 0, 1, 1, 1)),
)  # fmt: skip


def _save(ctx: Any, arguments: list[Any], output: tuple[Tensor, ...]) -> None:
    inputs, modes, ctx.options = arguments
    ctx.save_for_backward(*inputs, *modes)
    ctx.set_materialize_grads(False)


def _gradient(ctx: Any, dy: Tensor | None, dlast: Tensor | None) -> tuple[Tensor | None, ...]:
    u, first, *parameters = ctx.saved_tensors
    modes, options = ModeTensors(*parameters), ctx.options
    if dy is None:
        dy = u.new_zeros(modes.C.shape[0] - options.ahead, *u.shape, dtype=options.dtype)
    arriving = OutputGradients(dy, dlast if options.last else None)
    with no_autocast(u):
        gradients = recurrence_backward(arriving, Sequences(u, first), modes, options)
    return tuple(None if x is None else dx for x, dx in zip((u, first, *modes), gradients))


recurrence = differentiable(
    "statespan::recurrence", _forward, _fake, save=_save, gradient=_gradient,
    heads=((0, 0, 0, 0, 0, 0, 1, 1, 1), (1, 0)),
)  # fmt: skip
