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

WHOLE = (torch.int64, torch.int32)


@dataclass(frozen=True)
class Padding:
    """The true lengths of a batch and the mask they give, made once and used by every layer.

    Args:
        lengths: (B,) whole numbers 0 … L.
        mask: (B, L, 1), True where a position is real.
    """

    lengths: Tensor
    mask: Tensor

    @classmethod
    def of(cls, x: Tensor, lengths: Lengths) -> Padding | None:
        """The padding of x (B, L, …), or None where there is none.

        The values of lengths that live on a GPU are checked there, so that nothing has to wait for them.
        """
        if lengths is None or isinstance(lengths, Padding):
            return lengths
        batch, length = x.shape[:2]
        if isinstance(lengths, Tensor) and lengths.is_cuda and lengths.shape == (batch,) and lengths.dtype in WHOLE:
            inside = ((lengths >= 0) & (lengths <= length)).all()
            torch._assert_async(inside, "lengths must be between 0 and the length of x")
        else:
            lengths = check_lengths(lengths, batch, length)
        return cls.to(lengths.to(x.device), length)

    @classmethod
    def to(cls, lengths: Tensor, length: int) -> Padding:
        """The padding up to a common length."""
        return cls(lengths, (torch.arange(length, device=lengths.device) < lengths[:, None])[..., None])


Lengths: TypeAlias = "Tensor | Sequence[int] | Padding | None"
"""What a module takes: numbers from a user, or the padding another module made of them."""


def fill(x: Tensor, padding: Padding | None) -> Tensor:
    """X (B, L, D) with zeros for padding."""
    return x if padding is None else x.masked_fill(~padding.mask, 0.0)
