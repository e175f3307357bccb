"""The chunk engine as operators of torch: known to autograd, to torch.compile, to torch.export and to fake tensors.

``statespan::chunks`` applies operators to a sequence, ``statespan::modes`` makes them from parameters on a GPU. Each has a
backward operator. Which implementation runs is an argument, decided in :mod:`statespan.ops.dispatch` alone.

Shapes: H heads, B batch, L length, I chunks of c samples, N state size, K channels (2K kernels with ``both``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statespan.ops import plain

_NONE = 0  # length of the empty tensor that stands for an output nobody asked for


@torch.library.custom_op("statespan::chunks", mutates_args=())
def chunks(
    u: Tensor, K: Tensor, E: Tensor, G: Tensor, O: Tensor, first: Tensor | None, both: bool, gelu: bool, save: bool,  # noqa: E741
    last: bool, path: str, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Apply the operators of one chunk to all chunks.

    Args:
        u: (H, B, L), L ≥ 1, in any memory order.
        K: (K or 2K, H, c).
        E: (H, c, N).
        G: (H, N) or (H, N, N), float64.
        O: (K or 2K, H, c, N).
        first: The state before the first sample (H, B, N), or None for zeros.
        both: Whether the last K channels look ahead.
        gelu: Whether to apply GELU to the output.
        save: Whether a backward pass will follow.
        last: Whether to return the state.
        path: "triton" or "chunks".
        dtype: What to compute in.

    Returns:
        y (K, H, B, L); the state after all whole chunks (H, B, N) in float64; the states before each chunk, from the left
        and from the right (H, B, I, N). The last three are empty where they were not asked for.
    """
    H, B, L = u.shape
    channels = K.shape[0] // 2 if both else K.shape[0]
    if path == "triton":
        from statespan.ops._triton import launch
        from statespan.ops._triton.transpose import lengthwise

        u = lengthwise(u, dtype)
        g = launch.grid(u, E, G, channels)
        y, end, kept = launch.forward(g, u, K, E, G, O, both=both, first=first, save=save, last=last, gelu=gelu)
        y = y.view(channels, H, B, L)
        states, ahead = kept if kept is not None else (u.new_empty(_NONE), u.new_empty(_NONE))
    else:
        result = plain.forward(u.to(dtype), *(x.to(dtype) for x in (K, E)), G, O.to(dtype), first, both=both)
        y, end, states, ahead = result
        y, end = y.contiguous(), end.clone()
        if gelu:
            y = torch.nn.functional.gelu(y)
    empty = y.new_empty(_NONE)
    state = end.double() if last and end is not None else y.new_empty(_NONE, dtype=torch.float64)
    return y, state, states if save else empty, ahead if save and both else empty.clone()


