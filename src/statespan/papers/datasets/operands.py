"""Shuffling the operands of ListOps, which keeps the value of an expression.

It works on all expressions of a batch at once, on its device: the new place of an operand is the sum of the sizes of
those before it.

Shapes: B batch, L length, n levels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from statespan.data.base import Batch
from statespan.data.tokens import SPECIAL

DIGIT, OPERATOR, END = SPECIAL, SPECIAL + 10, SPECIAL + 14  # the first token of each kind


@dataclass(frozen=True)
class Shuffle:
    """Shuffle the operands of every operator; incomplete expressions stay unchanged.

    Example:
        >>> x = torch.tensor([[OPERATOR, DIGIT + 1, OPERATOR + 2, DIGIT + 5, DIGIT + 7, END, END, 2, 0]])
        >>> shuffled = Shuffle(levels=2)(Batch(x, torch.tensor([5])), torch.Generator().manual_seed(0))
        >>> shuffled.x.tolist()  # [MAX 1 [MIN 5 7 ] ] is now [MAX [MIN 5 7 ] 1 ]
        [[13, 15, 8, 10, 17, 4, 17, 2, 0]]
    """

    levels: int  # greatest depth of nested operators

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The batch, x of shape (B, L)."""
        x = batch.x
        opens, closes = (x >= OPERATOR) & (x < END), x == END
        open_after = (opens.long() - closes.long()).cumsum(1)
        level = open_after - opens.long()  # operators around a token; those of one level are in sequence
        at = torch.arange(x.shape[1], device=x.device).expand_as(x)
        latest = self._latest(opens, level, at)
        owner = latest.gather(1, level.clamp(0, self.levels - 1)[:, None])[:, 0]  # of a bracket: its operator
        parent = latest.gather(1, (level - 1).clamp(min=0)[:, None])[:, 0]
        size = torch.ones(len(x), x.shape[1] + 1, dtype=torch.long, device=x.device)
        size = size.scatter_(1, torch.where(closes, owner, x.shape[1]), at - owner + 1)[:, :-1]
        operand = (x >= DIGIT) & ~closes & (level > 0)
        step = 1 + _before(parent, size, operand, torch.rand(x.shape, generator=generator, device=x.device))
        place = torch.where(operand, step, 0)  # behind the parent; then behind its parent, and so on
        up = torch.where(operand, parent, at)
        for _ in range((self.levels - 1).bit_length()):  # twice as far each time
            place, up = place + place.gather(1, up), up.gather(1, up)
        place = place + up  # the root, where it always was
        place = torch.where(closes, place.gather(1, owner) + at - owner, place)
        whole = (open_after[:, -1:] == 0) & (open_after.amin(1, keepdim=True) == 0)
        place = torch.where(whole, place, at)
        return batch._replace(x=torch.empty_like(x).scatter_(1, place, x))

    def _latest(self, opens: Tensor, level: Tensor, at: Tensor) -> Tensor:
        """The position of the last operator of each level up to each token, (B, n, L); 0 if there was none."""
        levels = torch.arange(self.levels, device=at.device)[:, None]
        here = opens[:, None] & (level[:, None] == levels)
        return torch.where(here, at[:, None], 0).cummax(2).values


def _before(parent: Tensor, size: Tensor, operand: Tensor, drawn: Tensor) -> Tensor:
    """The number of siblings' tokens before each operand, with siblings ordered by ``drawn``."""
    key = torch.where(operand, parent + drawn.double(), parent.shape[1])
    order = key.argsort(1)
    sizes = torch.where(operand, size, 0).gather(1, order)
    before = sizes.cumsum(1) - sizes
    family = torch.where(operand, parent, -1).gather(1, order)
    first = torch.ones_like(operand)
    first[:, 1:] = family[:, 1:] != family[:, :-1]
    before = before - torch.where(first, before, 0).cummax(1).values
    return torch.empty_like(before).scatter_(1, order, before)
