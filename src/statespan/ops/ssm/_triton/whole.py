"""A whole SSM, from its parameters to its outputs and back, in two passes that are recorded and replayed.

Both are functions of tensors and options for :func:`statespan.ops._triton.launcher.repeat`. The forward pass keeps what
the backward pass needs in one workspace of bytes: the input in the engine's order, the operators and the states.

Shapes: B batch, L length, H heads, K channels, V = K·H virtual heads, N state size, c chunk.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from statespan.ops._triton.launcher import Region, Tensors, cut, empty
from statespan.ops._triton.transpose import lengthwise_into, like, narrowed
from statespan.ops.ssm._triton import build, launch
from statespan.ops.ssm.arguments import (
    BuildOptions,
    BuiltLists,
    ChunkOperators,
    ChunkOptions,
    ModeTensors,
    OutputGradients,
    SavedChunks,
    Sequences,
    WholeOptions,
    WholeParts,
)


class Kept(NamedTuple):
    """What the forward pass keeps."""

    x: Tensor
    """The input (H, B, L) in the engine's order and dtype; empty if it already has them."""
    operators: ChunkOperators
    states: Tensor
    ahead: Tensor
    preactivation: Tensor


class _Setting(NamedTuple):
    """What both passes derive from their arguments before any launch."""

    is_copied: bool
    """Whether the input must be copied into the engine's order."""
    building: BuildOptions
    applying: ChunkOptions
    plan: launch.LaunchPlan
    """Without its tiles."""
    parts: list[Region]
    """Of the workspace."""


def _setting(u: Tensor, modes: ModeTensors, options: WholeOptions) -> _Setting:
    (B, L, H), (kernels, _, M, _) = u.shape, modes.C.shape
    dtype, both = options.dtype, options.ahead > 0
    building = BuildOptions._make(options[: len(BuildOptions._fields)])
    applying = ChunkOptions(
        "triton", dtype, both, options.gelu, options.save, keep_preactivation=options.keep_preactivation
    )
    operators = build.room_for(modes, building)
    dense = modes.P is not None and not options.factored
    plan = launch.LaunchPlan(
        H, (kernels - options.ahead) * H, B, L, 2 * M, options.chunk, dense, options.factored, dtype
    )
    is_copied = not (u.dtype == dtype and u.stride(1) == 1)
    copy = Region((H, B, L) if is_copied else (0,), dtype)
    return _Setting(is_copied, building, applying, plan, [copy, *operators, *launch.room_for(plan, applying)[1:]])


def _kept(workspace: Tensor, parts: list[Region]) -> Kept:
    x, K, E, G, O, W, *rest = cut(workspace, parts)  # noqa: E741
    return Kept(x, ChunkOperators(K, E, G, O, W), *rest)


def kept_bytes(u: Tensor, modes: ModeTensors, options: WholeOptions) -> int:
    """The size of the workspace, also for a tracer."""
    return sum(part.bytes for part in _setting(u, modes, options).parts)


def room_for(u: Tensor, modes: ModeTensors, options: WholeOptions) -> list[Region]:
    """The shapes of :class:`~statespan.ops.ssm.arguments.WholeParts`."""
    x, K, E, G, O, W, *rest = _setting(u, modes, options).parts  # noqa: E741
    half = W._replace(shape=W.shape[1:] or W.shape)
    return [x, K, E, G, O, half, half, *rest]


def forward(tensors: Tensors, options: WholeOptions) -> Tensors:
    """Return y (B, L, K, H), with the length as its last axis in memory, and the workspace if it is to be saved.

    Args:
        tensors: u (B, L, H), then the fields of :class:`~statespan.ops.ssm.arguments.ModeTensors`.
        options: How to build and apply the operators.
    """
    u, *parameters = tensors
    assert u is not None
    modes = ModeTensors(*parameters)  # type: ignore[arg-type]
    setting = _setting(u, modes, options)
    workspace = empty((sum(part.bytes for part in setting.parts),), torch.uint8, u.device)
    y = _forward(u, modes, options, _kept(workspace, setting.parts))
    return y, workspace if options.save else None


