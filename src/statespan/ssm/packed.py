"""Real arithmetic for complex modes, and the transition of a recurrence as a map that can be applied and squared.

A vector of M complex numbers, the kept half of M conjugate pairs, is packed into N = 2M real ones: the real parts, then
the imaginary parts. States are always packed, so all structures look alike from outside.

Shapes: H heads, M kept modes, N packed state size, K channels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from statespan.ssm.powers import saturate


def pack(x: Tensor) -> Tensor:
    """Complex (..., M) as real (..., N)."""
    return torch.cat([x.real, x.imag], -1)


def unpack(x: Tensor) -> Tensor:
    """The inverse of :func:`pack`."""
    real, imag = x.chunk(2, -1)
    return torch.complex(real, imag)


def interleave(x: Tensor) -> Tensor:
    """Packed (..., N) with the two parts of each mode side by side, as :func:`view_real` has them."""
    return torch.stack(x.chunk(2, -1), -1).flatten(-2)


def view_real(x: Tensor) -> Tensor:
    """Complex (..., M) as real (..., N), the two parts of each number side by side."""
    return torch.view_as_real(x).flatten(-2)


def view_complex(x: Tensor) -> Tensor:
    """The inverse of :func:`view_real`; neither copies."""
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))


def pack_rows(C: Tensor) -> Tensor:
    """``x ↦ 2 Re(C x)`` as real row vectors (..., N) on packed states; C complex (..., M)."""
    return torch.cat([2 * C.real, -2 * C.imag], -1)


def pack_diagonal(D: Tensor) -> Tensor:
    """Multiplication by complex numbers (..., M) as a real matrix (..., N, N) on packed states."""
    real, imag = torch.diag_embed(D.real), torch.diag_embed(D.imag)
    return torch.cat([torch.cat([real, -imag], -1), torch.cat([imag, real], -1)], -2)


class Transition(ABC):
    """The linear map x ↦ Ā x of every head, on packed states (..., H, N).

    Example:
        >>> class Half(Transition):
        ...     def apply(self, x):
        ...         return x / 2
        ...     def matrix(self):
        ...         return torch.eye(2)[None] / 2
        ...     def squared(self):
        ...         return DenseTransition(self.matrix() / 2)
        >>> Half().squared().apply(torch.ones(1, 2))
        tensor([[0.2500, 0.2500]])
    """

    @abstractmethod
    def apply(self, x: Tensor) -> Tensor:
        """``Ā x``."""

    @abstractmethod
    def matrix(self) -> Tensor:
        """Ā as a real matrix (H, N, N)."""

    @abstractmethod
    def squared(self) -> Transition:
        """The map applied twice."""


class DiagonalTransition(Transition):
    """Ā as complex numbers (H, M).

    Example:
        >>> quarter_turn = DiagonalTransition(torch.tensor([[1j]]))
        >>> quarter_turn.apply(torch.tensor([[1.0, 0.0]]))  # packed: 1 becomes i
        tensor([[0., 1.]])
        >>> quarter_turn.matrix()
        tensor([[[ 0., -1.],
                 [ 1.,  0.]]])
    """

    def __init__(self, Abar: Tensor) -> None:
        self.Abar = Abar

    def apply(self, x: Tensor) -> Tensor:
        """Apply in O(N)."""
        return pack(self.Abar * unpack(x))

    def matrix(self) -> Tensor:
        """Ā as a real matrix (H, N, N)."""
        return pack_diagonal(self.Abar)

    def squared(self) -> DiagonalTransition:
        """Elementwise."""
        return DiagonalTransition(saturate(self.Abar * self.Abar))


class DenseTransition(Transition):
    """Ā as a real matrix (H, N, N).

    Example:
        >>> transition = DenseTransition(torch.tensor([[[0.0, 1.0], [-1.0, 0.0]]], dtype=torch.float64))
        >>> transition.apply(torch.tensor([[1.0, 2.0]], dtype=torch.float64))
        tensor([[ 2., -1.]], dtype=torch.float64)
        >>> transition.squared().matrix()[0].tolist()
        [[-1.0, 0.0], [0.0, -1.0]]
    """

    def __init__(self, Abar: Tensor) -> None:
        self.Abar = Abar

    def apply(self, x: Tensor) -> Tensor:
        """Apply in O(N²)."""
        return (self.Abar @ x[..., None])[..., 0]

    def matrix(self) -> Tensor:
        """Ā itself."""
        return self.Abar

    def squared(self) -> DenseTransition:
        """One matrix product."""
        return DenseTransition(saturate(self.Abar @ self.Abar, -2, -1))
