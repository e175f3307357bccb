"""Sequences of unequal length in one tensor: which positions are real.

Shapes: B batch, L length, D features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from statespan._check import check_lengths
from statespan.ops.parallel import active
from statespan.ops.parallel.packing import check_unpacked


@dataclass(frozen=True)
class Padding:
    """The true lengths of a batch and their mask, computed once and used by every layer.

    Args:
        lengths: (B,) whole numbers 0 … L.
        mask: (B, L, 1), True where a position is real.

    Example:
        >>> padding = Padding.of(torch.zeros(2, 3, 4), lengths=[3, 1])
        >>> padding.mask[..., 0]
        tensor([[ True,  True,  True],
                [ True, False, False]])
    """

    lengths: Tensor
    mask: Tensor

    @classmethod
    def of(cls, x: Tensor, lengths: Lengths) -> Padding | None:
        """The padding of x (B, L, …), or None without lengths; of this rank's part if x is a shard."""
        if lengths is None or isinstance(lengths, Padding):
            return lengths
        check_unpacked("lengths")
        batch, length = x.shape[:2]
        if (shards := active()) is not None:
            return cls.to(shards.local_lengths(x, lengths), length)
        return cls.to(check_lengths(lengths, batch, length).to(x.device), length)

    @classmethod
    def to(cls, lengths: Tensor, length: int) -> Padding:
        """The padding truncated to a common length."""
        return cls(lengths, (torch.arange(length, device=lengths.device) < lengths[:, None])[..., None])


Lengths: TypeAlias = "Tensor | Sequence[int] | Padding | None"
"""The argument ``lengths`` of modules: numbers from a user, or the padding that another module made of them."""


def fill(x: Tensor, padding: Padding | None) -> Tensor:
    """Return x (B, L) or (B, L, D) with zeros for padding."""
    if padding is None:
        return x
    return x.masked_fill(~(padding.mask if x.ndim == 3 else padding.mask[..., 0]), 0)
