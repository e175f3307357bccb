"""Arguments and results of the chunk engine's operators, as named tuples.

Shapes: H heads, S sets of modes that the heads share in turn, M modes, N = 2M, B batch, L length, I chunks of c
samples, K channels (2K kernels where the last K are anti-causal), R rank of a diagonal plus low-rank matrix.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Sequences(NamedTuple):
    """A batch of sequences and their initial state."""

    u: Tensor
    """(H, B, L), L ≥ 1, in any memory order."""
    first: Tensor | None = None
    """The state before the first sample (H, B, N), or None for zeros."""


class ChunkOperators(NamedTuple):
    """The operators of one chunk, or their gradients; the real and the imaginary part of a mode are adjacent."""

    K: Tensor
    """(K or 2K, H, c): the kernel, with the skip in its first value."""
    E: Tensor
    """(H, c, N): how inputs enter the state."""
    G: Tensor
    """(H, N) or (H, N, N): Ā^c."""
    O: Tensor  # noqa: E741
    """(K or 2K, H, c, N): what the state before the chunk adds to the outputs."""
    W: Tensor | None = None
    """(2, H, R·c, N): the factors F and J of a low-rank part of G, which only kernels apply, and only of rank 1; or
    None."""


class ChunkOptions(NamedTuple):
    """Options for applying the operators of a chunk."""

    path: str
    """"triton" or "chunks"."""
    dtype: torch.dtype
    """What to compute in."""
    both: bool = False
    """Whether the last K channels are anti-causal."""
    gelu: bool = False
    """Whether to apply GELU to the output."""
    save: bool = False
    """Whether a backward pass will follow."""
    last: bool = False
    """Whether to return the state."""
    owns_input: bool = False
    """Whether u has no other use, so that its gradient may overwrite it."""
    keep_preactivation: bool = False
    """With GELU on path "triton": whether to save the pre-activation. Otherwise the backward pass recomputes it, which
    needs a single pass over each sequence, in one direction, and 16-bit data."""
    has_first: bool = False
    """For the backward pass: whether there was a first state."""


class SavedChunks(NamedTuple):
    """Tensors that the backward pass needs from the forward pass; those not saved are empty."""

    u: Tensor
    states: Tensor
    """(H, B, I, N), or flat (H, B·I·N): the state before each chunk."""
    ahead: Tensor
    """The same of the anti-causal recurrence."""
    preactivation: Tensor
    """Like y; with :attr:`statespan.ops.ssm.tiles.Tiles.apart` GELU's slope there instead."""


class OutputGradients(NamedTuple):
    """The incoming gradients of the outputs."""

    y: Tensor
    last: Tensor | None


class ModeTensors(NamedTuple):
    """The parameters of a modal SSM, or their gradients. Head h uses set h mod S of A, B and P."""

    dt: Tensor
    """(H,): log Δ or Δ."""
    decay: Tensor
    """(S, M): Re A, or the parameter behind it."""
    freq: Tensor
    """(S, M): Im A."""
    B: Tensor
    """(S, M, 2)."""
    C: Tensor
    """(K, H, M, 2)."""
    D: Tensor | None = None
    """(causal channels, H): a skip, which joins the kernel's first value; or None."""
    P: Tensor | None = None
    """(R, S, M, 2) of a diagonal plus low-rank matrix; or None."""


class BuildOptions(NamedTuple):
    """Options for building the operators of a chunk from :class:`ModeTensors`."""

    chunk: int
    ahead: int
    """How many of the channels, counted from the last, are anti-causal."""
    rule: str
    real_part: str
    """How ``decay`` becomes Re A."""
    log_dt: bool
    """Whether ``dt`` is log Δ."""
    precise: bool
    """Compute in float64; in float32 otherwise, which is enough for 16-bit operators."""
    factored: bool = False
    """Leave the low-rank part of G in its two factors."""
    rounded: bool = False
    """With ``precise``, of a diagonal SSM: store K, E and O in float32. G, which the recurrence applies many times,
    stays in float64, as do the lists of a rank-one SSM, from which its backward pass starts."""


class WholeOptions(NamedTuple):
    """Options for building the operators of a chunk and applying them: those of :class:`BuildOptions`, then others."""

    chunk: int
    ahead: int
    rule: str
    real_part: str
    log_dt: bool
    precise: bool
    factored: bool
    rounded: bool
    dtype: torch.dtype
    """What to compute in."""
    gelu: bool
    """Whether to apply GELU to the output."""
    keep_preactivation: bool
    """As in :class:`ChunkOptions`."""
    save: bool
    """Whether a backward pass will follow."""
    owns_kept: bool = False
    """For the backward pass: whether it may overwrite what the forward pass kept."""


class BuiltLists(NamedTuple):
    """Tensors that the backward pass of the build needs for a low-rank SSM; a diagonal one recomputes its tables."""

    E: Tensor
    O: Tensor  # noqa: E741
    W: Tensor


class RecurrenceOptions(NamedTuple):
    """Options for running the recurrence of :class:`ModeTensors` sample by sample."""

    ahead: int
    """How many of the channels, counted from the last, are anti-causal."""
    real_part: str
    log_dt: bool
    last: bool
    """Whether to return the state after the last sample."""
    dtype: torch.dtype
    """Of y."""


class WholeParts(NamedTuple):
    """What a whole SSM keeps for its backward pass, for a compiler; those not needed are empty."""

    x: Tensor
    """The input (H, B, L) in the engine's order and dtype; empty if it came so."""
    K: Tensor
    """This and the others as in :class:`ChunkOperators`."""
    E: Tensor
    G: Tensor
    O: Tensor  # noqa: E741
    F: Tensor
    """(H, R·c, N): the first half of W; J is the second."""
    J: Tensor
    states: Tensor
    """As in :class:`SavedChunks`."""
    ahead: Tensor
    preactivation: Tensor
