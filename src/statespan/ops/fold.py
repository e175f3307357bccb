"""``torch.func.vmap`` of operators whose heads know nothing of each other: what is mapped over becomes more heads.

Heads come first and what is mapped over second, so that head h still uses set h mod S of S sets of modes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

Axes = Sequence[int]


def fold(call: Callable[..., Any], taken: Axes, given: Axes) -> Callable[..., tuple[Any, Any]]:
    """A rule for ``torch.autograd.Function`` and ``torch.library``.

    Args:
        call: The operator.
        taken: The axis of the heads in each of its tensors, in the order of its arguments; None counts as a tensor.
        given: The same of its results.
    """

    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        count, axes, folded = info.batch_size, iter(taken), []
        for x, dim in zip(args, in_dims):
            if x is None or isinstance(x, Tensor):
                axis = next(axes)
                folded.append(x if x is None or _absent(x) else _folded(x, dim, axis, count))
            else:
                folded.append(x)
        result = call(*folded)
        if isinstance(result, Tensor):
            return _unfolded(result, given[0], count), given[0] + 1
        found = [(x, None) if _absent(x) else (_unfolded(x, axis, count), axis + 1) for x, axis in zip(result, given)]
        return tuple(x for x, _ in found), tuple(dim for _, dim in found)

    return rule


def _absent(x: Tensor) -> bool:
    """Whether it is the empty tensor that stands for one nobody asked for."""
    return x.shape == (0,)


def _folded(x: Tensor, dim: int | None, axis: int, count: int) -> Tensor:
    if dim is None:
        x = x.unsqueeze(axis + 1)
        shape = list(x.shape)
        shape[axis + 1] = count
        x = x.expand(shape)
    else:
        x = x.movedim(dim, axis + 1)
    return x.flatten(axis, axis + 1).contiguous()  # as kernels read it; of one head, it may be the same twice


def _unfolded(x: Tensor, axis: int, count: int) -> Tensor:
    return x.unflatten(axis, (-1, count))
