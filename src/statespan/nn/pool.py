"""Pools a sequence of features into one vector, also in streaming.

Shapes: B batch, L length, D features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from statespan._check import check_choice
from statespan.nn.padding import Lengths, Padding, fill
from statespan.ops.parallel import SequenceParallel, active
from statespan.ops.parallel.packing import active_packing
from statespan.ops.parallel.ranks import gathered

PoolMode: TypeAlias = Literal["mean", "last", "first"]
POOLS: tuple[str, ...] = get_args(PoolMode)
PoolState: TypeAlias = "tuple[Tensor, Tensor]"
"""A sum or a sample (B, D), and the number of positions seen (B,)."""


class SequencePool(nn.Module):
    """The mean of the real positions of each sequence, or the last or first one; 0 if there are none.

    Args:
        d_model: Number of features D.
        mode: "mean", "last" or "first".

    Example:
        >>> pool = SequencePool(2, "last")
        >>> pool(torch.arange(12.0).view(2, 3, 2), lengths=[3, 1])
        tensor([[4., 5.],
                [6., 7.]])
    """

    def __init__(self, d_model: int, mode: PoolMode = "mean") -> None:
        super().__init__()
        self.d_model = d_model
        self.mode = check_choice("pool", mode, POOLS)

    def forward(self, x: Tensor, *, lengths: Lengths = None, dtype: torch.dtype | None = None) -> Tensor:
        """Pool x (B, L, D) to (B, D) in this dtype; None means that of x."""
        return self.read(self.advance(x, lengths=lengths)).to(dtype or x.dtype)

    def prefill(
        self, x: Tensor, state: PoolState | None = None, *, lengths: Lengths = None
    ) -> tuple[Tensor, PoolState]:
        """The pooled features of everything seen so far, and the new state.

        Args:
            x: (B, L, D).
            state: As returned by this, ``stepper`` or ``initial_state``; None to start.
            lengths: True length of each sequence (B,).

        Returns:
            The pooled features (B, D), and the new state.
        """
        after = self.advance(x, state, lengths=lengths)
        return self.read(after).to(x.dtype), after

    def advance(self, x: Tensor, state: PoolState | None = None, *, lengths: Lengths = None) -> PoolState:
        """The state after x, as in :meth:`prefill`."""
        batch, padding = x.shape[0], Padding.of(x, lengths)
        if state is None:
            wide = torch.promote_types(x.dtype, torch.float32)
            state = x.new_zeros(batch, self.d_model, dtype=wide), x.new_zeros(batch, dtype=torch.int64)
        if (rows := active_packing()) is not None:
            return rows.pool(x, self.mode, state[0].dtype)
        if (shards := active()) is not None:
            return self._over_shards(shards, self._added(x, padding, (torch.zeros_like(state[0]), 0 * state[1])), state)
        return self._added(x, padding, state)

    def _added(self, x: Tensor, padding: Padding | None, state: PoolState) -> PoolState:
        (batch, length, _), (value, seen) = x.shape, state
        new = torch.full_like(seen, length) if padding is None else padding.lengths.to(seen)
        if length and self.mode == "mean":
            value = value + fill(x, padding).sum(1, dtype=value.dtype)
        elif length:
            position = (new - 1).clamp(min=0) if self.mode == "last" else torch.zeros_like(new)
            sample = x[torch.arange(batch, device=x.device), position].to(value.dtype)
            is_pooled = new > 0 if self.mode == "last" else (new > 0) & (seen == 0)
            value = torch.where(is_pooled[:, None], sample, value)
        return value, seen + new

    def _over_shards(self, shards: SequenceParallel, own: PoolState, state: PoolState) -> PoolState:
        """The state after the shards of all ranks, from that of each one's own."""
        (value, seen), counts = state, shards.ranks.all_gather(own[1])
        for part, new in zip(gathered(own[0], shards.ranks), counts):
            if self.mode == "mean":
                value = value + part
            else:
                is_pooled = new > 0 if self.mode == "last" else (new > 0) & (seen == 0)
                value = torch.where(is_pooled[:, None], part, value)
            seen = seen + new
        return value, seen

    def read(self, state: PoolState) -> Tensor:
        """The pooled features (B, D) of a state, in the state's precision."""
        value, seen = state
        return value / seen.clamp(min=1)[:, None] if self.mode == "mean" else value

    def stepper(self) -> Callable[[Tensor, PoolState], tuple[Tensor, PoolState]]:
        """The same for one position x (B, D)."""
        return lambda x, state: self.prefill(x[:, None], state)

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = torch.float64
    ) -> PoolState:
        """The state before the first sample."""
        zeros = torch.zeros(batch, self.d_model, device=device, dtype=dtype or torch.float64)
        return zeros, torch.zeros(batch, device=device, dtype=torch.int64)