@chunks.register_fake
def _(
    u: Tensor, K: Tensor, E: Tensor, G: Tensor, O: Tensor, first: Tensor | None, both: bool, gelu: bool, save: bool,  # noqa: E741
    last: bool, path: str, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    H, B, L = u.shape
    c, N = E.shape[1:]
    channels = K.shape[0] // 2 if both else K.shape[0]
    count = (L + c - 1) // c

    def states(wanted: bool) -> Tensor:
        return u.new_empty((H, B, count, N) if wanted else (_NONE,), dtype=dtype)

    end = u.new_empty((H, B, N) if last else (_NONE,), dtype=torch.float64)
    return u.new_empty(channels, H, B, L, dtype=dtype), end, states(save), states(save and both)


@torch.library.custom_op("statespan::chunks_backward", mutates_args=())
def chunks_backward(
    u: Tensor, dy: Tensor, dlast: Tensor | None, states: Tensor, ahead: Tensor, K: Tensor, E: Tensor, G: Tensor,
    O: Tensor, both: bool, gelu: bool, first: bool, path: str, dtype: torch.dtype,  # noqa: E741
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of u, K, E, G, O and, if there was one, the first state; each in the dtype of its tensor."""
    H, B, L = u.shape
    if path == "triton":
        from statespan.ops._triton import launch
        from statespan.ops._triton.transpose import lengthwise, like

        channels = dy.shape[0]
        dy = dy.reshape(channels * H, B, L)
        x, dy = lengthwise(u, dtype), lengthwise(dy, dtype)
        g = launch.grid(x, E, G, channels)
        kept = launch.Saved(states, ahead)
        found = launch.backward(g, x, dy, dlast, kept, K, E, G, O, both=both, first=first, gelu=gelu)
        du, dK, dE, dG, dO, dfirst = found
        du = like(du, u)
    else:
        x, dy = u.to(dtype), dy.to(dtype)
        wide = [m.to(dtype) for m in (K, E)]
        saved = plain.Result(dy, dy, states, ahead)
        du, dK, dE, dG, dO, dfirst = plain.backward(x, dy, dlast, saved, *wide, G, O.to(dtype), both=both)
        du = du.to(u.dtype).contiguous()
    empty = u.new_empty(_NONE, dtype=torch.float64)
    return (
        du, dK.to(K.dtype), dE.to(E.dtype), dG.to(G.dtype), dO.to(O.dtype),
        dfirst.double() if first and dfirst is not None else empty,
    )  # fmt: skip


@chunks_backward.register_fake
def _(
    u: Tensor, dy: Tensor, dlast: Tensor | None, states: Tensor, ahead: Tensor, K: Tensor, E: Tensor, G: Tensor,
    O: Tensor, both: bool, gelu: bool, first: bool, path: str, dtype: torch.dtype,  # noqa: E741
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    H, B, _ = u.shape
    du = torch.empty_like(u) if path == "triton" and u.stride(0) == 1 else u.new_empty(u.shape)
    dfirst = u.new_empty((H, B, E.shape[2]) if first else (_NONE,), dtype=torch.float64)
    return (du, *(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (K, E, G, O)), dfirst)  # type: ignore[return-value]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    u, K, E, G, O, first, both, gelu, _save, last, path, dtype = inputs  # noqa: E741
    _, _, states, ahead = output
    ctx.save_for_backward(u, states, ahead, K, E, G, O)
    ctx.settings = both, gelu, first is not None, path, dtype
    ctx.last = last
    ctx.first_dtype = None if first is None else first.dtype
    ctx.set_materialize_grads(False)


def _chunks_grad(ctx: Any, dy: Tensor | None, dlast: Tensor | None, _s: Any, _a: Any) -> tuple[Tensor | None, ...]:
    u, states, ahead, K, E, G, O = ctx.saved_tensors  # noqa: E741
    both, gelu, first, path, dtype = ctx.settings
    if dy is None:
        dy = u.new_zeros(K.shape[0] // 2 if both else K.shape[0], *u.shape, dtype=dtype)
    if not ctx.last:
        dlast = None
    found = torch.ops.statespan.chunks_backward(
        u, dy, dlast, states, ahead, K, E, G, O, both, gelu, first, path, dtype
    )  # fmt: skip
    dfirst = found[5].to(ctx.first_dtype) if first else None
    return (*found[:5], dfirst, None, None, None, None, None, None)


torch.library.register_autograd("statespan::chunks", _chunks_grad, setup_context=_save)


@torch.library.custom_op("statespan::modes", mutates_args=())
def modes(
    dt: Tensor, decay: Tensor, freq: Tensor, B: Tensor, C: Tensor, D: Tensor | None, P: Tensor | None, chunk: int,
    ahead: int, rate: float, rule: str, real_part: str, log_dt: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """K, E, G and O of a modal SSM from its parameters; see :class:`statespan.ops._triton.build.Modes`.

    The last two results are what a rank-one part needs for its backward pass, empty without one.
    """
    from statespan.ops._triton import build

    settings = build.Settings(chunk, ahead, rate, rule, real_part, log_dt)
    found = build.forward(build.Modes(dt, decay, freq, B, C, D, P), settings, torch.float32)
    return found if P is not None else (*found, dt.new_empty(_NONE), dt.new_empty(_NONE))  # type: ignore[return-value]


@modes.register_fake
def _(
    dt: Tensor, decay: Tensor, freq: Tensor, B: Tensor, C: Tensor, D: Tensor | None, P: Tensor | None, chunk: int,
    ahead: int, rate: float, rule: str, real_part: str, log_dt: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    channels, H, M, _ = C.shape
    N, f4, f8 = 2 * M, {"dtype": torch.float32}, {"dtype": torch.float64}
    K, E, O = C.new_empty(channels, H, chunk, **f4), C.new_empty(H, chunk, N, **f4), C.new_empty(channels, H, chunk, N, **f4)  # noqa: E501, E741
    if P is None:
        return K, E, C.new_empty(H, N, **f8), O, dt.new_empty(_NONE), dt.new_empty(_NONE)
    return K, E, C.new_empty(H, N, N, **f8), O, C.new_empty(H, N, chunk, **f8), C.new_empty(H, chunk, N, **f8)


@torch.library.custom_op("statespan::modes_backward", mutates_args=())
def modes_backward(
    dt: Tensor, decay: Tensor, freq: Tensor, B: Tensor, C: Tensor, P: Tensor | None, E: Tensor, O: Tensor, F: Tensor,  # noqa: E741
    J: Tensor, dK: Tensor, dE: Tensor, dG: Tensor, dO: Tensor, chunk: int, ahead: int, rate: float, rule: str,
    real_part: str, log_dt: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of dt, decay, freq, B, C and P (empty without one)."""
    from statespan.ops._triton import build

    settings = build.Settings(chunk, ahead, rate, rule, real_part, log_dt)
    kept = () if P is None else (E, O, F, J)
    found = build.backward(build.Modes(dt, decay, freq, B, C, None, P), settings, kept, dK, dE, dG, dO)
    return found if P is not None else (*found, dt.new_empty(_NONE))  # type: ignore[return-value]


@modes_backward.register_fake
def _(
    dt: Tensor, decay: Tensor, freq: Tensor, B: Tensor, C: Tensor, P: Tensor | None, E: Tensor, O: Tensor, F: Tensor,  # noqa: E741
    J: Tensor, dK: Tensor, dE: Tensor, dG: Tensor, dO: Tensor, chunk: int, ahead: int, rate: float, rule: str,
    real_part: str, log_dt: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    last = dt.new_empty(_NONE) if P is None else torch.empty_like(P)
    return (*(torch.empty_like(x) for x in (dt, decay, freq, B, C)), last)  # type: ignore[return-value]


def _save_modes(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    dt, decay, freq, B, C, D, P, *settings = inputs
    _, E, _, O, F, J = output  # noqa: E741
    ctx.has_P, ctx.D = P is not None, None if D is None else (D.shape, D.dtype)
    keep = (E, O, F, J) if ctx.has_P else (F, F, F, J)  # a diagonal SSM makes its tables again
    ctx.save_for_backward(dt, decay, freq, B, C, P, *keep)
    ctx.settings = settings


def _modes_grad(
    ctx: Any, dK: Tensor, dE: Tensor, dG: Tensor, dO: Tensor, _f: Any, _j: Any
) -> tuple[Tensor | None, ...]:
    found = torch.ops.statespan.modes_backward(*ctx.saved_tensors, dK, dE, dG, dO, *ctx.settings)
    dD = None
    if ctx.D is not None:
        shape, dtype = ctx.D
        dD = dK[: shape[0], :, 0].to(dtype)
    return (*found[:5], dD, found[5] if ctx.has_P else None, *[None] * len(ctx.settings))


torch.library.register_autograd("statespan::modes", _modes_grad, setup_context=_save_modes)
