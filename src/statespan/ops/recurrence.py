"""``statespan::recurrence``: a diagonal plus rank-one SSM from its parameters, step by step, as an operator of torch.

It has no operators of chunks in between, and nothing but its inputs to save; for large states on a GPU.

Shapes: H heads, S sets of modes that the heads share in turn, M modes, B batch, L length, N = 2M, K channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statespan.ops.register import differentiable, no_autocast, operator

_NONE = 0  # length of the empty tensor that stands for an output nobody asked for


def _recurrence(
    u: Tensor, dt: Tensor, decay: Tensor, freq: Tensor, B: Tensor, C: Tensor, P: Tensor, D: Tensor | None,
    first: Tensor | None, ahead: int, real_part: str, log_dt: bool, last: bool, dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Y (K, H, B, L) and, where asked, the state after the last sample (H, B, N) in float64; empty otherwise.

    Args:
        u: (H, B, L), in any memory order.
        dt: The parameters; see :class:`statespan.ops._triton.build.Modes`.
        decay: (S, M).
        freq: (S, M).
        B: (S, M, 2).
        C: (K, H, M, 2); with ``ahead`` that many more channels, which look ahead and add to the first.
        P: (S, M, 2).
        D: The skip (K, H), or None.
        first: The state before the first sample (H, B, N), or None for zeros.
        ahead: 0 or K.
        real_part: How ``decay`` becomes Re A.
        log_dt: Whether ``dt`` is log Δ.
        last: Whether to return the state.
        dtype: Of y.
    """
    from statespan.ops._triton import build, recurrence
    from statespan.ops._triton.transpose import lengthwise

    modes = build.Modes(dt, decay, freq, B, C, D, P)
    y, end = recurrence.forward(modes, recurrence.Walk(ahead, real_part, log_dt), lengthwise(u, dtype), first, last)
    return y, u.new_empty(_NONE, dtype=torch.float64) if end is None else end


def _recurrence_fake(
    u: Tensor, dt: Tensor, decay: Tensor, freq: Tensor, B: Tensor, C: Tensor, P: Tensor, D: Tensor | None,
    first: Tensor | None, ahead: int, real_part: str, log_dt: bool, last: bool, dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    H, batch, L = u.shape
    end = u.new_empty((H, batch, 2 * decay.shape[1]) if last else (_NONE,), dtype=torch.float64)
    return u.new_empty(C.shape[0] - ahead, H, batch, L, dtype=dtype), end


def _recurrence_backward(
    u: Tensor, dt: Tensor, decay: Tensor, freq: Tensor, B: Tensor, C: Tensor, P: Tensor, D: Tensor | None,
    first: Tensor | None, dy: Tensor, dlast: Tensor | None, ahead: int, real_part: str, log_dt: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of u, dt, decay, freq, B, C, P, D and the first state; the last two empty where there was none."""
    from statespan.ops._triton import build, recurrence
    from statespan.ops._triton.transpose import lengthwise, like

    modes = build.Modes(dt, decay, freq, B, C, D, P)
    x, dy = lengthwise(u, dtype), lengthwise(dy.reshape(-1, *u.shape[1:]), dtype)
    found = recurrence.backward(modes, recurrence.Walk(ahead, real_part, log_dt), x, dy, first, dlast)
    dD = dt.new_empty(_NONE) if found.D is None else found.D
    dfirst = dt.new_empty(_NONE) if found.first is None or first is None else found.first.to(first.dtype)
    return like(found.u, u), found.dt, found.decay, found.freq, found.B, found.C, found.P, dD, dfirst


def _recurrence_backward_fake(
    u: Tensor, dt: Tensor, decay: Tensor, freq: Tensor, B: Tensor, C: Tensor, P: Tensor, D: Tensor | None,
    first: Tensor | None, dy: Tensor, dlast: Tensor | None, ahead: int, real_part: str, log_dt: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    H, batch, L = u.shape
    features_last = u.stride(0) == 1 and u.stride(2) != 1
    du = u.new_empty(batch, L, H).permute(2, 0, 1) if features_last else u.new_empty(u.shape)
    rest = [dt.new_empty(_NONE) if x is None else x.new_empty(x.shape) for x in (D, first)]
    return (du, *(x.new_empty(x.shape) for x in (dt, decay, freq, B, C, P)), *rest)  # type: ignore[return-value]


recurrence_backward = operator(
    "statespan::recurrence_backward", _recurrence_backward, _recurrence_backward_fake,
    ((0, 0, 0, 0, 0, 1, 0, 1, 0, 1, 0), (0, 0, 0, 0, 0, 1, 0, 1, 0)),
)  # fmt: skip


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ahead, real_part, log_dt, last, dtype = inputs
    ctx.save_for_backward(*tensors)
    ctx.last, ctx.settings = last, (ahead, real_part, log_dt, dtype)
    ctx.set_materialize_grads(False)


def _gradient(ctx: Any, dy: Tensor | None, dlast: Tensor | None) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors
    u, C, D, first = tensors[0], tensors[5], tensors[7], tensors[8]
    ahead, _, _, dtype = ctx.settings
    if dy is None:
        dy = u.new_zeros(C.shape[0] - ahead, *u.shape, dtype=dtype)
    with no_autocast(u):
        found = recurrence_backward(*tensors, dy, dlast if ctx.last else None, *ctx.settings)
    *found, dD, dfirst = found
    return (*found, None if D is None else dD, None if first is None else dfirst, None, None, None, None, None)


recurrence = differentiable(
    "statespan::recurrence", _recurrence, _recurrence_fake, _save, _gradient, ((0, 0, 0, 0, 0, 1, 0, 1, 0), (1, 0))
)
