"""Arguments and results of the chunk engine's operators, as named tuples.

Shapes: H heads, S sets of modes that the heads share in turn, M modes, N = 2M, B batch, L length, I chunks of c
samples, K channels (2K kernels where the last K are anti-causal), R rank of a diagonal plus low-rank matrix.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Sequences(NamedTuple):
    """A batch of sequences and their initial state.

    Example:
        >>> inputs = Sequences(u=torch.zeros(4, 2, 100))  # (H, B, L), from zero states
        >>> inputs.first is None
        True
    """

    u: Tensor
    """(H, B, L), L ≥ 1, in any memory order."""
    first: Tensor | None = None
    """The state before the first sample (H, B, N), or None for zeros."""


class ChunkOperators(NamedTuple):
    """The operators of one chunk, or their gradients; the real and the imaginary part of a mode are adjacent.

    Example:
        >>> E, G, O = torch.ones(4, 32, 8), torch.zeros(4, 8), torch.ones(1, 4, 32, 8)
        >>> operators = ChunkOperators(torch.ones(1, 4, 32), E, G, O)
        >>> operators.W is None
        True
    """

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
    """Options for applying the operators of a chunk.

    Example:
        >>> options = ChunkOptions("chunks", torch.float32, gelu=True)
        >>> options.both, options._replace(save=True).save
        (False, True)
    """

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
    """Tensors that the backward pass needs from the forward pass; those not saved are empty.

    Example:
        >>> none = torch.empty(0)
        >>> saved = SavedChunks(u=torch.zeros(4, 2, 96), states=torch.zeros(4, 2, 3, 8), ahead=none, preactivation=none)
        >>> saved.states[:, :, 1].shape  # before the second chunk
        torch.Size([4, 2, 8])
    """

    u: Tensor
    states: Tensor
    """(H, B, I, N), or flat (H, B·I·N): the state before each chunk."""
    ahead: Tensor
    """The same of the anti-causal recurrence."""
    preactivation: Tensor
    """Like y; with :attr:`statespan.ops.ssm.tiles.Tiles.apart` GELU's slope there instead."""


class OutputGradients(NamedTuple):
    """The incoming gradients of the outputs.

    Example:
        >>> gradients = OutputGradients(y=torch.ones(1, 4, 2, 100), last=None)
        >>> gradients.last is None  # the last state was not used
        True
    """

    y: Tensor
    last: Tensor | None


class ModeTensors(NamedTuple):
    """The parameters of a modal SSM, or their gradients. Head h uses set h mod S of A, B and P.

    Example:
        >>> from statespan import S4D
        >>> modes = S4D(4, 8).ssm.modal(1.0).modes(None)
        >>> modes.dt.shape, modes.C.shape, modes.P
        (torch.Size([4]), torch.Size([1, 4, 4, 2]), None)
    """

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
    """Options for building the operators of a chunk from :class:`ModeTensors`.

    Example:
        >>> options = BuildOptions(32, ahead=0, rule="bilinear", real_part="exp", log_dt=True, precise=True)
        >>> options.chunk, options.factored
        (32, False)
    """

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
    """Options for building the operators of a chunk and applying them: those of :class:`BuildOptions`, then others.

    Example:
        >>> built = BuildOptions(32, 0, "bilinear", "exp", log_dt=True, precise=True)
        >>> options = WholeOptions(*built, dtype=torch.float32, gelu=True, keep_preactivation=True, save=True)
        >>> options.rule, options.gelu
        ('bilinear', True)
    """

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
    """Tensors that the backward pass of the build needs for a low-rank SSM; a diagonal one recomputes its tables.

    Example:
        >>> H, c, N = 4, 32, 8
        >>> lists = BuiltLists(E=torch.zeros(H, c, N), O=torch.zeros(1, H, c, N), W=torch.zeros(2, H, c, N))
        >>> lists.W.unbind()[0].shape
        torch.Size([4, 32, 8])
    """

    E: Tensor
    O: Tensor  # noqa: E741
    W: Tensor


class RecurrenceOptions(NamedTuple):
    """Options for running the recurrence of :class:`ModeTensors` sample by sample.

    Example:
        >>> options = RecurrenceOptions(ahead=0, real_part="exp", log_dt=True, last=True, dtype=torch.float32)
        >>> options.last
        True
    """

    ahead: int
    """How many of the channels, counted from the last, are anti-causal."""
    real_part: str
    log_dt: bool
    last: bool
    """Whether to return the state after the last sample."""
    dtype: torch.dtype
    """Of y."""


class WholeParts(NamedTuple):
    """What a whole SSM keeps for its backward pass, for a compiler; those not needed are empty.

    Example:
        >>> parts = WholeParts(**dict.fromkeys(WholeParts._fields, torch.empty(0)))
        >>> parts._replace(K=torch.zeros(1, 4, 32)).K.shape
        torch.Size([1, 4, 32])
    """

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
