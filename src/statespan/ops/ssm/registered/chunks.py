"""``statespan::chunks``: applies the operators of one chunk to whole sequences.

Which implementation runs is an option, which :mod:`statespan.ops.dispatch` alone decides.

Shapes: H heads, B batch, L length, I chunks of c samples, N state size, K channels (2K kernels with ``both``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statespan.ops.register import ABSENT, differentiable, graph_is_kept, no_autocast, operator, traced, transformed
from statespan.ops.ssm import chunks as plain
from statespan.ops.ssm.arguments import ChunkOperators, ChunkOptions, OutputGradients, SavedChunks, Sequences


def _channels(operators: ChunkOperators, both: bool) -> int:
    count = operators.K.shape[0]
    return count // 2 if both else count


def _forward(
    inputs: Sequences, operators: ChunkOperators, options: ChunkOptions
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Apply the operators to all chunks.

    Returns:
        y (K, H, B, L); the state after all whole chunks (H, B, N) in float64; the states before each chunk, causal and
        anti-causal (H, B·I·N): flat, for a tracer guards against every axis of length 1; and the pre-activation, like
        y. All but y are empty where they were not asked for.
    """
    (u, first), dtype, both = inputs, options.dtype, options.both
    H, B, L = u.shape
    if options.path == "triton":
        from statespan.ops._triton.transpose import lengthwise
        from statespan.ops.ssm._triton import launch

        inputs = Sequences(lengthwise(u, dtype), first)
        y, end, saved = launch.forward(launch.launch_plan(inputs.u, operators, both=both), inputs, operators, options)
        y = y.view(_channels(operators, both), H, B, L)
        _, states, ahead, preactivation = saved
        preactivation = preactivation.view_as(y) if preactivation.numel() else preactivation
    else:
        assert operators.W is None, "only the kernels apply a low-rank G by its factors"
        K, E, G, O, _ = operators  # noqa: E741
        cast = ChunkOperators(K.to(dtype), E.to(dtype), G, O.to(dtype))
        y, end, states, ahead = plain.forward(u.to(dtype), cast, first, both=both)
        states, ahead = (x.view(H, B, -1, E.shape[2]) if x.numel() else x for x in (states, ahead))
        y, end, preactivation = y.contiguous(), end.clone(), u.new_empty(ABSENT, dtype=dtype)
        if options.gelu:
            y = torch.nn.functional.gelu(y)
    empty, save = y.new_empty(ABSENT), options.save
    state = end.double() if options.last and end is not None else y.new_empty(ABSENT, dtype=torch.float64)
    states, ahead = states.flatten(1) if save else empty, ahead.flatten(1) if save and both else empty.clone()
    return y, state, states, ahead, preactivation


