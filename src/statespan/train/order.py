"""Everything random as a pure function: seeds of (seed, purpose, step), the data's order of (seed, epoch, index)."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor


def derive(*parts: int | str) -> int:
    """A seed that depends on all parts and on nothing else.

    Example:
        >>> derive(0, "dropout", 17) == derive(0, "dropout", 17) != derive(0, "dropout", 18)
        True
    """
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


def seed_python(seed: int) -> None:
    """Seed the global generators of Python and numpy; nothing here uses them, but a user's augmentation may."""
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


@dataclass(frozen=True)
class Plan:
    """Which rows of the training data each piece of each step takes in each process.

    Args:
        n: Rows.
        batch: Rows a step, over all processes.
        accumulate: Pieces of a process's share of a step.
        world: Processes.
        rank: This one.
        seed: Of the order.
        device: Where the row numbers are wanted.

    Example:
        >>> one = Plan(n=10, batch=4)
        >>> two = [Plan(n=10, batch=4, world=2, rank=rank) for rank in range(2)]
        >>> one.steps_per_epoch
        2
        >>> torch.equal(one.index(7, 0), torch.cat([p.index(7, 0) for p in two]))
        True
    """

    n: int
    batch: int
    accumulate: int = 1
    world: int = 1
    rank: int = 0
    seed: int = 0
    device: str = "cpu"

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches an epoch; the rows left over are others in each epoch."""
        return self.n // self.batch

    def index(self, step: int, piece: int) -> Tensor:
        """Row numbers of one piece, (batch / (world accumulate),)."""
        epoch, within = divmod(step, self.steps_per_epoch)
        size = self.batch // (self.world * self.accumulate)
        start = within * self.batch + (piece * self.world + self.rank) * size
        return order(self.seed, epoch, self.n, self.device)[start : start + size]

    def stream(self, step: int) -> Iterator[Tensor]:
        """Row numbers of all pieces from a step on, for ever."""
        while True:
            for piece in range(self.accumulate):
                yield self.index(step, piece)
            step += 1
