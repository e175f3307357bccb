"""The chunk view in plain torch: matrix products on short chunks, a state handed from each to the next.

Shapes: B batch, L length, H heads, N state size, K channels, c chunk length, I number of chunks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from statespan._check import check_int, check_lengths, check_tensor
from statespan.ssm.packed import DenseTransition, DiagonalTransition, unpack
from statespan.ssm.structure import Structure

CHUNK = 64


def chunked(ssm: Structure, u: Tensor, state: Tensor | None = None, *, chunk: int = CHUNK) -> tuple[Tensor, Tensor]:
    """Apply an SSM to a sequence, from a state and to a state.

    Args:
        ssm: The SSM.
        u: (B, L, H), L ≥ 0.
        state: (B, H, N), or None for zeros.
        chunk: Length of the chunks.

    Returns:
        y of shape (B, L, K, H) and the state after the last sample, in the dtype of ``state`` (float64 for None).
    """
    batch, length, heads = check_tensor("u", u, ("batch", "length", ssm.heads), kind="real").shape
    check_int("chunk", chunk, minimum=1)
    u = u.to(ssm.dtype)
    if state is None:
        state = ssm.initial_state(batch)
    check_tensor("state", state, (batch, heads, ssm.d_state), kind="real")
    if length == 0:
        return u.new_zeros(batch, 0, ssm.channels, heads, dtype=ssm.dtype), state
    c = min(chunk, length)
    operators = ssm.operators(c, dtype=torch.float64)
    T, E, O = (x.to(ssm.dtype) for x in (operators.T, operators.E, operators.O))  # noqa: E741

    whole, rest = divmod(length, c)
    chunks = u[:, : whole * c].unflatten(1, (whole, c))  # (B, I, c, H)
    added = torch.einsum("hnc,bich->bihn", E, chunks)
    # The states between chunks carry everything that lasts, so they stay in float64.
    power = DiagonalTransition(unpack(operators.G)) if operators.G.ndim == 2 else DenseTransition(operators.G)
    x, before = state.double(), []
    for new in added.double().unbind(1):
        before.append(x)
        x = power.apply(x) + new
    states = torch.stack(before, 1).to(ssm.dtype)  # (B, I, H, N)
    y = torch.einsum("khij,bmjh->bmikh", T, chunks) + torch.einsum("khin,bmhn->bmikh", O, states)
    y = y.flatten(1, 2)
    if rest:
        tail = u[:, whole * c :]  # the operators of a shorter chunk are corners of those of a whole one
        y_tail = torch.einsum("khij,bjh->bikh", T[..., :rest, :rest], tail)
        y_tail = y_tail + torch.einsum("khin,bhn->bikh", O[..., :rest, :], x.to(ssm.dtype))
        new = torch.einsum("hnc,bch->bhn", E[..., c - rest :], tail).double()
        x = ssm.advance(x, rest) + new
        y = torch.cat([y, y_tail], 1)
    return y, x.to(state.dtype)


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
    # With the padding moved to the front the sequences end together, and zeros before the first sample change nothing.
    source = torch.arange(length, device=u.device) - (length - lengths[:, None])  # (B, L)
    aligned = torch.gather(u, 1, source.clamp(min=0)[..., None].expand_as(u)) * (source >= 0)[..., None]
    _, driven = chunked(ssm, aligned)
    if state is None:
        return driven
    return (ssm.advance(state.double(), lengths) + driven).to(state.dtype)
