"""Diagonal state matrices: S4D and DSS."""

from __future__ import annotations

import torch
from torch import Tensor

from statespan._check import check_choice, check_int, check_tensor
from statespan.ssm.discretize import RULES, expm1, ramp, scale
from statespan.ssm.packed import DiagonalTransition, pack, pack_rows
from statespan.ssm.powers import block_length, cut_off, powers
from statespan.ssm.structure import Operators, Recurrence, Structure, delayed

_TINY = 1e-20  # added to |x|² in 1/x of the softmax, whose normalizer can vanish for undamped modes


class Diagonal(Structure):
    """A diagonal SSM, one of each conjugate pair of modes: the kernel is ``2 Re Σ_n C_n Ā_n^l B̄_n`` (S4D equation (7)).

    Args:
        A: (H, M) complex, the continuous eigenvalues.
        B: (H, M) complex.
        C: (K, H, M) complex; its precision is that of the results.
        dt: (H,) real, the step sizes.
        discretization: "bilinear", "zoh" or "foh".
        softmax_length: If given, normalize each mode by the sum of its first ``softmax_length`` powers, the kernel of
            DSS: ``2 Re Σ_n C_n B_n / A_n · Ā_n^l / Σ_{r<softmax_length} Ā_n^r``. Needs "zoh". The map then depends on
            that length; modes with Re A > 0 stay bounded over it.

    Example:
        >>> from statespan.ssm import inits
        >>> A, B = inits.diagonal("lin", 4)
        >>> ssm = Diagonal(A[None], B[None], torch.ones(1, 1, 2, dtype=torch.complex128), torch.tensor([0.1]))
        >>> ssm.kernel(3).shape
        torch.Size([1, 1, 3])
    """

    def __init__(
        self,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        dt: Tensor,
        *,
        discretization: str = "bilinear",
        softmax_length: int | None = None,
    ) -> None:
        H, M = check_tensor("A", A, ("H", "N/2"), kind="complex").shape
        self.A = A
        self.B = check_tensor("B", B, (H, M), kind="complex")
        self.C = check_tensor("C", C, ("channels", H, M), kind="complex")
        self.dt = check_tensor("dt", dt, (H,), kind="real")
        self.discretization = check_choice("discretization", discretization, RULES)
        self.softmax_length = None if softmax_length is None else check_int("softmax_length", softmax_length, minimum=1)
        if softmax_length is not None and discretization != "zoh":
            raise ValueError(f"softmax_length needs discretization='zoh', got {discretization!r}")
        self.d_state = 2 * M

    def with_dt_scale(self, dt_scale: float) -> Diagonal:
        """The same system at another sampling rate; a softmax then covers the same time with fewer or more samples."""
        dt, length = self._scaled_dt(dt_scale), self.softmax_length
        if length is not None:
            length = max(1, round(min(length / float(dt_scale), 2.0**62)))
        return Diagonal(self.A, self.B, self.C, dt, discretization=self.discretization, softmax_length=length)

    def softmax(self, length: int) -> Diagonal:
        """The same modes, normalized over this many samples."""
        return Diagonal(self.A, self.B, self.C, self.dt, discretization=self.discretization, softmax_length=length)

    def recurrence(self) -> Recurrence:
        """Ā, B̄ and C on packed states."""
        Abar, Bbar, C = self.discrete()
        return Recurrence(DiagonalTransition(Abar), pack(Bbar), pack_rows(C), self.feed())

    def feed(self) -> Tensor | None:
        """F (K, H) of a first-order hold, float64: what a sample adds to its own output. None for the other rules."""
        if self.discretization != "foh":
            return None
        return 2 * (self.C.to(torch.complex128) * ramp(self.A, self.B, self.dt)).real.sum(-1)

    def discrete(self) -> tuple[Tensor, Tensor, Tensor]:
        """Ā (H, M), B̄ (H, M) and C (K, H, M), complex128; the softmax's normalizer is part of C."""
        Abar, Bbar = RULES[self.discretization](self.A, self.B, self.dt)
        C = self.C.to(torch.complex128)
        if self.softmax_length is not None:
            C = C * self._softmax_weights(self.softmax_length)
        return Abar, Bbar, C

    def kernel(self, length: int, *, ahead: int = 0) -> Tensor:
        """The kernel (K, H, length) as one matrix product of O(N √length) numbers per head.

        With l = i·b + j, ``Ā^l = Ā^{ib} Ā^j``: the length-b table of powers on one side, every b-th power on the other.
        """
        check_int("length", length, minimum=1)
        self.check_ahead(ahead)
        if self.softmax_length is not None:
            return cut_off(self._softmax_kernel(length), self.dtype)
        Abar, Bbar, C = self.discrete()
        return cut_off(delayed(_vandermonde(C * Bbar, Abar, length), self.feed(), ahead), self.dtype)

    def operators(self, chunk: int, *, ahead: int = 0, dtype: torch.dtype | None = None) -> Operators:
        """See :class:`Operators`; G is (H, N)."""
        check_int("chunk", chunk, minimum=1)
        behind = self.check_ahead(ahead)
        Abar, Bbar, C = self.discrete()
        table = powers(Abar, chunk)  # (H, M, c)
        F = self.feed()
        K = delayed(_vandermonde(C * Bbar, Abar, chunk), F, ahead)
        E = pack((Bbar[..., None] * table.flip(-1)).mT).mT
        first = C[:behind] * Abar if F is None else C[:behind]
        O = pack_rows(first[..., None, :] * table.mT)  # noqa: E741
        if ahead:
            O = torch.cat([O, pack_rows(C[behind:, :, None] * table.mT.flip(-2))])  # noqa: E741
        G = pack(table[..., -1] * Abar)
        return Operators(*(x.to(dtype or self.dtype) for x in (K, E, G, O)))

    def _softmax_parts(self, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """The growing modes, each mode's exponent z negated where it grows, and ``1/(exp(length·z) - 1)``."""
        z = scale(self.A, self.dt)
        grows = z.real > 0
        z = torch.where(grows, -z, z)
        total = expm1(length * z.real, length * z.imag)
        return grows, z, total.conj() / (total.real.square() + total.imag.square() + _TINY)

    def _softmax_weights(self, length: int) -> Tensor:
        """``1/(Ā^length - 1)``, which turns B̄ = B (Ā - 1)/A into the row-normalized B/(A Σ Ā^r)."""
        grows, z, normalizer = self._softmax_parts(length)
        return torch.where(grows, -torch.exp(length * z), 1) * normalizer

    def _softmax_kernel(self, length: int) -> Tensor:
        """The kernel; growing modes are computed backward from the softmax's end, where they are 1: no overflow."""
        assert self.softmax_length is not None
        grows, z, normalizer = self._softmax_parts(self.softmax_length)
        weights = self.C.to(torch.complex128) * RULES["zoh"](self.A, self.B, self.dt)[1] * normalizer
        decaying, growing = torch.where(grows, 0, weights), torch.where(grows, -weights, 0)
        base = torch.exp(z)
        # growing modes: exp(z)^(S-l) up to the softmax's end S, exp(-z)^(l-S) beyond it
        inside = min(length, self.softmax_length)
        near = _vandermonde(growing * torch.exp((self.softmax_length - inside + 1) * z), base, inside).flip(-1)
        if length > inside:
            beyond = _vandermonde(growing, torch.where(grows, torch.exp(-z), 0), length - inside)
            near = torch.cat([near, beyond], -1)
        return _vandermonde(decaying, base, length) + near


def _vandermonde(weights: Tensor, base: Tensor, length: int) -> Tensor:
    """``2 Re Σ_n weights_n base_n^l`` for l < length, real (K, H, length); weights (K, H, M), base (H, M)."""
    b = block_length(length)
    columns = powers(base, b)  # (H, M, b)
    rows = weights[..., None] * powers(columns[..., -1] * base, -(-length // b))  # (K, H, M, L/b)
    product = pack_rows(rows.mT) @ pack(columns.mT).mT  # (K, H, L/b, b)
    return product.flatten(-2)[..., :length]
