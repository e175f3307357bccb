"""Masked tokens: as noise in training, or as targets for pre-training without labels.

Shapes: B batch, L length.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from statespan._check import check_bool, check_number
from statespan.data.base import Batch, Dataset, Info, Windows
from statespan.data.tokens import PAD, UNK, padded

_PRIME, _SQUARE, _LINE = 65521, 7919, 104_729  # for a fixed pattern without a rhythm


@dataclass(frozen=True)
class Hide:
    """Replace a random share of the tokens of a training batch by <unk>, redrawn for every batch.

    Example:
        >>> batch = Batch(torch.tensor([[5, 6, 7, 8, 2, 0]]), torch.tensor([1]), torch.tensor([5]))
        >>> Hide(0.5)(batch, torch.Generator().manual_seed(1)).x.tolist()
        [[5, 1, 1, 8, 1, 0]]
    """

    share: float

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The batch, x of shape (B, L)."""
        return batch._replace(x=torch.where(_draw(batch.x, self.share, generator), UNK, batch.x))


@dataclass(frozen=True)
class Find:
    """Masked tokens as targets: y holds these, and −1 − token, which is ignored, elsewhere.

    A call masks the same positions in every row, so that evaluations can be compared; :meth:`anew` draws others for
    training.

    Example:
        >>> rows = {"tokens": torch.tensor([[5, 6, 7, 8, 2]]), "lengths": torch.tensor([5]), "y": torch.tensor([1])}
        >>> Find(0.5)(rows)[:3]
        (tensor([[1, 6, 7, 8, 1]]), tensor([[ 5, -7, -8, -9,  2]]), tensor([5]))
    """

    share: float

    def __call__(self, rows: dict[str, Tensor]) -> Batch:
        """The batch of these rows, x and y of shape (B, L)."""
        batch = padded(rows)
        n = torch.arange(batch.x.shape[1], device=batch.x.device)
        drawn = (n * n * _SQUARE + n * _LINE) % _PRIME < self.share * _PRIME
        return _ask(batch, batch.x, drawn & (batch.x != PAD))

    def anew(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The batch with newly drawn tokens masked."""
        tokens = torch.where(batch.y < 0, -1 - batch.y, batch.y)
        return _ask(batch, tokens, _draw(tokens, self.share, generator))


def hide(dataset: Dataset, share: float, find: bool) -> Dataset:
    """A dataset of documents, without another augmentation, with this share of its tokens masked.

    With ``find`` the masked tokens are the targets of all splits; otherwise they are noise, in training only.
    """
    check_hidden(share, find)
    if not find:
        return dataset if share == 0 else replace(dataset, augment=Hide(share))
    masked = []
    for split in (dataset.train, dataset.valid, dataset.test):
        assert isinstance(split, Windows)
        other = copy.copy(split)
        other.prepare = Find(share)
        masked.append(other)
    tokens = dataset.info.vocabulary
    assert tokens is not None
    info = Info("masked", dataset.info.length, None, tokens, tokens)
    return replace(dataset, info=info, train=masked[0], valid=masked[1], test=masked[2], augment=Find(share).anew)


def check_hidden(share: float, find: bool) -> None:
    """Reject a share of masked tokens outside [0, 1), or of 0 if they are the targets."""
    check_number("hide", share, above=0.0, below=1.0, closed=not check_bool("find", find))


def _draw(tokens: Tensor, share: float, generator: torch.Generator) -> Tensor:
    return (torch.rand(tokens.shape, generator=generator, device=tokens.device) < share) & (tokens != PAD)


def _ask(batch: Batch, tokens: Tensor, hidden: Tensor) -> Batch:
    return batch._replace(x=torch.where(hidden, UNK, tokens), y=torch.where(hidden, tokens, -1 - tokens))
