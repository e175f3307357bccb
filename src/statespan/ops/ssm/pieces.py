"""An SSM over packed sequences: pieces of one length, and the states between those of one sequence.

Shapes: B rows, T positions, I pieces, P length of a piece, H heads, N state size, K channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from statespan.ops.parallel.packing import Packing, Pieces
from statespan.ops.ssm.apply import apply_from
from statespan.ops.ssm.doublings import Doublings, apply_rows
from statespan.ops.ssm.shards import ShardOutputs, look_ahead
from statespan.ops.ssm.source import SSMSource


def run_packed(
    packing: Packing, source: SSMSource, u: Tensor, *, D: Tensor | None = None, ahead: SSMSource | None = None,
    dtype: torch.dtype | None = None,
) -> ShardOutputs:  # fmt: skip
    """Apply an SSM to each sequence of the rows u (B, T, H), from zeros; see :func:`run_shard` of shards."""
    packing.check(u)
    structure, batch, pieces = source.structure(), u.shape[0], packing.pieces(u.device)
    x = packing.cut(u)
    if not x.shape[0]:  # no sequences, or empty ones
        y, _ = apply_from(source, u, None, D, dtype=dtype)
        return ShardOutputs(y, None if ahead is None else torch.zeros_like(y), structure.initial_state(batch))
    doublings, both = Doublings(structure), ahead is not None
    ends = doublings.state(torch.cat([x, x.flip(1)]) if both else x).unflatten(0, (1 + both, batch, len(pieces.source)))
    states = _before(ends[0], pieces.number, pieces, doublings)
    y, _ = apply_from(source, x, states.flatten(0, 1), D, dtype=dtype)
    looking = None
    if ahead is not None:
        behind = _before(ends[1].flip(1), pieces.left.flip(0), pieces, doublings).flip(1)
        looking = packing.join(look_ahead(ahead, x, behind.flatten(0, 1), dtype), batch)
    return ShardOutputs(packing.join(y, batch), looking, structure.initial_state(batch))


def _before(ends: Tensor, number: Tensor, pieces: Pieces, doublings: Doublings) -> Tensor:
    """The state before each piece of its sequence (B, I, H, N), from the states that pieces lead to from zeros.

    A prefix sum in log₂ rounds: after each, x_i holds twice as many of the pieces up to i, those of its sequence.
    """
    x, shift = ends, 1
    while shift < pieces.most:
        through = doublings.square((shift * pieces.length).bit_length() - 1)
        moved = apply_rows(through, x.permute(2, 0, 1, 3).flatten(1, 2)).unflatten(1, x.shape[:2]).permute(1, 2, 0, 3)
        x, shift = x + _moved(moved, number, shift), 2 * shift
    return _moved(x, number, 1)


def _moved(x: Tensor, number: Tensor, shift: int) -> Tensor:
    """The values of pieces that come ``shift`` before in the same sequence, or zeros."""
    return x.roll(shift, 1).masked_fill((number < shift)[:, None, None], 0.0)
