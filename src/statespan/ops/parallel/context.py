"""The block in which layers run over shards of a sequence.

Shapes: B batch, L length of a shard, R ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, distributed, nn
from torch.nn.functional import pad

from statespan._check import check_int, check_lengths
from statespan.ops.parallel.ranks import ProcessRanks, Ranks, gathered

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Group: TypeAlias = "distributed.ProcessGroup | DeviceMesh | Ranks | None"


class Layout(NamedTuple):
    """The lengths of all shards of a sequence, as one rank sees them.

    Example:
        >>> layout = Layout((3, 2), rank=1)
        >>> layout.offset, layout.length, layout.total
        (3, 2, 5)
    """

    lengths: tuple[int, ...]
    rank: int

    @property
    def offset(self) -> int:
        """The position of this rank's first sample."""
        return sum(self.lengths[: self.rank])

    @property
    def length(self) -> int:
        """The length of this rank's shard."""
        return self.lengths[self.rank]

    @property
    def total(self) -> int:
        """The length of the whole sequence."""
        return sum(self.lengths)


class SequenceParallel:
    """What :func:`sequence_parallel` gives: the operations on shards that models do not do by themselves.

    All are differentiable, but for :meth:`reduce_gradients`, and every rank has to call them. The gradient that all
    ranks compute together is that of the sum of their losses.

    Args:
        ranks: The ranks that share each sequence.

    Example:
        >>> class Alone(Ranks):
        ...     def _all_gather(self, x):
        ...         return x[None]
        ...     def _all_to_all(self, x):
        ...         return x
        >>> shards, x = SequenceParallel(Alone(rank=0, size=1)), torch.randn(2, 5, 4)
        >>> bool((shards.gather(shards.shard(x)) == x).all())
        True
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._layout: Layout | None = None

    def shard(self, x: Tensor, dim: int = 1, *, sizes: Sequence[int] | None = None) -> Tensor:
        """This rank's shard of a tensor that every rank has whole.

        Args:
            x: The whole tensor.
            dim: The dimension of the length.
            sizes: The length of each rank's shard; None for lengths that differ by at most 1.

        Returns:
            A view of x.
        """
        total, count = x.shape[dim], self.ranks.size
        if sizes is None:
            sizes = [total // count + (rank < total % count) for rank in range(count)]
        elif len(sizes) != count or sum(check_int("sizes", size, minimum=0) for size in sizes) != total:
            raise ValueError(f"sizes must be {count} lengths with the sum {total}, got {list(sizes)}")
        self._layout = self._checked(sizes)
        return x.narrow(dim, self._layout.offset, self._layout.length)

    def gather(self, y: Tensor, dim: int = 1) -> Tensor:
        """The whole tensor, on every rank, from its shards."""
        lengths = self.layout(y, dim).lengths
        y = y.movedim(dim, 0)
        parts = gathered(pad(y, (0, 0) * (y.ndim - 1) + (0, max(lengths) - len(y))), self.ranks)
        return torch.cat([part[:length] for part, length in zip(parts, lengths)]).movedim(0, dim)

    def total(self, x: Tensor) -> Tensor:
        """The sum of x over the ranks, on every rank."""
        return gathered(x, self.ranks).sum(0)

    def mean(self, values: Tensor, *, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        """The mean over all positions of the whole sequences, on every rank; for losses.

        Args:
            values: (B, L, …) of this rank's shards, 0 for padding.
            lengths: The true length of each whole sequence (B,); None if there is no padding.
        """
        batch, total = values.shape[0], self.layout(values).total
        each = values.sum() / (values[:1, :1].numel() or 1)
        if lengths is None:
            return self.total(each) / (batch * total)
        return self.total(each) / check_lengths(lengths, batch, total).sum().clamp(min=1).to(values.device)

    @torch.no_grad()
    def reduce_gradients(self, module: nn.Module) -> None:
        """Replace each gradient of a module by its mean over the ranks, as DistributedDataParallel does.

        Call it after backward. It gives the gradient of the mean of the ranks' losses: of the loss itself if that is
        the same on every rank, as it is behind a pool, :meth:`gather`, :meth:`total` and :meth:`mean`.
        """
        groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for parameter in module.parameters():
            if (gradient := parameter.grad) is not None:
                groups.setdefault((gradient.dtype, gradient.device), []).append(gradient)
        for gradients in groups.values():
            flat = self.ranks.sum(torch.cat([gradient.flatten() for gradient in gradients])) / self.ranks.size
            for gradient, mean in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
                gradient.copy_(mean.view_as(gradient))

    def layout(self, x: Tensor, dim: int = 1) -> Layout:
        """The lengths of all shards, of which x is this rank's; exchanged once, unless :meth:`shard` knows them."""
        length = x.shape[dim]
        if self._layout is None:
            everyone = self.ranks.all_gather(torch.tensor([length], device=x.device))
            self._layout = self._checked(everyone.flatten().tolist())
        elif length != self._layout.length:
            raise ValueError(
                f"x must have the length of this rank's shard, {self._layout.length}, got {length}; "
                "use another sequence_parallel block for sequences of another length"
            )
        return self._layout

    def local_lengths(self, x: Tensor, lengths: Tensor | Sequence[int]) -> Tensor:
        """How many of each whole sequence's real samples (B,) are in this rank's shard x (B, L, …)."""
        layout = self.layout(x)
        whole = check_lengths(lengths, x.shape[0], layout.total).to(x.device)
        return (whole - layout.offset).clamp(0, layout.length)

    def _checked(self, lengths: Sequence[int]) -> Layout:
        if min(lengths) < 1:
            raise ValueError(f"shards must have at least one sample on each rank, got lengths {list(lengths)}")
        return Layout(tuple(int(length) for length in lengths), self.ranks.rank)


