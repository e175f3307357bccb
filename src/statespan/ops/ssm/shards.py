"""An SSM over sequences of which each rank holds a shard; docs/scaling.md explains it.

Each rank computes the state that its own samples lead to, all ranks exchange these states, and each combines those
before it with powers of Ā. Then it applies the SSM from that state. A channel that looks ahead needs the same from the
right.

Shapes: B batch, L length of a shard, H heads, N state size, K channels, R ranks, c chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from statespan.ops.parallel import SequenceParallel
from statespan.ops.parallel.ranks import gathered
from statespan.ops.ssm.apply import apply_from
from statespan.ops.ssm.chunked import aligned
from statespan.ops.ssm.doublings import Doublings, apply_rows
from statespan.ops.ssm.source import Modal, SSMSource
from statespan.ssm import Structure
from statespan.ssm.packed import Transition


class ShardOutputs(NamedTuple):
    """The outputs of one shard, and the state after the whole sequences.

    Example:
        >>> outputs = ShardOutputs(torch.zeros(1, 5, 1, 2), None, torch.zeros(1, 2, 4))
        >>> outputs.behind.shape, outputs.ahead is None
        (torch.Size([1, 5, 1, 2]), True)
    """

    behind: Tensor
    """(B, L, K, H)."""
    ahead: Tensor | None
    """The same of the SSM that looks ahead."""
    last: Tensor
    """(B, H, N), the same on every rank."""


def run_shard(
    shards: SequenceParallel, source: SSMSource, u: Tensor, *, state: Tensor | None = None, D: Tensor | None = None,
    ahead: SSMSource | None = None, lengths: Tensor | None = None, dtype: torch.dtype | None = None,
) -> ShardOutputs:  # fmt: skip
    """Apply an SSM to this rank's shard, from the state before whole sequences to the one after them.

    Args:
        shards: The block that is open.
        source: The SSM.
        u: (B, L, H).
        state: (B, H, N), the same on every rank; None for zeros.
        D: A skip (K, H), or None.
        ahead: The same SSM with the C of channels that look ahead, starting at the next sample; or None.
        lengths: True length (B,) of the part of each sequence in this shard, whose padding is 0; None for L.
        dtype: What to compute in.

    Returns:
        The outputs, and the state after each sequence in the dtype of ``state`` (float64 for None).
    """
    layout, structure = shards.layout(u), source.structure()
    rank, count, batch, doublings = layout.rank, len(layout.lengths), u.shape[0], Doublings(structure)
    directions = [u if lengths is None else aligned(u, lengths)] + ([] if ahead is None else [u.flip(1)])
    ends = doublings.state(torch.cat(directions)).unflatten(0, (len(directions), batch))
    everyone = gathered(ends, shards.ranks)  # (R, 1 or 2, B, H, N)
    zeros = structure.initial_state(batch)
    maps = {length: doublings.power(length) for length in set(layout.lengths)}
    first = zeros if state is None else state.double()
    if lengths is None:
        states = _combined(everyone[:, 0], first, [maps[length] for length in layout.lengths])
    else:
        states = _combined_by_lengths(structure, everyone[:, 0], first, shards.ranks.all_gather(lengths))
    # every rank reads its state from a stack of all: so each takes part in the backward pass of the exchange
    y, _ = apply_from(source, u, states[rank], D, dtype=dtype)
    looking = None
    if ahead is not None:
        from_right = _combined(everyone[:, 1].flip(0), zeros, [maps[length] for length in layout.lengths[::-1]])
        looking = look_ahead(ahead, u, from_right[count - 1 - rank], dtype)
    return ShardOutputs(y, looking, states[count].to(zeros.dtype if state is None else state.dtype))


def channels_of(source: SSMSource, part: slice) -> SSMSource:
    """The SSM with some of its channels."""

    def structure() -> Structure:
        ssm = copy(source.structure())
        ssm.C = ssm.C[part]
        return ssm

    def modal() -> Modal | None:
        modes = source.modal()
        if modes is None:
            return None
        return modes._replace(parameters=modes.parameters._replace(C=modes.parameters.C[part].contiguous()))

    return replace(source, structure=structure, modal=modal, memo=None)


def _combined(ends: Tensor, first: Tensor, maps: Sequence[Transition]) -> Tensor:
    """The state before each rank's shard and the one after all, (R + 1, B, H, N), from each one's own (R, …)."""
    states = [first]
    for end, through in zip(ends, maps):
        states.append(apply_rows(through, states[-1].transpose(0, 1)).transpose(0, 1) + end)
    return torch.stack(states)


def _combined_by_lengths(structure: Structure, ends: Tensor, first: Tensor, lengths: Tensor) -> Tensor:
    """The same where a shard holds a part of its own of each sequence, (R, B)."""
    states = [first]
    for end, steps in zip(ends, lengths):
        states.append(structure.advance(states[-1], steps) + end)
    return torch.stack(states)


def look_ahead(source: SSMSource, u: Tensor, state: Tensor, dtype: torch.dtype | None) -> Tensor:
    """The outputs (B, L, K, H) of a recurrence from the right, which read the state of the sample behind theirs."""
    _, _, C, F = source.structure().recurrence()
    reversed_u = u.flip(1)
    y, _ = apply_from(source, reversed_u, state, dtype=dtype)
    if F is not None:  # with a first-order hold y reads the state before its sample, and F feeds the sample in
        return (y - F.to(y.dtype) * reversed_u[:, :, None]).flip(1)
    last = torch.einsum("khn,bhn->bkh", C, state).to(y.dtype)
    return torch.cat([last[:, None], y[:, :-1]], 1).flip(1)
