"""Very long sequences on one device: shards in turn, each from the state after the one before it.

Shapes: B batch, L length, D = d_model features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

from statespan._check import check_bool, check_int, check_lengths
from statespan.nn.sequence import SequenceModule
from statespan.ops.parallel.context import check_alone


def in_turn(
    module: SequenceModule,
    x: Tensor,
    state: Any = None,
    *,
    shards: int,
    lengths: Tensor | None = None,
    dt_scale: float = 1.0,
    truncate: bool = False,
) -> tuple[Tensor, Any]:
    """Apply ``module.prefill`` to shards of a sequence one after the other, with gradients, in bounded memory.

    The outputs, the state and all gradients are those of one pass. For the backward pass only the inputs and the states
    between shards are stored; each shard is computed again when its gradients are. So the memory beside that of x and y
    is that of one shard, at the price of a second forward pass.

    Args:
        module: A causal layer, backbone or model with an output at every position.
        x: (B, L, D), or tokens (B, L).
        state: As for ``prefill``; None to start.
        shards: The number of shards, 1 … L, whose lengths differ by at most 1.
        lengths: True length of each sequence (B,); padding is ignored.
        dt_scale: As in ``forward``.
        truncate: Truncated back-propagation through time: gradients do not cross from a shard into those before it.
            Outputs and states stay the same.

    Returns:
        y of shape (B, L, …), and the new state.

    Example:
        >>> from statespan import S4D
        >>> layer, x = S4D(8, 4), torch.randn(1, 1000, 8)
        >>> y, state = in_turn(layer, x, shards=10)
        >>> bool((y - layer(x)).abs().max() < 1e-5)
        True
    """
    check_alone("in_turn")
    batch, length = x.shape[:2]
    if check_int("shards", shards, minimum=1) > length:
        raise ValueError(f"shards must be at most the length of x, {length}, got {shards}")
    if lengths is not None:
        lengths = check_lengths(lengths, batch, length).to(x.device)

    def run(part: Tensor, state: Any, real: Tensor | None) -> Any:
        return module.prefill(part, state, lengths=real, dt_scale=dt_scale)

    check_bool("truncate", truncate)
    outputs, offset = [], 0
    for part in x.tensor_split(shards, 1):
        real = None if lengths is None else (lengths - offset).clamp(0, part.shape[1])
        if truncate:
            state = tree_map_only(Tensor, Tensor.detach, state)
        y, state = checkpoint(run, part, state, real, use_reentrant=False)
        outputs.append(y)
        offset += part.shape[1]
    return torch.cat(outputs, 1), state
