"""``statespan::ssm``: builds the operators of a modal SSM on a GPU and applies them, in one step.

The steps of their own (:mod:`.modes`, :mod:`.chunks`) serve what this does not: states from and to, a first-order hold,
``torch.func``, and operators that are built in torch.

Shapes: B batch, L length, H heads, K channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statespan.ops.register import ABSENT, differentiable, graph_is_kept, operator, traced
from statespan.ops.ssm.arguments import ModeTensors, SavedWhole, WholeOptions


def _forward(u: Tensor, modes: ModeTensors, options: WholeOptions) -> tuple[Tensor, Tensor]:
    """Return y (B, L, K, H), with the length as its last axis in memory, and what the backward pass needs, as bytes."""
    from statespan.ops._triton.launcher import repeat
    from statespan.ops.ssm._triton import whole

    y, kept = repeat(whole.forward, (u, *modes), options)
    assert y is not None
    return y, u.new_empty(ABSENT, dtype=torch.uint8) if kept is None else kept


def _fake(u: Tensor, modes: ModeTensors, options: WholeOptions) -> tuple[Tensor, Tensor]:
    from statespan.ops.ssm._triton import whole

    (B, L, H), channels = u.shape, modes.C.shape[0] - options.ahead
    kept = (whole.kept_bytes(u, modes, options),) if options.save else ABSENT
    y = u.new_empty(channels, H, B, L, dtype=options.dtype).permute(2, 3, 0, 1)
    return y, u.new_empty(kept, dtype=torch.uint8)


_Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _backward(dy: Tensor, saved: SavedWhole, modes: ModeTensors, options: WholeOptions) -> _Gradients:
    """The gradients of u, dt, decay, freq, B, C, D and P; empty for absent ones."""
    found = _overwriting(dy, saved, modes, options)
    return tuple(modes.dt.new_empty(ABSENT) if x is None else x for x in found)  # type: ignore[return-value]


def _overwriting(dy: Tensor, saved: SavedWhole, modes: ModeTensors, options: WholeOptions) -> Any:
    """The same with None for absent ones; with ``owns_kept`` it overwrites ``kept``, which an operator must not do."""
    from statespan.ops._triton.launcher import repeat
    from statespan.ops.ssm._triton import whole

    return repeat(whole.backward, (dy, *saved, *modes), options)


def _backward_fake(dy: Tensor, saved: SavedWhole, modes: ModeTensors, options: WholeOptions) -> _Gradients:
    u = saved.u
    B, L, H = u.shape
    features_last = u.stride(2) == 1 and u.stride(1) != 1
    du = u.new_empty(u.shape) if features_last else u.new_empty(H, B, L).permute(1, 2, 0)
    rest = [modes.dt.new_empty(ABSENT) if x is None else x.new_empty(x.shape) for x in modes]
    return (du, *rest)  # type: ignore[return-value]


ssm_backward = operator("statespan::ssm_backward", _backward, _backward_fake)


def _save(ctx: Any, arguments: list[Any], output: tuple[Tensor, Tensor]) -> None:
    u, modes, ctx.options = arguments
    kept = output[1]
    ctx.mark_non_differentiable(kept)
    ctx.save_for_backward(u, kept, *modes)
    ctx.set_materialize_grads(False)


def _gradient(ctx: Any, dy: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    u, kept, *parameters = ctx.saved_tensors
    modes, options = ModeTensors(*parameters), ctx.options
    if dy is None:
        dy = u.new_zeros(modes.C.shape[0] - options.ahead, *u.shape, dtype=options.dtype).permute(1, 2, 0, 3)
    owns_kept = not (torch.is_grad_enabled() or traced(u) or graph_is_kept())
    if owns_kept:
        return tuple(_overwriting(dy, SavedWhole(u, kept), modes, options._replace(owns_kept=True)))
    found = ssm_backward(dy, SavedWhole(u, kept), modes, options)
    return tuple(None if x is None else dx for x, dx in zip((u, *modes), found))


ssm_at_once = differentiable("statespan::ssm", _forward, _fake, save=_save, gradient=_gradient)
