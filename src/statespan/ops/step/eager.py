"""A step in eager code on a CPU without gradients: few calls, into memory that is used again.

At batch 1 the time is that of the calls, and in large batches that of fresh memory, so the step works on blocks of rows
that stay in the cache and has memory of its own for one of them. Nothing in it depends on the other rows: products are
elementwise, or one vector with another.

Shapes: B rows of a block, H heads, N state size, M = N/2 modes, K channels, R rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from statespan.ops.register import transformed

if TYPE_CHECKING:
    from statespan.ops.step.operator import System

BLOCK = 1 << 17
"""Numbers of a block's states: 1 MiB in float64."""
SPARES = 2
"""Blocks of memory that are kept: a thread takes one while it steps."""


def is_eager_on_cpu(*tensors: Tensor) -> bool:
    """Whether these are plain tensors on a CPU, in code that nothing records, traces or transforms."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or transformed():
        return False
    if torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state() is not None:
        return False
    return all(type(x) is Tensor and x.is_cpu and not x.is_neg() for x in tensors)


class StepMemory:
    """The memory of a step of ``count`` rows, and its views.

    Example:
        >>> from statespan import S4D
        >>> from statespan.ops import system_of
        >>> step = EagerStep(system_of(S4D(4, 8).structure()), early=False)
        >>> memory = step.take(2)
        >>> memory.u.shape, memory.x.shape
        (torch.Size([2, 4, 1]), torch.Size([2, 4, 8]))
    """

    def __init__(self, count: int, step: EagerStep) -> None:
        (H, N), K = step.even.shape, step.C.shape[1]
        self.count = count
        self.x, self.new = (torch.empty(count, H, N, dtype=torch.float64) for _ in range(2))
        self.x_real, self.x_imag = self.x.chunk(2, -1)
        self.new_real, self.new_imag = self.new.chunk(2, -1)
        self.u = torch.empty(count, H, 1, dtype=torch.float64)
        self.u_rows = self.u[..., 0]
        self.y = torch.empty(count, H, K, dtype=torch.float64)
        self.y_rows = self.y.mT  # (B, K, H)
        self.inner = torch.empty(count, H, 1, dtype=torch.float64)
        self.x_column, self.new_column = self.x.numpy()[..., None], self.new.numpy()[..., None]
        self.y_column, self.inner_column = self.y.numpy()[..., None], self.inner.numpy()[..., None]


class EagerStep:
    """The step of a diagonal system, with or without a low-rank part.

    Args:
        system: Float64, with a diagonal.
        early: Whether y reads the state before the sample.
        scale: A factor on y.

    Example:
        >>> from statespan import S4D
        >>> from statespan.ops import system_of
        >>> step = EagerStep(system_of(S4D(4, 8).structure()), early=False)
        >>> y, state = step(torch.ones(2, 4), torch.zeros(2, 4, 8, dtype=torch.float64), torch.float32, in_place=False)
        >>> y.shape, state.shape
        (torch.Size([2, 1, 4]), torch.Size([2, 4, 8]))
    """

    def __init__(self, system: System, *, early: bool, scale: float = 1.0) -> None:
        assert system.diagonal is not None
        real, imag = system.diagonal.detach().chunk(2, -1)
        self.even = torch.cat([real, real], -1)
        self.imag, self.minus_imag = imag.contiguous(), (-imag).contiguous()
        self.B, self.early = system.B.detach(), early
        self.C = (scale * system.C.detach()).transpose(0, 1).contiguous().numpy()  # (H, K, N)
        self.skip = None if system.D is None else (scale * system.D.detach().double()).mT.contiguous()  # (H, K)
        self.ranks: list[tuple[Tensor, Any]] = []
        if system.columns is not None and system.rows is not None:
            rows = system.rows.detach()[:, :, None].contiguous().numpy()  # (R, H, 1, N)
            self.ranks = list(zip(system.columns.detach(), rows))
        self.most = max(1, BLOCK // self.even.numel())
        self._spares: list[StepMemory] = []

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the memory, whose views a copy would separate."""
        return {**self.__dict__, "_spares": []}

    def take(self, count: int) -> StepMemory:
        """Memory for this many rows, at most ``most``; to be given back."""
        try:
            rows = self._spares.pop()
        except IndexError:
            return self._new(count)
        return rows if rows.count == count else self._new(count)

    def give(self, rows: StepMemory) -> None:
        """Keep the memory for a later step."""
        if len(self._spares) < SPARES:
            self._spares.append(rows)

    def _new(self, count: int) -> StepMemory:
        with torch.inference_mode(False):  # it may be written to outside of that mode, too
            return StepMemory(count, self)

    def advance(self, rows: StepMemory, state: Tensor) -> None:
        """From ``rows.u`` and a state (B, H, N) to ``rows.y`` and ``rows.new``, all in float64."""
        x, new = rows.x, rows.new
        x.copy_(state)
        torch.mul(self.even, x, out=new)
        rows.new_real.addcmul_(self.minus_imag, rows.x_imag)
        rows.new_imag.addcmul_(self.imag, rows.x_real)
        for column, row in self.ranks:
            np.matmul(row, rows.x_column, out=rows.inner_column)
            new.addcmul_(column, rows.inner)
        new.addcmul_(self.B, rows.u)
        np.matmul(self.C, rows.x_column if self.early else rows.new_column, out=rows.y_column)
        if self.skip is not None:
            rows.y.addcmul_(self.skip, rows.u)

    def __call__(self, u: Tensor, state: Tensor, dtype: torch.dtype, *, in_place: bool) -> tuple[Tensor, Tensor]:
        """Take a step of any number of rows; see :class:`statespan.ops.Stepper`, of which this is a part."""
        count, most = u.shape[0], self.most
        after = state if in_place else torch.empty(state.shape, dtype=state.dtype)
        y = torch.empty(count, self.C.shape[1], u.shape[1], dtype=dtype)
        for at in range(0, count, most):
            part = slice(at, at + most) if count > most else slice(None)
            rows = self.take(min(most, count - at))
            rows.u_rows.copy_(u[part])
            self.advance(rows, state[part])
            y[part].copy_(rows.y_rows)
            after[part].copy_(rows.new)
            self.give(rows)
        return y, after
