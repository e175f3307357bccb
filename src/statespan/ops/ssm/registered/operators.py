"""``statespan::rank_one`` and ``statespan::diagonal``: build the operators of a chunk in plain torch.

Each gives K, E, G and O as the engine takes them, and then what its own backward operator needs; see
:mod:`statespan.ssm.rank_one` and :mod:`statespan.ssm.modal`.

Shapes: H heads, M kept modes, N = 2M, c chunk, K channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from statespan.ops.register import differentiable, no_autocast, operator
from statespan.ssm import modal, rank_one
from statespan.ssm.modal import DiagonalFactors, DiagonalOperators
from statespan.ssm.rank_one import OperatorGradients, RankOneFactors, RankOneOperators


def _rank_one_fake(factors: RankOneFactors, chunk: int, ahead: int, dtype: torch.dtype) -> RankOneOperators:
    C = factors.C
    channels, H, N = C.shape
    steps, doublings = rank_one.plan(chunk, N)
    K, E, O = _empty_lists(C, N, chunk, dtype)  # noqa: E741
    lists = C.new_empty(steps + 1, channels + 3, H, N)
    return RankOneOperators(K, E, C.new_empty(H, N, N), O, lists, C.new_empty(doublings, H, N, N, dtype=dtype))


def _diagonal_fake(factors: DiagonalFactors, chunk: int, ahead: int, dtype: torch.dtype) -> DiagonalOperators:
    C = factors.C
    _, H, M, _ = C.shape
    K, E, O = _empty_lists(C, 2 * M, chunk, dtype)  # noqa: E741
    return DiagonalOperators(K, E, C.new_empty(H, 2 * M), O, C.new_empty(H, chunk, M, 2, dtype=dtype))


def _empty_lists(C: Tensor, N: int, chunk: int, dtype: torch.dtype) -> list[Tensor]:
    """K, E and O."""
    channels, H = C.shape[:2]
    return [C.new_empty(s, dtype=dtype) for s in ((channels, H, chunk), (H, chunk, N), (channels, H, chunk, N))]


def _backward_fake(factors: Any, *_: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in factors)


def _save(ctx: Any, arguments: list[Any], output: tuple[Tensor, ...]) -> None:
    factors, _, ctx.ahead, _ = arguments
    ctx.save_for_backward(*factors, *output)
    ctx.set_materialize_grads(False)


def _gradient(factors: Any, operators: Any, backward: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient by this backward operator, of these classes of factors and operators."""

    def gradient(ctx: Any, *gradients: Tensor | None) -> Any:
        saved, count = ctx.saved_tensors, len(factors._fields)
        built = operators(*saved[count:])
        arriving = [torch.zeros_like(x) if g is None else g for x, g in zip(built, gradients[:4])]
        with no_autocast(saved[0]):
            return backward(factors(*saved[:count]), built, OperatorGradients(*arriving), ctx.ahead)

    return gradient


rank_one_backward = operator(
    "statespan::rank_one_backward", rank_one.backward, _backward_fake,
    ((0, 0, 0, 0, 1, 1, 0, 0, 1, 2, 1, 1, 0, 0, 1), (0, 0, 0, 0, 1)),
)  # fmt: skip
build_rank_one = differentiable(
    "statespan::rank_one", rank_one.forward, _rank_one_fake, save=_save,
    gradient=_gradient(RankOneFactors, RankOneOperators, rank_one_backward),
    heads=((0, 0, 0, 0, 1), (1, 0, 0, 1, 2, 1)),
)  # fmt: skip
diagonal_backward = operator(
    "statespan::diagonal_backward", modal.backward, _backward_fake,
    ((0, 0, 1, 1, 0, 0, 1, 0, 1, 0, 0, 1), (0, 0, 1)),
)  # fmt: skip
build_diagonal = differentiable(
    "statespan::diagonal", modal.forward, _diagonal_fake, save=_save,
    gradient=_gradient(DiagonalFactors, DiagonalOperators, diagonal_backward),
    heads=((0, 0, 1), (1, 0, 0, 1, 0)),
)  # fmt: skip
