"""An SSM over packed sequences: pieces of one length, and the states between those of one sequence.

Shapes: B rows, T positions, I pieces, P length of a piece, H heads, N state size, K channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from statespan.ops.parallel.packing import Packing
from statespan.ops.ssm.apply import apply_from
from statespan.ops.ssm.shards import ShardOutputs, apply_rows, look_ahead, power, shard_state
from statespan.ops.ssm.source import SSMSource
from statespan.ssm.packed import Transition


def run_packed(
    packing: Packing, source: SSMSource, u: Tensor, *, D: Tensor | None = None, ahead: SSMSource | None = None,
    dtype: torch.dtype | None = None,
) -> ShardOutputs:  # fmt: skip
    """Apply an SSM to each sequence of the rows u (B, T, H), from zeros; see :func:`run_shard` of shards."""
    packing.check(u)
    structure, batch, pieces = source.structure(), u.shape[0], packing.pieces
    x = packing.cut(u)
    if not x.shape[0]:
        y, _ = apply_from(source, u, None, D, dtype=dtype)
        return ShardOutputs(y, None if ahead is None else torch.zeros_like(y), structure.initial_state(batch))
    step = power(structure.recurrence().transition, x.shape[1])
    states = _before(shard_state(structure, x).unflatten(0, (batch, -1)), pieces.number, pieces.most, step)
    y, _ = apply_from(source, x, states.flatten(0, 1), D, dtype=dtype)
    looking = None
    if ahead is not None:
        ends = shard_state(structure, x.flip(1)).unflatten(0, (batch, -1)).flip(1)
        behind = _before(ends, pieces.left.flip(0), pieces.most, step).flip(1)
        looking = packing.join(look_ahead(ahead, x, behind.flatten(0, 1), dtype), batch)
    return ShardOutputs(packing.join(y, batch), looking, structure.initial_state(batch))


def _before(ends: Tensor, number: Tensor, most: int, step: Transition) -> Tensor:
    """The state before each piece of its sequence (B, I, H, N), from the states that pieces lead to from zeros.

    A prefix sum in log₂ rounds: after each, x_i holds twice as many of the pieces up to i, those of its sequence.
    """
    x, number, shift = ends, number.to(ends.device), 1
    while shift < most:
        moved = apply_rows(step, x.permute(2, 0, 1, 3).flatten(1, 2)).unflatten(1, x.shape[:2]).permute(1, 2, 0, 3)
        x = x + _moved(moved, number, shift)
        step, shift = step.squared(), 2 * shift
    return _moved(x, number, 1)


def _moved(x: Tensor, number: Tensor, shift: int) -> Tensor:
    """The values of pieces that come ``shift`` before in the same sequence, or zeros."""
    return x.roll(shift, 1).masked_fill((number < shift)[:, None, None], 0.0)