def _fake(
    inputs: Sequences, operators: ChunkOperators, options: ChunkOptions
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    u, dtype, both, save = inputs.u, options.dtype, options.both, options.save
    H, B, L = u.shape
    c, N = operators.E.shape[1:]
    count = (L + c - 1) // c

    def states(wanted: bool) -> Tensor:
        return u.new_empty((H, B * count * N) if wanted else ABSENT, dtype=dtype)

    end = u.new_empty((H, B, N) if options.last else ABSENT, dtype=torch.float64)
    y = u.new_empty(_channels(operators, both), H, B, L, dtype=dtype)
    kept = save and options.gelu and options.keep_preactivation and options.path == "triton"
    return y, end, states(save), states(save and both), torch.empty_like(y) if kept else y.new_empty(ABSENT)


def _backward(
    arriving: OutputGradients, saved: SavedChunks, operators: ChunkOperators, options: ChunkOptions
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of u, K, E, G, O and, if present, W and the first state; in the dtypes of the tensors.

    With ``owns_input`` u may be overwritten, which the registered operator must not do.
    """
    (dy, dlast), (u, states, ahead, preactivation), dtype, both = arriving, saved, options.dtype, options.both
    H, B, L = u.shape
    K, E, G, O, W = operators  # noqa: E741
    if options.path == "triton":
        from statespan.ops._triton.transpose import lengthwise, like
        from statespan.ops.ssm._triton import launch

        x, dy = lengthwise(u, dtype), lengthwise(dy.reshape(-1, B, L), dtype)
        shape = (H, B, -1, E.shape[2])
        cut = SavedChunks(x, states.view(shape), ahead.view(shape) if both else ahead, preactivation)
        owns_input = options.owns_input or x.data_ptr() != u.data_ptr()
        spare = x if owns_input and x.is_contiguous() else None  # it is not needed afterwards
        g = launch.launch_plan(x, operators, both=both)
        gradients = launch.backward(g, OutputGradients(dy, dlast), cut, operators, options=options, spare=spare)
        du = like(gradients.u, u)
    else:
        x, dy = u.to(dtype), dy.to(dtype)
        assert not options.gelu, "the activation's gradient is part of the kernels only"
        rows = [x.view(H, -1, E.shape[2]) if x.numel() else x for x in (states, ahead)]
        cast = ChunkOperators(K.to(dtype), E.to(dtype), G, O.to(dtype))
        outputs = plain.Outputs(dy, dy, *rows)
        gradients = plain.backward(x, OutputGradients(dy, dlast), outputs, cast, both=both, in_place=options.owns_input)
        du = gradients.u.to(u.dtype).contiguous()
    _, (dK, dE, dG, dO, dW), dfirst = gradients
    empty = u.new_empty(ABSENT, dtype=torch.float64)
    return (
        du, dK.to(K.dtype), dE.to(E.dtype), dG.to(G.dtype), dO.to(O.dtype),
        empty.clone() if dW is None or W is None else dW.to(W.dtype),
        dfirst.double() if options.has_first and dfirst is not None else empty,
    )  # fmt: skip


def _backward_fake(
    arriving: OutputGradients, saved: SavedChunks, operators: ChunkOperators, options: ChunkOptions
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    u, (*built, W) = saved.u, operators
    H, B, L = u.shape
    features_last = options.path == "triton" and u.stride(0) == 1 and u.stride(2) != 1
    du = u.new_empty(B, L, H).permute(2, 0, 1) if features_last else u.new_empty(u.shape)
    dfirst = u.new_empty((H, B, operators.E.shape[2]) if options.has_first else ABSENT, dtype=torch.float64)
    dW = u.new_empty(ABSENT, dtype=torch.float64) if W is None else W.new_empty(W.shape)
    return (du, *(torch.empty_like(x, memory_format=torch.contiguous_format) for x in built), dW, dfirst)  # type: ignore[return-value]


chunks_backward = operator(
    "statespan::chunks_backward", _backward, _backward_fake,
    ((1, 0, 0, 0, 0, 1, 1, 0, 0, 1, 1), (0, 1, 0, 0, 1, 1, 0)),
)  # fmt: skip


def _save(ctx: Any, arguments: list[Any], output: tuple[Tensor, ...]) -> None:
    (u, first), operators, options = arguments
    _, _, states, ahead, preactivation = output
    ctx.save_for_backward(u, states, ahead, preactivation, *operators)
    ctx.options = options
    ctx.first_dtype = None if first is None else first.dtype
    ctx.set_materialize_grads(False)


def _gradient(ctx: Any, dy: Tensor | None, dlast: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    u, states, ahead, preactivation, *built = ctx.saved_tensors
    operators, options, has_first = ChunkOperators(*built), ctx.options, ctx.first_dtype is not None
    if dy is None:
        dy = u.new_zeros(_channels(operators, options.both), *u.shape, dtype=options.dtype)
    arriving = OutputGradients(dy, dlast if options.last else None)
    owns_input = options.owns_input and not (torch.is_grad_enabled() or traced(u) or transformed() or graph_is_kept())
    backward = _backward if owns_input else chunks_backward
    options = options._replace(owns_input=owns_input, has_first=has_first)
    with no_autocast(u):
        gradients = backward(arriving, SavedChunks(u, states, ahead, preactivation), operators, options)
    du, *doperators, dW, dfirst = gradients
    dfirst = dfirst.to(ctx.first_dtype) if has_first else None
    return du, dfirst, *doperators, None if operators.W is None else dW


chunks = differentiable(
    "statespan::chunks", _forward, _fake, save=_save, gradient=_gradient,
    heads=((0, 0, 1, 0, 0, 1, 1), (1, 0, 0, 0, 1)),
)  # fmt: skip
