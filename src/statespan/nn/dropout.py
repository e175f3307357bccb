"""Dropout with one mask shared by all positions of a sequence."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from statespan._check import check_bool, check_number
from statespan.ops.parallel import active
from statespan.ops.parallel.packing import active_packing


class TiedDropout(nn.Module):
    """Drop whole features of a sequence: the mask is shared over the length.

    Args:
        p: Probability of dropping, 0 ≤ p < 1.

    Example:
        >>> y = TiedDropout(0.5)(torch.ones(2, 10, 4))
        >>> torch.equal(y, y[:, :1].expand_as(y))  # a feature is dropped at every position or at none
        True
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = check_number("p", p, above=0.0, below=1.0, closed=True)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to x (batch, length, features)."""
        mask = self.mask(x)
        return x if mask is None else x * mask

    def mask(self, x: Tensor) -> Tensor | None:
        """Factors of x, (batch, 1, features), or (1, length, features) of packed sequences; None if all are 1."""
        if not self.training or self.p == 0.0:
            return None
        if (rows := active_packing()) is not None:
            return rows.spread(nn.functional.dropout(x.new_ones(rows.count, x.shape[2]), self.p))
        mask = nn.functional.dropout(torch.ones_like(x[:, :1]), self.p)
        return mask if (shards := active()) is None else shards.ranks.all_gather(mask)[0]  # one for the whole sequence

    def extra_repr(self) -> str:
        """The probability."""
        return f"p={self.p}"


DROPOUTS: tuple[type[nn.Module], ...] = (TiedDropout, nn.Dropout)


def make_dropout(p: float, tied: bool) -> nn.Module:
    """Dropout of features; if ``tied``, of the same ones at every position."""
    check_number("dropout", p, above=0.0, below=1.0, closed=True)
    return TiedDropout(p) if check_bool("tie_dropout", tied) else nn.Dropout(p)
