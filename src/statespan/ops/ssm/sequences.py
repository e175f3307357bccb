"""Applies an SSM to what a batch holds: whole sequences, this rank's shards of them, or packed rows.

Shapes: B batch, L length, H heads, K channels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import gelu

from statespan.ops.parallel import active
from statespan.ops.parallel.packing import active_packing, check_unpacked
from statespan.ops.ssm.apply import apply, apply_from
from statespan.ops.ssm.chunked import state_after
from statespan.ops.ssm.pieces import run_packed
from statespan.ops.ssm.shards import ShardOutputs, channels_of, run_shard
from statespan.ops.ssm.source import SSMSource


def runner() -> Callable[..., ShardOutputs] | None:
    """How to apply an SSM inside a block for shards or packed rows; None outside of both."""
    if (shards := active()) is not None:
        check_unpacked("sequence_parallel")
        return partial(run_shard, shards)
    return None if (rows := active_packing()) is None else partial(run_packed, rows)


def apply_whole(
    source: SSMSource, u: Tensor, D: Tensor | None = None, *, bidirectional: bool = False,
    activation: str | None = None, dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """As :func:`statespan.ops.apply`, where u (B, L, H) may be this rank's shard of sequences, or a packed row."""
    if (run := runner()) is None:
        return apply(source, u, D, bidirectional=bidirectional, activation=activation, dtype=dtype)
    if bidirectional:
        channels = source.structure().channels
        first, second = (channels_of(source, part) for part in (slice(channels // 2), slice(channels // 2, channels)))
        outputs = run(first, u, D=D, ahead=second, dtype=dtype)
        assert outputs.ahead is not None
        y = outputs.behind + outputs.ahead
    else:
        y = run(source, u, D=D, dtype=dtype).behind
    return gelu(y) if activation is not None else y


def prefill_whole(
    source: SSMSource, u: Tensor, state: Tensor | None, D: Tensor | None = None, *, lengths: Tensor | None = None,
    activation: str | None = None, dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As :func:`statespan.ops.apply_from`, to sequences of which u (B, L, H) may be this rank's shard.

    The state returned is that after each whole sequence; ``lengths`` (B,) are those of the parts in u.
    """
    check_unpacked("prefill")
    if (shards := active()) is not None:
        y, _, after = run_shard(shards, source, u, state=state, D=D, lengths=lengths, dtype=dtype)
        return gelu(y) if activation is not None else y, after
    y, after = apply_from(source, u, state, D, activation=activation, dtype=dtype)
    if lengths is not None:
        after = state_after(source.structure(), u.to(source.dtype), lengths, state)
    return y, after
