"""What a module gives out: from positions back to sequences, and no views.

Shapes: B batch, L length, F features.
"""

from __future__ import annotations

import torch
from torch import Tensor


def as_sequences(x: Tensor, batch: int, length: int) -> Tensor:
    """X (B·L, F), which nobody else has, as (B, L, F).

    The result is not a view for autograd, as for :func:`unviewed`.
    """
    return torch.ops.aten._unsafe_view(x, [batch, length, x.shape[-1]])


def unviewed(x: Tensor) -> Tensor:
    """X, which nobody else has, such that it is not a view for autograd.

    FSDP2 hooks what a module returns, and a change in place of a view would drop its hook.
    """
    return torch.ops.aten._unsafe_view(x, x.shape)
