"""``torch.func.vmap`` of operators whose heads are independent: the mapped axis becomes more heads.

Heads come first and the mapped axis second, so that head h still uses set h mod S of S sets of modes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

Axes = Sequence[int]
ABSENT = (0,)
"""Shape of the empty tensor that stands for an output that was not requested, or for its gradient."""


def vmap_rule(call: Callable[..., Any], inputs: Axes, outputs: Axes) -> Callable[..., tuple[Any, Any]]:
    """A rule for ``torch.autograd.Function`` and ``torch.library``.

    Args:
        call: The operator, with flat arguments.
        inputs: The axis of the heads in each of its tensors, in the order of its arguments; None counts as a tensor.
        outputs: The same of its results.
    """

    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        count, axes, folded = info.batch_size, iter(inputs), []
        for x, dim in zip(args, in_dims):
            if x is None or isinstance(x, Tensor):
                axis = next(axes)
                folded.append(x if x is None or x.shape == ABSENT else _fold(x, dim, axis, count))
            else:
                folded.append(x)
        result = call(*folded)
        if isinstance(result, Tensor):
            return _unfold(result, outputs[0], count), outputs[0] + 1
        pairs = [
            (x, None) if x.shape == ABSENT else (_unfold(x, axis, count), axis + 1) for x, axis in zip(result, outputs)
        ]
        return tuple(x for x, _ in pairs), tuple(dim for _, dim in pairs)

    return rule


def _fold(x: Tensor, dim: int | None, axis: int, count: int) -> Tensor:
    if dim is None:
        x, dim = x.expand(count, *x.shape), 0
    # contiguous, as kernels read it: an expanded axis has only one copy in memory
    return x.movedim(dim, axis + 1).flatten(axis, axis + 1).contiguous()


def _unfold(x: Tensor, axis: int, count: int) -> Tensor:
    return x.unflatten(axis, (-1, count))
