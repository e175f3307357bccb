"""``statespan::rank_one`` and ``statespan::diagonal``: build the operators of a chunk in plain torch.

Each gives K, E, G and O as the engine takes them, and then what its own backward operator needs; see
:mod:`statespan.ssm.rank_one` and :mod:`statespan.ssm.modal`.

Shapes: H heads, M kept modes, N = 2M, c chunk, K channels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from statespan.ops.register import differentiable, no_autocast, operator
from statespan.ssm import modal, rank_one
from statespan.ssm.rank_one import OperatorGradients


class ListOptions(NamedTuple):
    """Options for cutting lists of powers into operators."""

    chunk: int
    ahead: int
    """How many of the channels, counted from the last, are anti-causal."""
    dtype: torch.dtype


def _rank_one(
    factors: rank_one.RankOneFactors, options: ListOptions
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return rank_one.forward(factors, *options)


def _rank_one_fake(
    factors: rank_one.RankOneFactors, options: ListOptions
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    C = factors.C
    channels, H, N = C.shape
    steps, doublings = rank_one.plan(options.chunk, N)
    K, E, O = _fake_operators(C, N, options)  # noqa: E741
    lists = C.new_empty(steps + 1, channels + 3, H, N)
    return K, E, C.new_empty(H, N, N), O, lists, C.new_empty(doublings, H, N, N, dtype=options.dtype)


def _rank_one_backward(
    factors: rank_one.RankOneFactors, built: rank_one.RankOneOperators, arriving: OperatorGradients, ahead: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return rank_one.backward(factors, built, arriving, ahead)


def _diagonal(factors: modal.DiagonalFactors, options: ListOptions) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return modal.forward(factors, *options)


def _diagonal_fake(
    factors: modal.DiagonalFactors, options: ListOptions
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    C = factors.C
    _, H, M, _ = C.shape
    K, E, O = _fake_operators(C, 2 * M, options)  # noqa: E741
    return K, E, C.new_empty(H, 2 * M), O, C.new_empty(H, options.chunk, M, 2, dtype=options.dtype)


def _diagonal_backward(
    factors: modal.DiagonalFactors, built: modal.DiagonalOperators, arriving: OperatorGradients, ahead: int
) -> tuple[Tensor, Tensor, Tensor]:
    return modal.backward(factors, built, arriving, ahead)


def _fake_operators(C: Tensor, N: int, options: ListOptions) -> list[Tensor]:
    (channels, H), c = C.shape[:2], options.chunk
    return [C.new_empty(s, dtype=options.dtype) for s in ((channels, H, c), (H, c, N), (channels, H, c, N))]


def _backward_fake(factors: Any, *_: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in factors)


def _save(ctx: Any, arguments: list[Any], output: tuple[Tensor, ...]) -> None:
    factors, options = arguments
    ctx.save_for_backward(*factors, *output)
    ctx.ahead = options.ahead
    ctx.set_materialize_grads(False)


def _gradient(ctx: Any, gradients: tuple[Tensor | None, ...], structure: Any, backward: Any) -> tuple[Tensor, ...]:
    saved, count = ctx.saved_tensors, len(structure.Factors._fields)
    built = structure.Built(*saved[count:])
    given = [torch.zeros_like(x) if g is None else g for x, g in zip(built, gradients[:4])]
    with no_autocast(saved[0]):
        return backward(structure.Factors(*saved[:count]), built, OperatorGradients(*given), ctx.ahead)


rank_one_backward = operator(
    "statespan::rank_one_backward", _rank_one_backward, _backward_fake,
    ((0, 0, 0, 0, 1, 1, 0, 0, 1, 2, 1, 1, 0, 0, 1), (0, 0, 0, 0, 1)),
)  # fmt: skip
build_rank_one = differentiable(
    "statespan::rank_one", _rank_one, _rank_one_fake, save=_save,
    gradient=lambda ctx, *gradients: _gradient(ctx, gradients, rank_one, rank_one_backward),
    heads=((0, 0, 0, 0, 1), (1, 0, 0, 1, 2, 1)),
)  # fmt: skip
diagonal_backward = operator(
    "statespan::diagonal_backward", _diagonal_backward, _backward_fake,
    ((0, 0, 1, 1, 0, 0, 1, 0, 1, 0, 0, 1), (0, 0, 1)),
)  # fmt: skip
build_diagonal = differentiable(
    "statespan::diagonal", _diagonal, _diagonal_fake, save=_save,
    gradient=lambda ctx, *gradients: _gradient(ctx, gradients, modal, diagonal_backward),
    heads=((0, 0, 1), (1, 0, 0, 1, 0)),
)  # fmt: skip
