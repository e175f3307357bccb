"""``statespan::rank_one`` and ``statespan::diagonal``: chunk operators built in plain torch, as operators of torch.

Each gives K, E, G and O as the engine takes them, and then what its own backward operator needs; see
:mod:`statespan.ssm.rank_one` and :mod:`statespan.ssm.modal`.

Shapes: H heads, M kept modes, N = 2M, c chunk, K channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statespan.ops.register import differentiable, no_autocast, operator
from statespan.ssm import modal, rank_one


def _rank_one(
    d: Tensor, f: Tensor, b: Tensor, B: Tensor, C: Tensor, chunk: int, ahead: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """From d, f, b and B̄ (H, N) and C (K, H, N), float64, in the order of packed states."""
    return rank_one.forward(rank_one.Factors(d, f, b, B, C), chunk, ahead, dtype)


def _rank_one_fake(
    d: Tensor, f: Tensor, b: Tensor, B: Tensor, C: Tensor, chunk: int, ahead: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    channels, H, N = C.shape
    steps, doublings = rank_one.plan(chunk, N)
    K, E, O = _operators_fake(C, channels, H, N, chunk, dtype)  # noqa: E741
    lists = C.new_empty(steps + 1, channels + 3, H, N)
    return K, E, C.new_empty(H, N, N), O, lists, C.new_empty(doublings, H, N, N, dtype=dtype)


def _rank_one_backward(
    d: Tensor, f: Tensor, b: Tensor, B: Tensor, C: Tensor, K: Tensor, E: Tensor, G: Tensor, O: Tensor, lists: Tensor,  # noqa: E741
    powers: Tensor, dK: Tensor, dE: Tensor, dG: Tensor, dO: Tensor, ahead: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of d, f, b, B̄ and C."""
    built = rank_one.Built(K, E, G, O, lists, powers)
    return rank_one.backward(rank_one.Factors(d, f, b, B, C), built, ahead, dK, dE, dG, dO)


def _rank_one_backward_fake(
    d: Tensor, f: Tensor, b: Tensor, B: Tensor, C: Tensor, K: Tensor, E: Tensor, G: Tensor, O: Tensor, lists: Tensor,  # noqa: E741
    powers: Tensor, dK: Tensor, dE: Tensor, dG: Tensor, dO: Tensor, ahead: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return tuple(x.new_empty(x.shape) for x in (d, f, b, B, C))  # type: ignore[return-value]


def _diagonal(
    d: Tensor, B: Tensor, C: Tensor, chunk: int, ahead: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """From Ā and B̄ (H, M, 2) and C (K, H, M, 2), float64, in the order of the engine: neighbours."""
    return modal.forward(modal.Factors(d, B, C), chunk, ahead, dtype)


def _diagonal_fake(
    d: Tensor, B: Tensor, C: Tensor, chunk: int, ahead: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    channels, H, M, _ = C.shape
    K, E, O = _operators_fake(C, channels, H, 2 * M, chunk, dtype)  # noqa: E741
    return K, E, C.new_empty(H, 2 * M), O, C.new_empty(H, chunk, M, 2, dtype=dtype)


def _diagonal_backward(
    d: Tensor, B: Tensor, C: Tensor, K: Tensor, E: Tensor, G: Tensor, O: Tensor, table: Tensor, dK: Tensor, dE: Tensor,  # noqa: E741
    dG: Tensor, dO: Tensor, ahead: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of Ā, B̄ and C."""
    return modal.backward(modal.Factors(d, B, C), modal.Built(K, E, G, O, table), ahead, dK, dE, dG, dO)


def _diagonal_backward_fake(
    d: Tensor, B: Tensor, C: Tensor, K: Tensor, E: Tensor, G: Tensor, O: Tensor, table: Tensor, dK: Tensor, dE: Tensor,  # noqa: E741
    dG: Tensor, dO: Tensor, ahead: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return tuple(x.new_empty(x.shape) for x in (d, B, C))  # type: ignore[return-value]


def _operators_fake(like: Tensor, channels: int, H: int, N: int, c: int, dtype: torch.dtype) -> list[Tensor]:
    return [like.new_empty(s, dtype=dtype) for s in ((channels, H, c), (H, c, N), (channels, H, c, N))]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *factors, _chunk, ahead, _dtype = inputs
    ctx.save_for_backward(*factors, *output)
    ctx.factors, ctx.ahead = len(factors), ahead
    ctx.set_materialize_grads(False)


def _gradient(backward: Any, ctx: Any, gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    operators = saved[ctx.factors : ctx.factors + 4]
    given = [torch.zeros_like(x) if g is None else g for x, g in zip(operators, gradients)]
    with no_autocast(saved[0]):
        return (*backward(*saved, *given, ctx.ahead), None, None, None)


rank_one_backward = operator(
    "statespan::rank_one_backward", _rank_one_backward, _rank_one_backward_fake,
    ((0, 0, 0, 0, 1, 1, 0, 0, 1, 2, 1, 1, 0, 0, 1), (0, 0, 0, 0, 1)),
)  # fmt: skip
build_rank_one = differentiable(
    "statespan::rank_one", _rank_one, _rank_one_fake, _save, lambda ctx, *g: _gradient(rank_one_backward, ctx, g),
    ((0, 0, 0, 0, 1), (1, 0, 0, 1, 2, 1)),
)  # fmt: skip
diagonal_backward = operator(
    "statespan::diagonal_backward", _diagonal_backward, _diagonal_backward_fake,
    ((0, 0, 1, 1, 0, 0, 1, 0, 1, 0, 0, 1), (0, 0, 1)),
)  # fmt: skip
build_diagonal = differentiable(
    "statespan::diagonal", _diagonal, _diagonal_fake, _save, lambda ctx, *g: _gradient(diagonal_backward, ctx, g),
    ((0, 0, 1), (1, 0, 0, 1, 0)),
)  # fmt: skip
