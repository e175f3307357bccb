"""The ranks that share a sequence, and their collectives.

Shapes: R ranks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, distributed


class Ranks(ABC):
    """The ranks of a group, as one of them sees it.

    Args:
        rank: The number of this rank, 0 … size − 1. Shards are in the order of the ranks.
        size: The number of ranks R.

    Example:
        >>> class Alone(Ranks):
        ...     def _all_gather(self, x):
        ...         return x[None]
        ...     def _all_to_all(self, x):
        ...         return x
        >>> Alone(rank=0, size=1).sum(torch.ones(2))
        tensor([1., 1.])
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.sent = 0
        """Bytes that this rank has sent to the others so far."""

    def all_gather(self, x: Tensor) -> Tensor:
        """The tensors x of all ranks, (R, …)."""
        self.sent += (self.size - 1) * x.numel() * x.element_size()
        return self._all_gather(x.contiguous()) if x.numel() else x.new_empty(self.size, *x.shape)

    def all_to_all(self, x: Tensor) -> Tensor:
        """Send ``x[r]`` to rank r; returns what each rank sent to this one, (R, …)."""
        self.sent += (self.size - 1) * x[0].numel() * x.element_size()
        return self._all_to_all(x.contiguous()) if x.numel() else x

    def sum(self, x: Tensor) -> Tensor:
        """The sum of x over the ranks, in the order of the ranks."""
        return self.all_gather(x).sum(0)

    @abstractmethod
    def _all_gather(self, x: Tensor) -> Tensor:
        """As :meth:`all_gather`, of a contiguous tensor that is not empty."""

    @abstractmethod
    def _all_to_all(self, x: Tensor) -> Tensor:
        """As :meth:`all_to_all`, of a contiguous tensor that is not empty."""


class ProcessRanks(Ranks):
    """The processes of a group of :mod:`torch.distributed`, with any backend.

    Args:
        group: The group; None for the default one.

    Example:
        >>> distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        >>> ProcessRanks().sum(torch.ones(2))
        tensor([1., 1.])
        >>> distributed.destroy_process_group()
    """

    def __init__(self, group: distributed.ProcessGroup | None = None) -> None:
        super().__init__(distributed.get_rank(group), distributed.get_world_size(group))
        if self.rank < 0:
            raise ValueError("group must contain this process, got one without it")
        self.group = group

    def _all_gather(self, x: Tensor) -> Tensor:
        y = x.new_empty(self.size, *x.shape)
        distributed.all_gather(list(y.unbind(0)), x, group=self.group)
        return y

    def _all_to_all(self, x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        distributed.all_to_all_single(y, x, group=self.group)
        return y


class _Gather(torch.autograd.Function):
    """The tensors of all ranks; a rank's gradient is the sum of what all ranks have for its tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.all_gather(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return ctx.ranks.all_to_all(dy).sum(0), None


def gathered(x: Tensor, ranks: Ranks) -> Tensor:
    """The tensors x of all ranks (R, …), differentiable: every rank must call backward.

    Sums are in the order of the ranks, so that the same ranks give the same bits.
    """
    return _Gather.apply(x, ranks)