def forward_in_parts(u: Tensor, modes: ModeTensors, options: WholeOptions) -> tuple[Tensor, ...]:
    """Return y and the fields of :class:`~statespan.ops.ssm.arguments.WholeParts`."""
    x, K, E, G, O, *W, states, ahead, pre = parts = [  # noqa: E741
        empty(*part, u.device) for part in room_for(u, modes, options)
    ]
    y = _forward(u, modes, options, Kept(x, ChunkOperators(K, E, G, O, W), states, ahead, pre))  # type: ignore[arg-type]
    return y, *parts


def _forward(given: Tensor, modes: ModeTensors, options: WholeOptions, kept: Kept) -> Tensor:
    setting, u = _setting(given, modes, options), given.permute(2, 0, 1)
    plan = launch.with_tiles(setting.plan, u.device, both=setting.applying.both)
    x = lengthwise_into(kept.x, u) if setting.is_copied else u
    operators = build.forward(modes, setting.building, room=kept.operators)
    operators = operators if options.factored else operators._replace(W=None)
    y = empty((plan.V, plan.B, plan.L), options.dtype, u.device)
    room = launch.Room(y, kept.states, kept.ahead, kept.preactivation)
    launch.forward(plan, Sequences(x), operators, setting.applying, room=room)
    return y.view(-1, *u.shape).permute(2, 3, 0, 1)


def forward_and_narrow(tensors: Tensors, options: WholeOptions) -> Tensors:
    """The same with y as a matrix (K·H, B·L), and the last tensor, a matrix, in the dtype of y."""
    *rest, weight = tensors
    assert weight is not None
    y, kept = forward(rest, options)
    assert y is not None
    B, L, channels, H = y.shape
    return y.permute(2, 3, 0, 1).view(channels * H, B * L), kept, narrowed(weight, options.dtype)


def backward(tensors: Tensors, options: WholeOptions) -> Tensors:
    """Return the gradients of u and of the parameters, in the order of ``ModeTensors``; None for absent ones.

    Args:
        tensors: The gradient of y, (B, L, K, H) or as a matrix (K·H, B·L), u, the workspace, and the parameters.
        options: Those of the forward pass; with ``owns_kept`` the workspace may be overwritten.
    """
    dy, u, workspace, *parameters = tensors
    assert dy is not None
    assert u is not None
    assert workspace is not None
    modes = ModeTensors(*parameters)  # type: ignore[arg-type]
    return _backward(dy, u, modes, options, _kept(workspace, _setting(u, modes, options).parts))


def backward_in_parts(
    arriving: tuple[Tensor, Tensor], parts: WholeParts, modes: ModeTensors, options: WholeOptions
) -> Tensors:
    """The same gradients, from that of y, and u."""
    (dy, u), (x, K, E, G, O, *W, states, ahead, pre) = arriving, parts  # noqa: E741
    return _backward(dy, u, modes, options, Kept(x, ChunkOperators(K, E, G, O, W), states, ahead, pre))  # type: ignore[arg-type]


def _backward(dy: Tensor, given: Tensor, modes: ModeTensors, options: WholeOptions, kept: Kept) -> Tensors:
    setting, u = _setting(given, modes, options), given.permute(2, 0, 1)
    plan = launch.with_tiles(setting.plan, u.device, both=setting.applying.both)
    x = kept.x if setting.is_copied else u
    dy = dy.view(plan.V, plan.B, plan.L) if dy.ndim == 2 else dy.permute(2, 3, 0, 1).reshape(plan.V, plan.B, plan.L)
    if not (dy.dtype == options.dtype and dy.stride(2) == 1):
        dy = lengthwise_into(empty(dy.shape, options.dtype, dy.device), dy)
    operators = kept.operators if options.factored else kept.operators._replace(W=None)
    dD = None if modes.D is None else empty(modes.D.shape, modes.D.dtype, u.device)
    gradients = launch.backward(
        plan, OutputGradients(dy, None), SavedChunks(x, kept.states, kept.ahead, kept.preactivation), operators,
        options=setting.applying, spare=kept.x if setting.is_copied and options.owns_kept else None, dD=dD,
    )  # fmt: skip
    _, E, _, O, W = kept.operators  # noqa: E741
    assert W is not None
    found = build.backward(gradients.operators, modes, BuiltLists(E, O, W), setting.building)
    return like(gradients.u, u).permute(1, 2, 0), *found._replace(D=dD)
