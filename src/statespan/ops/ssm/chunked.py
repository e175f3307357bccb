"""The chunk view of a structure in plain, differentiable torch: the readable form of the engine.

Shapes: B batch, L length, H heads, N state size, K channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from statespan._check import check_bool, check_int, check_lengths, check_tensor
from statespan.ops.ssm import chunks
from statespan.ops.ssm.arguments import ChunkOperators
from statespan.ops.ssm.layout import ordered, packed
from statespan.ssm.structure import Structure

CHUNK = 64


def chunked(
    ssm: Structure,
    u: Tensor,
    state: Tensor | None = None,
    *,
    chunk: int = CHUNK,
    bidirectional: bool = False,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Apply an SSM to a sequence, from a state to a state.

    Args:
        ssm: The SSM.
        u: (B, L, H), L ≥ 0.
        state: (B, H, N), or None for zeros.
        chunk: Length of the chunks.
        bidirectional: The last half of the channels look ahead, starting at the next sample. The state is that of the
            recurrence from the left.
        lengths: True length of each sequence (B,); padding is ignored, and its outputs are 0. None for L.

    Returns:
        y of shape (B, L, K, H) and the state after the last sample (of each sequence), in the dtype of ``state``
        (float64 for None).
    """
    batch, length, heads = check_tensor("u", u, ("batch", "length", ssm.heads), kind="real").shape
    check_int("chunk", chunk, minimum=1)
    if check_bool("bidirectional", bidirectional) and ssm.channels % 2:
        raise ValueError(f"bidirectional needs an even number of channels, got {ssm.channels}")
    ahead = ssm.channels // 2 if bidirectional else 0
    u = u.to(ssm.dtype)
    start = ssm.initial_state(batch) if state is None else state
    check_tensor("state", start, (batch, heads, ssm.d_state), kind="real")
    if lengths is not None:
        lengths = check_lengths(lengths, batch, length).to(u.device)
        mask = torch.arange(length, device=u.device) < lengths[:, None]
        u = u.masked_fill(~mask[..., None], 0.0)
    if length == 0:
        return u.new_zeros(batch, 0, ssm.channels - ahead, heads, dtype=ssm.dtype), start
    c = min(chunk, length)
    K, E, G, O = ssm.operators(c, ahead=ahead, dtype=torch.float64)  # noqa: E741
    dense = G.ndim == 3
    E, O = ordered(E.mT, dense), ordered(O, dense)  # noqa: E741
    first = ordered(start.double(), dense).transpose(0, 1)
    operators = ChunkOperators(K.to(u.dtype), E.to(u.dtype), G if dense else ordered(G, dense), O.to(u.dtype))
    outputs = chunks.forward(u.permute(2, 0, 1), operators, first, both=bidirectional)
    y = outputs.y.permute(2, 3, 0, 1)
    if lengths is not None:
        return y.masked_fill(~mask[..., None, None], 0.0), state_after(ssm, u, lengths, start).to(start.dtype)
    after = packed(outputs.last.transpose(0, 1), dense)
    if rest := length % c:  # the samples behind the last whole chunk
        tail = torch.einsum("brh,hrn->bhn", u[:, length - rest :].double(), E[:, -rest:])
        after = ssm.advance(after, rest) + packed(tail, dense)
    return y, after.to(start.dtype)


def state_after(ssm: Structure, u: Tensor, lengths: Tensor, state: Tensor | None = None) -> Tensor:
    """The state of each sequence after its own length.

    Args:
        ssm: The SSM.
        u: (B, L, H), zero from each sequence's length on.
        lengths: (B,), whole numbers 0 … L.
        state: (B, H, N), or None for zeros.

    Returns:
        States (B, H, N), in the dtype of ``state`` (float64 for None).
    """
    batch, length, _ = check_tensor("u", u, ("batch", "length", ssm.heads), kind="real").shape
    lengths = check_lengths(lengths, batch, length).to(u.device)
    _, driven = chunked(ssm, aligned(u, lengths))
    if state is None:
        return driven
    return (ssm.advance(state.double(), lengths) + driven).to(state.dtype)


def aligned(u: Tensor, lengths: Tensor) -> Tensor:
    """Sequences u (B, L, H) with their padding moved to the front, as zeros: they end together, with the same state."""
    length = u.shape[1]
    source = torch.arange(length, device=u.device) - (length - lengths[:, None])  # (B, L)
    return torch.gather(u, 1, source.clamp(min=0)[..., None].expand_as(u)) * (source >= 0)[..., None]
