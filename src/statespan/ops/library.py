"""The chunk engine as operators of torch: known to autograd, to torch.compile, to torch.export and to fake tensors.

``statespan::chunks`` applies operators to a sequence, ``statespan::modes`` makes them from parameters on a GPU. Each
has a backward operator. Which implementation runs is an argument, decided in :mod:`statespan.ops.dispatch` alone.

Shapes: H heads, B batch, L length, I chunks of c samples, N state size, K channels (2K kernels with ``both``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statespan.ops import plain
from statespan.ops.register import differentiable, graph_is_kept, no_autocast, operator, traced, transformed

_NONE = 0  # length of the empty tensor that stands for an output nobody asked for


def _chunks(
    u: Tensor, K: Tensor, E: Tensor, G: Tensor, O: Tensor, first: Tensor | None, both: bool, gelu: bool, save: bool,  # noqa: E741
    last: bool, path: str, dtype: torch.dtype, W: Tensor | None = None, own: bool = False, keep: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Apply the operators of one chunk to all chunks.

    Args:
        u: (H, B, L), L ≥ 1, in any memory order.
        K: (K or 2K, H, c).
        E: (H, c, N).
        G: (H, N) or (H, N, N).
        O: (K or 2K, H, c, N).
        first: The state before the first sample (H, B, N), or None for zeros.
        both: Whether the last K channels look ahead.
        gelu: Whether to apply GELU to the output.
        save: Whether a backward pass will follow.
        last: Whether to return the state.
        path: "triton" or "chunks".
        dtype: What to compute in.
        W: (2, H, c, N), the factors of a low-rank part of G, with path "triton" alone; or None.
        own: Whether nobody else has u, so that its gradient may take its place.
        keep: With GELU on path "triton": whether to keep what is in front of it for the backward pass, or to compute it
            again, which one walk through sequences in one direction can do.

    Returns:
        y (K, H, B, L); the state after all whole chunks (H, B, N) in float64; the states before each chunk, from the
        left and from the right (H, B·I·N): flat, for a tracer guards against every axis of length 1; and what is in
        front of the activation, like y. All but y are empty where they were not asked for.
    """
    H, B, L = u.shape
    channels = K.shape[0] // 2 if both else K.shape[0]
    if path == "triton":
        from statespan.ops._triton import launch
        from statespan.ops._triton.transpose import lengthwise

        u = lengthwise(u, dtype)
        g = launch.grid(u, E, G, W, channels, both=both)
        y, end, kept = launch.forward(
            g, u, K, E, G, W, O, both=both, first=first, save=save, last=last, gelu=gelu, keep=keep
        )
        y = y.view(channels, H, B, L)
        states, ahead, pre = kept if kept is not None else [u.new_empty(_NONE) for _ in range(3)]
    else:
        assert W is None, "only the kernels apply a low-rank G by its factors"
        result = plain.forward(u.to(dtype), K.to(dtype), E.to(dtype), G, O.to(dtype), first, both=both)
        y, end, states, ahead = result
        states, ahead = (x.view(H, B, -1, E.shape[2]) if x.numel() else x for x in (states, ahead))
        y, end, pre = y.contiguous(), end.clone(), u.new_empty(_NONE, dtype=dtype)
        if gelu:
            y = torch.nn.functional.gelu(y)
    empty = y.new_empty(_NONE)
    state = end.double() if last and end is not None else y.new_empty(_NONE, dtype=torch.float64)
    pre = pre.view_as(y) if pre.numel() else pre
    return y, state, states.flatten(1) if save else empty, ahead.flatten(1) if save and both else empty.clone(), pre


