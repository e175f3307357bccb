"""Dense real state matrices (LSSL), and the views that every dense recurrence shares."""

from __future__ import annotations

import torch
from torch import Tensor

from statespan._check import check_choice, check_int, check_tensor
from statespan.ssm.discretize import RULES, dense_foh
from statespan.ssm.packed import DenseTransition
from statespan.ssm.powers import block_length, cut_off, krylov, matrix_power, saturate
from statespan.ssm.structure import Operators, Recurrence, Structure, delayed


class DenseViews(Structure):
    """The views of a structure whose Ā is a real matrix (H, N, N).

    Example:
        >>> A, B = torch.tensor([[[-1.0]]]), torch.tensor([[1.0]])
        >>> ssm = Dense(A, B, C=torch.ones(1, 1, 1), dt=torch.tensor([1.0]))
        >>> isinstance(ssm, DenseViews), [x.shape for x in ssm.discrete()]
        (True, [torch.Size([1, 1, 1]), torch.Size([1, 1]), torch.Size([1, 1, 1])])
        >>> ssm.operators(chunk=4).G
        tensor([[[0.0123]]])
    """

    def discrete(self) -> tuple[Tensor, Tensor, Tensor]:
        """Ā (H, N, N), B̄ (H, N) and C (K, H, N) on packed states, float64."""
        transition, Bbar, C, _ = self.recurrence()
        return transition.matrix(), Bbar, C

    def operators(self, chunk: int, *, ahead: int = 0, dtype: torch.dtype | None = None) -> Operators:
        """See :class:`Operators`; G is (H, N, N).

        The powers Ā^(2^k) are made once and shared by the lists ``Ā^l B̄`` and ``C Ā^l``, which double with each.
        """
        check_int("chunk", chunk, minimum=1)
        behind = self.check_ahead(ahead)
        transition, Bbar, C, F = self.recurrence()
        Abar = transition.matrix()
        rows = torch.cat([(C[:behind, ..., None, :] @ Abar)[..., 0, :], C[behind:]]) if F is None else C
        columns, rows = Bbar[..., None], rows[..., None, :]  # (H, N, 1) and (K, H, 1, N)
        power = Abar
        while (missing := chunk - columns.shape[-1]) > 0:
            columns = torch.cat([columns, saturate(power @ columns[..., :missing], -2)], -1)
            rows = torch.cat([rows, saturate(rows[..., :missing, :] @ power, -1)], -2)
            if columns.shape[-1] < chunk:
                power = saturate(power @ power, -2, -1)
        K = delayed((C[..., None, :] @ columns)[..., 0, :], F, ahead)
        O = torch.cat([rows[:behind], rows[behind:].flip(-2)])  # noqa: E741
        # the power of the last doubling is half of a chunk that is a power of two
        halved = chunk > 1 and chunk & (chunk - 1) == 0
        G = saturate(power @ power, -2, -1) if halved else matrix_power(Abar, chunk)
        return Operators(*(x.to(dtype or self.dtype) for x in (K, columns.flip(-1), G, O)))


class Dense(DenseViews):
    """A dense real SSM.

    Args:
        A: (H, N, N) real.
        B: (H, N) real.
        C: (K, H, N) real; its precision is that of the results.
        dt: (H,) real, the step sizes.
        discretization: "bilinear", or "zoh" or "foh" (by the matrix exponential).

    Example:
        >>> from statespan.ssm import hippo
        >>> A, B = hippo.legs(4)
        >>> ssm = Dense(A[None], B[None], torch.ones(1, 1, 4, dtype=torch.float64), torch.tensor([0.1]))
        >>> ssm.kernel(3).shape
        torch.Size([1, 1, 3])
    """

    def __init__(self, A: Tensor, B: Tensor, C: Tensor, dt: Tensor, *, discretization: str = "bilinear") -> None:
        H, N, _ = check_tensor("A", A, ("H", "N", "N"), kind="real").shape
        self.A = check_tensor("A", A, (H, N, N), kind="real")
        self.B = check_tensor("B", B, (H, N), kind="real")
        self.C = check_tensor("C", C, ("channels", H, N), kind="real")
        self.dt = check_tensor("dt", dt, (H,), kind="real")
        self.discretization = check_choice("discretization", discretization, RULES)
        self.d_state = N

    def with_dt_scale(self, dt_scale: float) -> Dense:
        """The same system at another sampling rate."""
        return Dense(self.A, self.B, self.C, self._scaled_dt(dt_scale), discretization=self.discretization)

    def recurrence(self) -> Recurrence:
        """Ā, B̄ and C."""
        C = self.C.double()
        if self.discretization == "foh":
            dt = self.dt.double()
            return held_linearly(dt[:, None, None] * self.A.double(), dt[:, None] * self.B.double(), C)
        Abar, Bbar = RULES[self.discretization](self.A, self.B, self.dt)
        return Recurrence(DenseTransition(Abar), Bbar, C)

    def kernel(self, length: int, *, ahead: int = 0) -> Tensor:
        """The kernel (K, H, length) from powers of Ā by doubling, as in LSSL."""
        check_int("length", length, minimum=1)
        self.check_ahead(ahead)
        return cut_off(krylov_kernel(self.recurrence(), length, ahead), self.dtype)


def held_linearly(dtA: Tensor, dtB: Tensor, C: Tensor) -> Recurrence:
    """The recurrence by first-order hold, from ΔA (H, N, N), ΔB (H, N) and C (K, H, N), float64."""
    Abar, Bbar, linear = dense_foh(dtA, dtB)
    return Recurrence(DenseTransition(Abar), Bbar, C, (C * linear).sum(-1))


def krylov_kernel(recurrence: Recurrence, length: int, ahead: int) -> Tensor:
    """The kernel (K, H, length) of :meth:`Structure.kernel`, from powers of Ā by doubling.

    With l = i·b + j, ``C Ā^l B̄ = (C Ā^{ib}) (Ā^j B̄)``: two Krylov lists of O(√length) vectors instead of one of
    ``length``, and one matrix product.
    """
    transition, Bbar, C, F = recurrence
    Abar, b = transition.matrix(), block_length(length)
    rows = krylov(matrix_power(Abar, b).mT, C, -(-length // b)).mT  # (K, H, L/b, N)
    return delayed((rows @ krylov(Abar, Bbar, b)).flatten(-2)[..., :length], F, ahead)
