"""Dense real state matrices (LSSL), and the views that every dense recurrence shares."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from statespan._check import check_tensor
from statespan.ssm.discretize import RULES
from statespan.ssm.powers import block_length, cut_off, krylov, matrix_power, saturate
from statespan.ssm.structure import (
    Operators,
    Stepper,
    Structure,
    check_dt,
    check_length,
    check_rule,
    check_steps,
    prefix_sum,
    toeplitz,
)


class DenseViews(Structure):
    """The views of a structure whose Ā is a real matrix (H, N, N)."""

    @abstractmethod
    def discrete(self) -> tuple[Tensor, Tensor, Tensor]:
        """Ā (H, N, N), B̄ (H, N) and C (K, H, N), float64."""

    def krylov_kernel(self, length: int) -> Tensor:
        """The kernel (K, H, length) from powers of Ā by doubling, the way of LSSL.

        With l = i·b + j, ``C Ā^l B̄ = (C Ā^{ib}) (Ā^j B̄)``: two Krylov lists of O(√length) vectors instead of one of
        ``length``, and one matrix product.
        """
        check_length(length)
        return cut_off(_krylov_kernel(*self.discrete(), length), self.dtype)

    def operators(self, chunk: int, *, dtype: torch.dtype | None = None) -> Operators:
        """See :class:`Operators`; G is (H, N, N)."""
        check_length(chunk, "chunk")
        Abar, Bbar, C = self.discrete()
        T = toeplitz(_krylov_kernel(Abar, Bbar, C, chunk))
        E = krylov(Abar, Bbar, chunk).flip(-1)
        O = krylov(Abar.mT, (C[..., None, :] @ Abar)[..., 0, :], chunk).mT  # noqa: E741
        G = matrix_power(Abar, chunk)
        return Operators(*(x.to(dtype or self.dtype) for x in (T, E, G, O)))

    def states(self, u: Tensor, state: Tensor | None = None) -> Tensor:
        """All states, (B, L, H, N), by a parallel prefix sum."""
        self._check_input(u)
        Abar, Bbar, _ = self.discrete()
        inputs = Bbar * u.double()[..., None]  # (B, L, H, N)
        if state is not None:
            before = _apply(Abar, self._check_state(state, u.shape[0]).double())
            inputs = torch.cat([inputs[:, :1] + before[:, None], inputs[:, 1:]], 1)[:, : u.shape[1]]
        square = [Abar]

        def multiply(round_: int, x: Tensor) -> Tensor:
            if round_:
                square[0] = saturate(square[0] @ square[0], -2, -1)
            return _apply(square[0], x)

        return prefix_sum(inputs, multiply).to(self.dtype)

    def advance(self, state: Tensor, steps: Tensor) -> Tensor:
        """``Ā^steps x`` with the powers by repeated squaring."""
        base, x = self.discrete()[0], self._check_state(state, state.shape[0]).double()
        for bit in range(check_steps(steps, state.shape[0])):
            x = torch.where(((steps >> bit) & 1).bool()[:, None, None], _apply(base, x), x)
            base = saturate(base @ base, -2, -1)
        return x.to(state.dtype)


class Dense(DenseViews):
    """A dense real SSM.

    Args:
        A: (H, N, N) real.
        B: (H, N) real.
        C: (K, H, N) real; its precision is that of the results.
        dt: (H,) real, the step sizes.
        discretization: "bilinear" or "zoh" (by the matrix exponential).

    Example:
        >>> from statespan.ssm import hippo
        >>> A, B = hippo.legs(4)
        >>> ssm = Dense(A[None], B[None], torch.ones(1, 1, 4, dtype=torch.float64), torch.tensor([0.1]))
        >>> ssm.kernel(3).shape
        torch.Size([1, 1, 3])
    """

    def __init__(self, A: Tensor, B: Tensor, C: Tensor, dt: Tensor, discretization: str = "bilinear") -> None:
        H, N, _ = check_tensor("A", A, ("H", "N", "N"), kind="real").shape
        self.A = check_tensor("A", A, (H, N, N), kind="real")
        self.B = check_tensor("B", B, (H, N), kind="real")
        self.C = check_tensor("C", C, ("channels", H, N), kind="real")
        self.dt = check_dt(dt, H)
        self.discretization = check_rule(discretization)
        self.d_state = N

    def at_rate(self, rate: float) -> Dense:
        """The same system for another sampling rate."""
        return Dense(self.A, self.B, self.C, self._set_rate(rate), self.discretization)

    def discrete(self) -> tuple[Tensor, Tensor, Tensor]:
        """Ā (H, N, N), B̄ (H, N) and C (K, H, N), float64."""
        Abar, Bbar = RULES[self.discretization](self.A, self.B, self.dt)
        return Abar, Bbar, self.C.double()

    def kernel(self, length: int) -> Tensor:
        """The kernel (K, H, length) from powers of Ā by doubling."""
        return self.krylov_kernel(length)

    def stepper(self) -> Stepper:
        """The recurrence in float64, O(N²) a step."""
        Abar, Bbar, C = self.discrete()

        def step(u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            self._check_step(u, state)
            x = _apply(Abar, state.double()) + Bbar * u.double()[..., None]
            return torch.einsum("khn,bhn->bkh", C, x).to(self.dtype), x.to(state.dtype)

        return step


def _apply(matrix: Tensor, x: Tensor) -> Tensor:
    """Multiply vectors x (..., H, N) by one matrix (H, N, N) a head."""
    return (matrix @ x[..., None])[..., 0]


def _krylov_kernel(Abar: Tensor, Bbar: Tensor, C: Tensor, length: int) -> Tensor:
    b = block_length(length)
    rows = krylov(matrix_power(Abar, b).mT, C, -(-length // b)).mT  # (K, H, L/b, N)
    return (rows @ krylov(Abar, Bbar, b)).flatten(-2)[..., :length]
