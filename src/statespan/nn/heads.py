"""Output heads: from the features of sequences to one output per sequence or per pair.

Shapes: B batch, L length, D = d_model features, K = d_output classes or values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from statespan._check import check_int
from statespan.nn.initial import Initialised
from statespan.nn.padding import Lengths
from statespan.nn.pool import PoolMode, PoolState, SequencePool
from statespan.nn.precision import example_of, full_precision


class Head(Initialised, ABC):
    """A pool over the sequence and a map of the pooled features; in streaming, the output so far.

    Answers have the precision of the parameters, under autocast too: they are few, and regression needs more than the
    three digits of 16 bits.

    Example:
        >>> class Summed(Head):
        ...     def _build(self, where):
        ...         self.weight = nn.Parameter(torch.ones(self.d_model, self.d_output, **where))
        ...     def answer(self, pooled):
        ...         return pooled @ self.weight
        >>> Summed(4, 1, "last")(torch.ones(2, 10, 4))
        tensor([[4.],
                [4.]], grad_fn=<MmBackward0>)
    """

    def __init__(
        self,
        d_model: int,
        d_output: int,
        pool: PoolMode = "mean",
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = check_int("d_model", d_model, minimum=1)
        self.d_output = check_int("d_output", d_output, minimum=1)
        self.pool = SequencePool(d_model, pool)
        self._build({"device": device, "dtype": dtype})

    @abstractmethod
    def _build(self, where: dict[str, Any]) -> None:
        """Build the modules of the map; ``where`` holds device and dtype."""

    @abstractmethod
    def answer(self, pooled: Tensor) -> Tensor:
        """The map from pooled features (B, D)."""

    def forward(self, x: Tensor, *, lengths: Lengths = None) -> Tensor:
        """The outputs for features x (B, L, D)."""
        return self._answer(self.pool(x, lengths=lengths, dtype=example_of(self).dtype))

    def prefill(
        self, x: Tensor, state: PoolState | None = None, *, lengths: Lengths = None
    ) -> tuple[Tensor, PoolState]:
        """The outputs after everything seen so far, and the new state of the pool."""
        after = self.pool.advance(x, state, lengths=lengths)
        return self._answer(self.pool.read(after).to(example_of(self).dtype)), after

    def stepper(self) -> Callable[[Tensor, PoolState], tuple[Tensor, PoolState]]:
        """The same for one position x (B, D)."""
        return lambda x, state: self.prefill(x[:, None], state)

    def _answer(self, pooled: Tensor) -> Tensor:
        with full_precision(pooled):
            return self.answer(pooled)

    def initial_state(self, batch: int, *, dtype: torch.dtype | None = torch.float64) -> PoolState:
        """The state of the pool before the first sample."""
        return self.pool.initial_state(batch, device=example_of(self).device, dtype=dtype)


class SequenceHead(Head):
    """Class scores or values of each sequence: a linear map of its pooled features.

    Args:
        d_model: Number of features D.
        d_output: Number of classes or values K.
        pool: "mean", "last" or "first".
        device: Device of the parameters.
        dtype: Their dtype.

    Example:
        >>> SequenceHead(16, 10)(torch.randn(2, 100, 16), lengths=[100, 70]).shape
        torch.Size([2, 10])
    """

    def _build(self, where: dict[str, Any]) -> None:
        self.linear = nn.Linear(self.d_model, self.d_output, **where)

    def answer(self, pooled: Tensor) -> Tensor:
        """(B, D) to (B, K)."""
        return self.linear(pooled)


class PairHead(Head):
    """Class scores of pairs: a GELU network on [u, v, u − v, u · v] of the two pooled feature vectors u and v.

    A batch holds the first sequences of all pairs, then the second ones.

    Args:
        d_model: Number of features D, and of hidden ones.
        d_output: Number of classes K.
        pool: "mean", "last" or "first".
        device: Device of the parameters.
        dtype: Their dtype.

    Example:
        >>> PairHead(16, 2)(torch.randn(2 * 3, 100, 16)).shape
        torch.Size([3, 2])
    """

    def _build(self, where: dict[str, Any]) -> None:
        self.inner = nn.Linear(4 * self.d_model, self.d_model, **where)
        self.outer = nn.Linear(self.d_model, self.d_output, **where)

    def answer(self, pooled: Tensor) -> Tensor:
        """(2B, D) to (B, K)."""
        if pooled.shape[0] % 2:
            raise ValueError(f"a batch of pairs must have an even number of sequences, got {pooled.shape[0]}")
        pairs = pooled.shape[0] // 2
        u, v = pooled[:pairs], pooled[pairs:]
        return self.outer(nn.functional.gelu(self.inner(torch.cat([u, v, u - v, u * v], -1))))
