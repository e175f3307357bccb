"""``statespan::ssm``: builds the operators of a modal SSM on a GPU and applies them, in one step.

The separate steps (:mod:`.modes`, :mod:`.chunks`) handle the other cases: initial and final states, a first-order hold,
``torch.func``, and operators that are built in torch.

Shapes: B batch, L length, H heads, K channels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from statespan.ops.register import ABSENT, differentiable, exporting, graph_is_kept, is_known, operator, traced
from statespan.ops.ssm.arguments import ModeTensors, WholeOptions, WholeParts
from statespan.ops.ssm.tiles import SIXTEEN_BITS


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


class Arriving(NamedTuple):
    """The gradient of y, and the input.

    Example:
        >>> arriving = Arriving(dy=torch.zeros(2, 100, 1, 4), u=torch.zeros(2, 100, 4))
        >>> arriving.dy.shape[:2] == arriving.u.shape[:2]
        True
    """

    dy: Tensor
    u: Tensor


def _backward(arriving: Arriving, kept: Tensor, modes: ModeTensors, options: WholeOptions) -> _Gradients:
    """The gradients of u, dt, decay, freq, B, C, D and P; empty for absent ones."""
    found = _overwriting(arriving, kept, modes, options)
    return tuple(modes.dt.new_empty(ABSENT) if x is None else x for x in found)  # type: ignore[return-value]


def _overwriting(arriving: Arriving, kept: Tensor, modes: ModeTensors, options: WholeOptions) -> Any:
    """The same with None for absent ones; with ``owns_kept`` it overwrites ``kept``, which an operator must not do."""
    from statespan.ops._triton.launcher import repeat
    from statespan.ops.ssm._triton import whole

    return repeat(whole.backward, (*arriving, kept, *modes), options)


def _backward_fake(arriving: Arriving, kept: Tensor, modes: ModeTensors, options: WholeOptions) -> _Gradients:
    u = arriving.u
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


def _arriving(dy: Tensor | None, u: Tensor, modes: ModeTensors, options: WholeOptions) -> Arriving:
    """With zeros for a gradient that is None."""
    if dy is None:
        dy = u.new_zeros(modes.C.shape[0] - options.ahead, *u.shape, dtype=options.dtype).permute(1, 2, 0, 3)
    return Arriving(dy, u)


def _gradient(ctx: Any, dy: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    u, kept, *parameters = ctx.saved_tensors
    modes, options = ModeTensors(*parameters), ctx.options
    arriving = _arriving(dy, u, modes, options)
    owns_kept = not (torch.is_grad_enabled() or traced(u) or graph_is_kept())
    if owns_kept:
        return tuple(_overwriting(arriving, kept, modes, options._replace(owns_kept=True)))
    found = ssm_backward(arriving, kept, modes, options)
    return tuple(None if x is None else dx for x, dx in zip((u, *modes), found))


ssm = differentiable("statespan::ssm", _forward, _fake, save=_save, gradient=_gradient)


_Parts = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _forward_in_parts(u: Tensor, modes: ModeTensors, options: WholeOptions) -> _Parts:
    """Return y and the fields of ``WholeParts``."""
    from statespan.ops.ssm._triton import whole

    return whole.forward_in_parts(u, modes, options)  # type: ignore[return-value]


def _fake_in_parts(u: Tensor, modes: ModeTensors, options: WholeOptions) -> _Parts:
    from statespan.ops.ssm._triton import whole

    y, _ = _fake(u, modes, options._replace(save=False))
    parts = [u.new_empty(part.shape, dtype=part.dtype) for part in whole.room_for(u, modes, options)]
    return (y, *parts)  # type: ignore[return-value]


def _backward_in_parts(arriving: Arriving, parts: WholeParts, modes: ModeTensors, options: WholeOptions) -> _Gradients:
    from statespan.ops.ssm._triton import whole

    found = whole.backward_in_parts(arriving, parts, modes, options)
    return tuple(modes.dt.new_empty(ABSENT) if x is None else x for x in found)  # type: ignore[return-value]


def _backward_fake_in_parts(
    arriving: Arriving, parts: WholeParts, modes: ModeTensors, options: WholeOptions
) -> _Gradients:
    return _backward_fake(arriving, parts.x, modes, options)


ssm_in_parts_backward = operator(
    "statespan::ssm_in_parts_backward", _backward_in_parts, _backward_fake_in_parts, visible=True
)


def _save_parts(ctx: Any, arguments: list[Any], output: _Parts) -> None:
    u, modes, ctx.options = arguments
    _, *parts = output
    ctx.mark_non_differentiable(*parts)
    ctx.save_for_backward(u, *parts, *modes)
    ctx.set_materialize_grads(False)


def _gradient_in_parts(ctx: Any, dy: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    u, *saved = ctx.saved_tensors
    count, options = len(WholeParts._fields), ctx.options
    parts, modes = WholeParts(*saved[:count]), ModeTensors(*saved[count:])
    found = ssm_in_parts_backward(_arriving(dy, u, modes, options), parts, modes, options)
    return tuple(None if x is None else dx for x, dx in zip((u, *modes), found))


ssm_in_parts = differentiable(
    "statespan::ssm_in_parts", _forward_in_parts, _fake_in_parts, save=_save_parts, gradient=_gradient_in_parts,
    visible=True,
)  # fmt: skip


def ssm_at_once(u: Tensor, modes: ModeTensors, options: WholeOptions) -> Tensor:
    """Return y (B, L, K, H), with the length as its last axis in memory.

    With static shapes, a compiler sees the 16-bit kernels. With dynamic shapes, and for exports, the operator is
    opaque: the kernels' tiles depend on the sizes.
    """
    shown = options.dtype in SIXTEEN_BITS and not options.factored
    if shown and u.is_cuda and traced(u) and not exporting() and is_known(u.numel()):
        return ssm_in_parts(u, modes, options)[0]
    return ssm(u, modes, options)[0]
