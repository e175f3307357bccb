"""Randomness as pure functions: seeds of (seed, purpose, step), the data order of (seed, epoch, index)."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor


def derive(*parts: int | str) -> int:
    """A seed that depends on all parts and nothing else.

    Example:
        >>> derive(0, "dropout", 17) == derive(0, "dropout", 17) != derive(0, "dropout", 18)
        True
    """
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


def seed_python(seed: int) -> None:
    """Seed the global generators of Python and numpy; statespan does not use them, but a user's augmentation may."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


def seed_torch(device: torch.device, seed: int) -> None:
    """Seed the global generators of the CPU and of one device; ``torch.manual_seed`` takes milliseconds for all."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


@lru_cache(maxsize=2)
def order(seed: int, epoch: int, n: int, device: str = "cpu") -> Tensor:
    """The numbers 0 … n-1 in the order of an epoch, (n,) int64."""
    generator = torch.Generator().manual_seed(derive(seed, "order", epoch))
    return torch.randperm(n, generator=generator).to(device)


GROUP = 64  # batches whose rows are sorted by length together: enough to be alike, few enough to be mixed
SHAPES = 8  # lengths that batches have, at most: each is a CUDA graph of its own


def grouped(rows: Tensor, lengths: Tensor, batch: int, seed: int) -> Tensor:
    """Shuffled rows regrouped into batches of similar length, in random order; leftover rows stay at the end.

    Example:
        >>> lengths = torch.tensor([5, 1, 4, 2, 9])
        >>> grouped(torch.tensor([3, 2, 0, 1, 4]), lengths, batch=2, seed=0).tolist()
        [1, 3, 2, 0, 4]
    """
    whole = len(rows) // batch * batch
    group = torch.arange(whole) // (GROUP * batch)
    ordered = (group * (1 + int(lengths.max())) + lengths[rows[:whole]]).argsort(stable=True)
    batches = rows[:whole][ordered].view(-1, batch)
    mixed = torch.randperm(len(batches), generator=torch.Generator().manual_seed(seed))
    return torch.cat([batches[mixed].flatten(), rows[whole:]])


def cut(length: int, longest: int) -> int:
    """The padded length of a batch for its longest row: one of at most SHAPES lengths that suit the kernels.

    Example:
        >>> [cut(length, 2000) for length in (1, 256, 257, 1999)]
        [256, 256, 512, 2000]
    """
    unit = 64 * -(-longest // (64 * SHAPES))
    return min(-(-max(length, 1) // unit) * unit, longest)


@dataclass(frozen=True)
class BatchPlan:
    """The rows of the training data for each piece of each step in each process.

    Example:
        >>> plan = BatchPlan(n=10, batch=4)
        >>> halves = [BatchPlan(n=10, batch=4, world=2, rank=rank) for rank in range(2)]
        >>> plan.steps_per_epoch
        2
        >>> torch.equal(plan.index(7, 0), torch.cat([half.index(7, 0) for half in halves]))
        True
    """

    n: int
    batch: int  # rows a step, over all processes
    accumulate: int = 1  # pieces of a process's share of a step
    world: int = 1  # processes
    rank: int = 0  # this process
    seed: int = 0  # of the order
    device: str = "cpu"  # where the row numbers are needed
    lengths: Tensor | None = field(default=None, repr=False, compare=False)  # (n,) on the CPU, to group rows
    _epochs: dict[int, tuple[Tensor, list[int]]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def steps_per_epoch(self) -> int:
        """Full batches per epoch; the rows left over differ from epoch to epoch."""
        return self.n // self.batch

    def index(self, step: int, piece: int) -> Tensor:
        """Row numbers of one piece, (batch / (world accumulate),)."""
        epoch, part = self._part(step, piece)
        rows = order(self.seed, epoch, self.n, self.device) if self.lengths is None else self._grouped(epoch)[0]
        return rows[part * self._size : (part + 1) * self._size]

    def length(self, step: int, piece: int) -> int | None:
        """The length of a piece; None if the plan does not set it."""
        if self.lengths is None:
            return None
        epoch, part = self._part(step, piece)
        return self._grouped(epoch)[1][part]

    def shapes(self) -> list[int]:
        """All possible lengths of a piece, the largest first; empty if the plan does not set them."""
        if self.lengths is None:
            return []
        longest = int(self.lengths.max())
        return sorted({cut(length, longest) for length in self.lengths.unique().tolist()}, reverse=True)

    def stream(self, step: int) -> Iterator[Tensor]:
        """Row numbers of all pieces from a step on, endlessly."""
        while True:
            for piece in range(self.accumulate):
                yield self.index(step, piece)
            step += 1

    @property
    def _size(self) -> int:
        return self.batch // (self.world * self.accumulate)

    def _part(self, step: int, piece: int) -> tuple[int, int]:
        """The epoch, and the number of the piece in it."""
        epoch, within = divmod(step, self.steps_per_epoch)
        return epoch, (within * self.accumulate + piece) * self.world + self.rank

    def _grouped(self, epoch: int) -> tuple[Tensor, list[int]]:
        """The rows of an epoch, and the length of each piece; the latest two are kept."""
        assert self.lengths is not None
        if epoch not in self._epochs:
            seed, longest = derive(self.seed, "groups", epoch), int(self.lengths.max())
            rows = grouped(order(self.seed, epoch, self.n), self.lengths, self.batch, seed)
            needed = self.lengths[rows[: self.steps_per_epoch * self.batch]].view(-1, self._size).amax(1)
            for old in list(self._epochs)[:-1]:
                del self._epochs[old]
            self._epochs[epoch] = rows.to(self.device), [cut(length, longest) for length in needed.tolist()]
        return self._epochs[epoch]
