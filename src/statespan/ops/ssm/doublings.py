"""Powers of Ā by squaring, each computed once, and the state that a sequence leads to.

Shapes: B batch, L length, H heads, N state size, c chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from statespan.ops.ssm.chunks import chunk_rows
from statespan.ssm import Structure
from statespan.ssm.packed import DenseTransition, DiagonalTransition, Transition, pack, unpack
from statespan.ssm.powers import block_length, powers, saturate

LONGEST_CHUNK = 256  # of the pass that computes the state alone


class Doublings:
    """The maps x ↦ Ā^(2^k) x of a structure, made when they are first needed.

    Args:
        structure: The SSM.

    Example:
        >>> from statespan import S4D
        >>> doublings = Doublings(S4D(2, 4).structure())
        >>> doublings.state(torch.ones(1, 10, 2)).shape
        torch.Size([1, 2, 4])
    """

    def __init__(self, structure: Structure) -> None:
        self.structure = structure
        transition, self.B, *_ = structure.recurrence()
        is_diagonal = isinstance(transition, DiagonalTransition)
        self.maps = [transition if is_diagonal else DenseTransition(transition.matrix())]

    def square(self, k: int) -> Transition:
        """The map applied 2^k times."""
        while len(self.maps) <= k:
            self.maps.append(self.maps[-1].squared())
        return self.maps[k]

    def power(self, steps: int) -> Transition:
        """The map applied ``steps`` times, at least once."""
        first, *others = (self.square(k) for k in range(steps.bit_length()) if steps >> k & 1)
        for other in others:
            first = _composed(first, other)
        return first

    def state(self, u: Tensor) -> Tensor:
        """The state (B, H, N) after u (B, L, H) from zeros, float64: a matrix product, then sums of pairs of chunks."""
        batch, length, _ = u.shape
        dtype = torch.promote_types(u.dtype, self.structure.dtype)
        c = min(block_length(length), LONGEST_CHUNK)  # a power of 2
        x = pad(u.to(dtype).permute(2, 0, 1), (-length % c, 0))  # zeros before the first sample change nothing
        states = (chunk_rows(x, c) @ self._columns(c).to(dtype)).double()  # (H, B·I, N)
        states, k = states.unflatten(1, (batch, x.shape[2] // c)), c.bit_length() - 1
        while (chunks := states.shape[2]) > 1:
            if chunks % 2:
                states = pad(states, (0, 0, 1, 0))
            earlier, later = states[:, :, 0::2], states[:, :, 1::2]
            states = apply_rows(self.square(k), earlier.flatten(1, 2)).view_as(later) + later
            k += 1
        return states[:, :, 0].transpose(0, 1)

    def _columns(self, c: int) -> Tensor:
        """``Ā^(c-1-j) B̄`` in row j, (H, c, N), float64."""
        transition = self.maps[0]
        if isinstance(transition, DiagonalTransition):
            return pack((unpack(self.B)[..., None] * powers(transition.Abar, c).flip(-1)).mT)
        rows = self.B[:, None]  # (H, 1, N)
        for k in range(c.bit_length() - 1):
            rows = torch.cat([saturate(apply_rows(self.square(k), rows), -1), rows], 1)
        return rows


def apply_rows(transition: Transition, x: Tensor) -> Tensor:
    """The map for many states (H, rows, N) of each head."""
    if isinstance(transition, DiagonalTransition):
        return pack(transition.Abar[:, None] * unpack(x))
    return x @ transition.matrix().mT


def _composed(first: Transition, second: Transition) -> Transition:
    """One map after the other; powers of one Ā commute."""
    if isinstance(first, DiagonalTransition) and isinstance(second, DiagonalTransition):
        return DiagonalTransition(saturate(first.Abar * second.Abar))
    return DenseTransition(saturate(first.matrix() @ second.matrix(), -2, -1))
