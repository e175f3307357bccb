"""States as trees: nested tuples of tensors, viewed as a list of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor


def leaves(state: Any) -> list[Tensor]:
    """The tensors of a state, in order.

    Example:
        >>> import torch
        >>> len(leaves((torch.zeros(2), (), (torch.ones(1), None))))
        2
    """
    if isinstance(state, Tensor):
        return [state]
    return [] if state is None else [leaf for part in state for leaf in leaves(part)]


def map_leaves(function: Callable[[Tensor], Tensor], state: Any) -> Any:
    """The same tree with a function applied to each tensor."""
    return _rebuild(state, iter([function(leaf) for leaf in leaves(state)]))


def replace_leaves(state: Any, tensors: list[Tensor]) -> Any:
    """The same tree with its tensors replaced in order."""
    count = len(leaves(state))
    if len(tensors) != count:
        raise ValueError(f"tensors must be {count}, one for each leaf of the state, got {len(tensors)}")
    return _rebuild(state, iter(tensors))


def settle(old: Any, new: Any) -> None:
    """Copy a new state over the old one, except tensors that were already updated in place."""
    for into, value in zip(leaves(old), leaves(new), strict=True):
        if into is not value:
            into.copy_(value)


def _rebuild(state: Any, tensors: Iterator[Tensor]) -> Any:
    if isinstance(state, Tensor):
        return next(tensors)
    if state is None:
        return None
    parts = [_rebuild(part, tensors) for part in state]
    return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
