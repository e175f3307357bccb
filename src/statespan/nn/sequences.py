"""From positions back to sequences.

Shapes: B batch, L length, F features.
"""

from __future__ import annotations

import torch
from torch import Tensor


def as_sequences(x: Tensor, batch: int, length: int) -> Tensor:
    """X (B·L, F), which nobody else has, as (B, L, F).

    The result is not a view for autograd: FSDP2 hooks what a module returns, and a change in place of a view would drop
    its hook.
    """
    return torch.ops.aten._unsafe_view(x, [batch, length, x.shape[-1]])