def _chunks_fake(
    u: Tensor, K: Tensor, E: Tensor, G: Tensor, O: Tensor, first: Tensor | None, both: bool, gelu: bool, save: bool,  # noqa: E741
    last: bool, path: str, dtype: torch.dtype, W: Tensor | None = None, own: bool = False, keep: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    H, B, L = u.shape
    c, N = E.shape[1:]
    channels = K.shape[0] // 2 if both else K.shape[0]
    count = (L + c - 1) // c

    def states(wanted: bool) -> Tensor:
        return u.new_empty((H, B * count * N) if wanted else (_NONE,), dtype=dtype)

    end = u.new_empty((H, B, N) if last else (_NONE,), dtype=torch.float64)
    y = u.new_empty(channels, H, B, L, dtype=dtype)
    pre = torch.empty_like(y) if save and gelu and keep and path == "triton" else y.new_empty(_NONE)
    return y, end, states(save), states(save and both), pre


def _chunks_backward(
    u: Tensor, dy: Tensor, dlast: Tensor | None, states: Tensor, ahead: Tensor, pre: Tensor, K: Tensor, E: Tensor,
    G: Tensor, O: Tensor, both: bool, gelu: bool, first: bool, path: str, dtype: torch.dtype, W: Tensor | None = None,  # noqa: E741
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of u, K, E, G, O and, where there are some, the first state and W; in the dtypes of the tensors."""
    return _gradients(u, dy, dlast, states, ahead, pre, K, E, G, O, both, gelu, first, path, dtype, W, own=False)


def _gradients(
    u: Tensor, dy: Tensor, dlast: Tensor | None, states: Tensor, ahead: Tensor, pre: Tensor, K: Tensor, E: Tensor,
    G: Tensor, O: Tensor, both: bool, gelu: bool, first: bool, path: str, dtype: torch.dtype, W: Tensor | None, *,  # noqa: E741
    own: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The same; ``own`` says that u may be overwritten."""
    H, B, L = u.shape
    dW = None
    if path == "triton":
        from statespan.ops._triton import launch
        from statespan.ops._triton.transpose import lengthwise, like

        channels = dy.shape[0]
        dy = dy.reshape(channels * H, B, L)
        x, dy = lengthwise(u, dtype), lengthwise(dy, dtype)
        g = launch.grid(x, E, G, W, channels, both=both)
        each = (H, B, -1, E.shape[2])
        kept = launch.Saved(states.view(each), ahead.view(each) if both else ahead, pre)
        own = own or x.data_ptr() != u.data_ptr()
        spare = x if own and x.is_contiguous() else None  # nobody needs it afterwards
        found, dW = launch.backward(
            g, x, dy, dlast, kept, K, E, G, W, O, both=both, first=first, gelu=gelu, spare=spare
        )  # fmt: skip
        du, dK, dE, dG, dO, dfirst = found
        du = like(du, u)
    else:
        x, dy = u.to(dtype), dy.to(dtype)
        assert not gelu, "the activation's gradient is part of the kernels only"
        rows = [x.view(H, -1, E.shape[2]) if x.numel() else x for x in (states, ahead)]
        saved = plain.Result(dy, dy, *rows)
        du, dK, dE, dG, dO, dfirst = plain.backward(
            x, dy, dlast, saved, K.to(dtype), E.to(dtype), G, O.to(dtype), both=both, own=own
        )
        du = du.to(u.dtype).contiguous()
    empty = u.new_empty(_NONE, dtype=torch.float64)
    return (
        du, dK.to(K.dtype), dE.to(E.dtype), dG.to(G.dtype), dO.to(O.dtype),
        dfirst.double() if first and dfirst is not None else empty,
        empty.clone() if dW is None or W is None else dW.to(W.dtype),
    )  # fmt: skip


def _chunks_backward_fake(
    u: Tensor, dy: Tensor, dlast: Tensor | None, states: Tensor, ahead: Tensor, pre: Tensor, K: Tensor, E: Tensor,
    G: Tensor, O: Tensor, both: bool, gelu: bool, first: bool, path: str, dtype: torch.dtype, W: Tensor | None = None,  # noqa: E741
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    H, B, L = u.shape
    features_last = path == "triton" and u.stride(0) == 1 and u.stride(2) != 1
    du = u.new_empty(B, L, H).permute(2, 0, 1) if features_last else u.new_empty(u.shape)
    dfirst = u.new_empty((H, B, E.shape[2]) if first else (_NONE,), dtype=torch.float64)
    dW = u.new_empty(_NONE, dtype=torch.float64) if W is None else W.new_empty(W.shape)
    return (du, *(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (K, E, G, O)), dfirst, dW)  # type: ignore[return-value]


chunks_backward = operator(
    "statespan::chunks_backward", _chunks_backward, _chunks_backward_fake,
    ((0, 1, 0, 0, 0, 1, 1, 0, 0, 1, 1), (0, 1, 0, 0, 1, 0, 1)),
)  # fmt: skip


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    u, K, E, G, O, first, both, gelu, _save, last, path, dtype, W, own, _keep = inputs  # noqa: E741
    _, _, states, ahead, pre = output
    ctx.save_for_backward(u, states, ahead, pre, K, E, G, O, W)
    ctx.settings = both, gelu, first is not None, path, dtype
    ctx.last, ctx.own = last, own
    ctx.first_dtype = None if first is None else first.dtype
    ctx.set_materialize_grads(False)


def _chunks_grad(ctx: Any, dy: Tensor | None, dlast: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    u, states, ahead, pre, K, E, G, O, W = ctx.saved_tensors  # noqa: E741
    both, gelu, first, path, dtype = ctx.settings
    if dy is None:
        dy = u.new_zeros(K.shape[0] // 2 if both else K.shape[0], *u.shape, dtype=dtype)
    if not ctx.last:
        dlast = None
    arguments = (u, dy, dlast, states, ahead, pre, K, E, G, O, both, gelu, first, path, dtype, W)
    with no_autocast(u):
        if ctx.own and not traced(u) and not transformed() and not graph_is_kept() and not torch.is_grad_enabled():
            found = _gradients(*arguments, own=True)
        else:
            found = chunks_backward(*arguments)
    dfirst = found[5].to(ctx.first_dtype) if first else None
    return (*found[:5], dfirst, None, None, None, None, None, None, None if W is None else found[6], None, None)


chunks = differentiable(
    "statespan::chunks", _chunks, _chunks_fake, _save, _chunks_grad, ((0, 1, 0, 0, 1, 0, 1), (1, 0, 0, 0, 1))
)


def _modes(
    dt: Tensor, decay: Tensor, freq: Tensor, B: Tensor, C: Tensor, D: Tensor | None, P: Tensor | None, chunk: int,
    ahead: int, rule: str, real_part: str, log_dt: bool, precise: bool, factored: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """K, E, G and O of a modal SSM from its parameters; see :class:`statespan.ops._triton.build.Modes`.

    The last result is W, the factors of a rank-one G: beside a diagonal G its low-rank part (``factored``), beside
    a dense one for the backward pass alone. It is empty without a rank-one part.
    """
    from statespan.ops._triton import build

    settings = build.Settings(chunk, ahead, rule, real_part, log_dt, precise, factored)
    found = build.forward(build.Modes(dt, decay, freq, B, C, D, P), settings)
    return found if P is not None else (*found, dt.new_empty(_NONE))  # type: ignore[return-value]


def _modes_fake(
    dt: Tensor, decay: Tensor, freq: Tensor, B: Tensor, C: Tensor, D: Tensor | None, P: Tensor | None, chunk: int,
    ahead: int, rule: str, real_part: str, log_dt: bool, precise: bool, factored: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    channels, H, M, _ = C.shape
    N, own = 2 * M, torch.float64 if precise else torch.float32
    K, E, O = (C.new_empty(s, dtype=own) for s in ((channels, H, chunk), (H, chunk, N), (channels, H, chunk, N)))  # noqa: E741
    G = C.new_empty(H, N, dtype=own) if P is None or factored else C.new_empty(H, N, N, dtype=own)
    return K, E, G, O, dt.new_empty(_NONE) if P is None else C.new_empty(2, H, chunk, N, dtype=own)


def _modes_backward(
    dt: Tensor, decay: Tensor, freq: Tensor, B: Tensor, C: Tensor, P: Tensor | None, E: Tensor, O: Tensor, W: Tensor,  # noqa: E741
    dK: Tensor, dE: Tensor, dG: Tensor, dO: Tensor, dW: Tensor | None, chunk: int, ahead: int, rule: str,
    real_part: str, log_dt: bool, precise: bool, factored: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of dt, decay, freq, B, C and P (empty without one)."""
    from statespan.ops._triton import build

    settings = build.Settings(chunk, ahead, rule, real_part, log_dt, precise, factored)
    kept = () if P is None else (E, O, W)
    found = build.backward(build.Modes(dt, decay, freq, B, C, None, P), settings, kept, dK, dE, dG, dO, dW)
    return found if P is not None else (*found, dt.new_empty(_NONE))  # type: ignore[return-value]


def _modes_backward_fake(
    dt: Tensor, decay: Tensor, freq: Tensor, B: Tensor, C: Tensor, P: Tensor | None, E: Tensor, O: Tensor, W: Tensor,  # noqa: E741
    dK: Tensor, dE: Tensor, dG: Tensor, dO: Tensor, dW: Tensor | None, chunk: int, ahead: int, rule: str,
    real_part: str, log_dt: bool, precise: bool, factored: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    last = dt.new_empty(_NONE) if P is None else torch.empty_like(P)
    return (*(torch.empty_like(x) for x in (dt, decay, freq, B, C)), last)  # type: ignore[return-value]


modes_backward = operator(
    "statespan::modes_backward", _modes_backward, _modes_backward_fake,
    ((0, 0, 0, 0, 1, 0, 0, 1, 1, 1, 0, 0, 1, 1), (0, 0, 0, 0, 1, 0)),
)  # fmt: skip


def _save_modes(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    dt, decay, freq, B, C, D, P, *settings = inputs
    _, E, _, O, W = output  # noqa: E741
    ctx.has_P, ctx.D = P is not None, None if D is None else (D.shape, D.dtype)
    keep = (E, O, W) if ctx.has_P else (W, W, W)  # a diagonal SSM makes its tables again
    ctx.save_for_backward(dt, decay, freq, B, C, P, *keep)
    ctx.settings = settings


def _modes_grad(ctx: Any, dK: Tensor, dE: Tensor, dG: Tensor, dO: Tensor, dW: Tensor) -> tuple[Tensor | None, ...]:
    factored = ctx.settings[-1]
    with no_autocast(dK):
        found = modes_backward(*ctx.saved_tensors, dK, dE, dG, dO, dW if factored else None, *ctx.settings)
    dD = None
    if ctx.D is not None:
        shape, dtype = ctx.D
        dD = dK[: shape[0], :, 0].to(dtype)
    return (*found[:5], dD, found[5] if ctx.has_P else None, *[None] * len(ctx.settings))


modes = differentiable(
    "statespan::modes", _modes, _modes_fake, _save_modes, _modes_grad, ((0, 0, 0, 0, 1, 1, 0), (1, 0, 0, 1, 1))
)