_ACTIVE: ContextVar[SequenceParallel | None] = ContextVar("sequence_parallel", default=None)


def active() -> SequenceParallel | None:
    """The innermost block of :func:`sequence_parallel`, or None outside of all."""
    return None if traced_outside() else _ACTIVE.get()


def whole_length(x: Tensor) -> int:
    """The length of whole sequences, of which x (B, L, …) may be this rank's shard."""
    shards = active()
    return x.shape[1] if shards is None else shards.layout(x).total


@contextmanager
def sequence_parallel(group: Group = None) -> Iterator[SequenceParallel]:
    """Run layers and models on shards of sequences, one shard on each rank of a group, in the order of the ranks.

    Layers exchange the states of their SSMs, so outputs, states and gradients are those of whole sequences. Lengths,
    initial states and final states are those of whole sequences, the same on every rank. Shards may differ in length.
    Compiled modules run uncompiled inside. A block is for sequences of one length.

    Args:
        group: A process group, a device mesh with one dimension, or None for all processes.

    Returns:
        A context that yields a :class:`SequenceParallel`.

    Example:
        >>> from statespan import S4D
        >>> def loss_of(model, x, target):  # on every rank of torch.distributed
        ...     with sequence_parallel() as shards:
        ...         y = model(shards.shard(x))
        ...         loss = shards.mean((y - shards.shard(target)) ** 2)
        ...         loss.backward()
        ...     shards.reduce_gradients(model)
        ...     return loss
    """
    shards = SequenceParallel(_ranks(group))
    token = _ACTIVE.set(shards)
    EAGER.enter()
    try:
        yield shards
    finally:
        EAGER.leave()
        _ACTIVE.reset(token)


def _ranks(group: Group) -> Ranks:
    if isinstance(group, Ranks):
        return group
    if not (distributed.is_available() and distributed.is_initialized()):
        raise RuntimeError("sequence_parallel needs torch.distributed: call torch.distributed.init_process_group first")
    if group is None or isinstance(group, distributed.ProcessGroup):
        return ProcessRanks(group)
    from torch.distributed.device_mesh import DeviceMesh

    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ValueError(f"group must be a mesh with one dimension, such as mesh['sequence'], got {group.ndim}")
        return ProcessRanks(group.get_group())
    raise TypeError(f"group must be a process group, a device mesh or None, got {type(group).__name__}")


class _Eager:
    """Has compiled functions run uncompiled while a block is open, in any thread."""

    def __init__(self) -> None:
        self.lock, self.open = Lock(), 0
        self.stance: Any = None

    def enter(self) -> None:
        with self.lock:
            self.open += 1
            if self.stance is None and "torch._dynamo" in sys.modules:  # without it nothing has been compiled
                self.stance = torch.compiler.set_stance("force_eager")

    def leave(self) -> None:
        with self.lock:
            self.open -= 1
            if not self.open and self.stance is not None:
                self.stance.__exit__(None, None, None)
                self.stance = None


EAGER = _Eager()


def traced_outside() -> bool:
    """Whether a compiler traces outside of all blocks; what it traced there is not used inside of one."""
    if not torch.compiler.is_compiling():
        return False
    if EAGER.open:
        raise TypeError("torch.compile cannot trace inside of sequence_parallel or packed: compile outside of it")
    return True


def check_alone(use: str) -> None:
    """Raise a TypeError inside a block of :func:`sequence_parallel`, for what cannot run on shards."""
    if active() is not None:
        raise TypeError(f"{use} cannot run on shards of a sequence: use it outside of sequence_parallel")
