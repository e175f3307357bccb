"""Many sequences one after the other in one row, without padding.

Shapes: B batch, T positions of a row, S sequences, P length of a piece, I pieces of all sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor

from statespan._check import check_tensor
from statespan.ops.parallel.context import EAGER, active, check_alone, traced_outside

SHORTEST_PIECE, LONGEST_PIECE = 16, 512


class Pieces(NamedTuple):
    """Sequences cut into pieces of one length, each sequence beginning with a piece and ending with zeros.

    Example:
        >>> pieces = Packing([0, 3, 40]).pieces(torch.device("cpu"))
        >>> pieces.length, pieces.most, pieces.number.tolist()
        (16, 3, [0, 0, 1, 2])
    """

    source: Tensor
    """(I, P): the position of each sample in the row."""
    inside: Tensor
    """(I, P): False for zeros at the end of a sequence."""
    number: Tensor
    """(I,): how many pieces of its sequence come before each piece."""
    left: Tensor
    """(I,): how many come after it."""
    places: Tensor
    """(T,): the position of each sample among those of all pieces."""
    most: int
    """The most pieces that a sequence has."""
    length: int
    """P, a power of 2."""


class Packing:
    """The boundaries of the sequences in a row.

    Args:
        cu_seqlens: (S + 1,): 0, then the end of each sequence.

    Example:
        >>> packing = Packing([0, 3, 8])
        >>> packing.count, packing.total, packing.lengths.tolist()
        (2, 8, [3, 5])
    """

    def __init__(self, cu_seqlens: Tensor | Sequence[int]) -> None:
        ends = cu_seqlens.tolist() if isinstance(cu_seqlens, Tensor) else list(cu_seqlens)
        whole = all(isinstance(end, int) and not isinstance(end, bool) for end in ends)
        if not (whole and ends and ends[0] == 0 and ends == sorted(ends)):
            raise ValueError(f"cu_seqlens must be 0 and then whole numbers that do not decrease, got {ends}")
        self.ends = torch.tensor(ends)
        self.lengths = self.ends.diff()
        self.total, self.count = int(ends[-1]), len(ends) - 1
        self._pieces: dict[torch.device, Pieces] = {}

    def check(self, x: Tensor) -> None:
        """Check that x (B, T, …) is as long as all sequences together."""
        if x.shape[1] != self.total:
            raise ValueError(f"x must have the length {self.total} that cu_seqlens ends with, got {x.shape[1]}")

    def pieces(self, device: torch.device) -> Pieces:
        """The pieces, about four for each sequence."""
        if device not in self._pieces:
            parts = (part.to(device) if isinstance(part, Tensor) else part for part in self._cut())
            self._pieces[device] = Pieces._make(parts)
        return self._pieces[device]

    def _cut(self) -> Pieces:
        mean = self.total // max(self.count, 1)
        P = min(max(1 << (mean // 4).bit_length(), SHORTEST_PIECE), LONGEST_PIECE)
        counts = (self.lengths + P - 1) // P
        owner = torch.repeat_interleave(counts)
        number = torch.arange(len(owner)) - (counts.cumsum(0) - counts)[owner]
        source = (self.ends[:-1][owner] + number * P)[:, None] + torch.arange(P)
        inside = source < self.ends[1:][owner][:, None]
        most = int(counts.max()) if len(counts) else 0
        source, left = source.clamp(max=max(self.total - 1, 0)), counts[owner] - 1 - number
        return Pieces(source, inside, number, left, inside.flatten().nonzero()[:, 0], most, P)

    def cut(self, x: Tensor) -> Tensor:
        """The pieces (B·I, P, …) of x (B, T, …)."""
        pieces = self.pieces(x.device)
        return x[:, pieces.source].masked_fill_(~pieces.inside[..., None], 0.0).flatten(0, 1)

    def join(self, pieces: Tensor, batch: int) -> Tensor:
        """The row (B, T, …) of its pieces (B·I, P, …)."""
        return pieces.unflatten(0, (batch, -1)).flatten(1, 2)[:, self.pieces(pieces.device).places]

    def spread(self, x: Tensor) -> Tensor:
        """Repeat what each sequence has, x (S, …), at its positions: (1, T, …)."""
        return torch.repeat_interleave(x, self.lengths.to(x.device), 0, output_size=self.total)[None]

    def pool(self, x: Tensor, mode: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The sum, or the last or first position, of each sequence of x (1, T, D): (S, D), and the lengths (S,)."""
        self.check(check_tensor("x", x, (1, "length", "d_model"), kind="float"))
        lengths = self.lengths.to(x.device)
        if mode == "mean":
            return torch.segment_reduce(x[0].to(dtype), "sum", lengths=lengths, initial=0), lengths
        at = (self.ends[1:] - 1 if mode == "last" else self.ends[:-1]).clamp(0, max(self.total - 1, 0))
        return x[0, at.to(x.device)].to(dtype).masked_fill((lengths == 0)[:, None], 0.0), lengths


_PACKING: ContextVar[Packing | None] = ContextVar("packed", default=None)


def active_packing() -> Packing | None:
    """The innermost block of :func:`packed`, or None outside of all."""
    return None if traced_outside() else _PACKING.get()


@contextmanager
def packed(cu_seqlens: Tensor | Sequence[int]) -> Iterator[Packing]:
    """Run layers and models on many sequences in one row, without padding.

    Inside, x is one row (1, T, D), or (1, T) tokens, with the sequences one after the other. SSMs start each sequence
    from zeros, tied dropout draws features for each, and pools answer for each, (S, …). The numbers are those of the
    sequences alone.

    Args:
        cu_seqlens: (S + 1,) whole numbers: 0, then the end of each sequence; the last is T.

    Returns:
        A context.

    Example:
        >>> import statespan
        >>> layer, x, z = statespan.S4D(8), torch.randn(1, 50, 8), torch.randn(1, 70, 8)
        >>> with packed([0, 50, 120]):
        ...     y = layer(torch.cat([x, z], 1))
        >>> bool((y[:, 50:] - layer(z)).abs().max() < 1e-5)
        True
    """
    check_alone("packed")
    token = _PACKING.set(Packing(cu_seqlens))
    EAGER.enter()
    try:
        block = active_packing()
        assert block is not None
        yield block
    finally:
        EAGER.leave()
        _PACKING.reset(token)


def on_whole_sequences() -> bool:
    """Whether batches hold whole sequences: neither shards nor packed rows."""
    return active() is None and active_packing() is None


def check_unpacked(use: str) -> None:
    """Raise a TypeError inside a block of :func:`packed`, for what cannot run on packed rows."""
    if active_packing() is not None:
        raise TypeError(f"{use} cannot run on packed sequences: use it outside of packed")
