"""The bilinear rule for diagonal plus low-rank matrices, by the Woodbury identity.

Shapes: H heads, M kept modes, N packed state size, R rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from statespan.ssm.discretize import scale
from statespan.ssm.packed import DenseTransition, Transition, pack, pack_diagonal, pack_rows, unpack


class Resolvent:
    """``(I - ΔA/2)⁻¹`` of ``A = Λ - Σ_r P_r P_rᴴ``: O(N) to apply.

    With Re Λ ≤ 0 the inner R × R matrix is at least the identity, so nothing is ill-conditioned however large ΔΛ is.
    Vectors are the kept half x of (x, conj x); ``p_rᴴ (x, conj x) = 2 Re Σ conj(P_r) x`` is real.

    Args:
        A: Λ of shape (H, M), complex.
        P: (R, H, M), complex.
        dt: (H,), float64.
    """

    def __init__(self, A: Tensor, P: Tensor, dt: Tensor) -> None:
        self.D = 1 / (1 - scale(A, dt) / 2)  # (H, M)
        self.columns = self.D * P  # (R, H, M)
        self.rows = P.conj() * self.D  # (R, H, M)
        gram = torch.einsum("qhm,rhm->hqr", self.rows, P).real  # (H, R, R)
        identity = torch.eye(P.shape[0], dtype=torch.float64, device=A.device)
        half_dt = dt[:, None, None] / 2
        inverse, _ = torch.linalg.inv_ex(identity + 2 * half_dt * gram)  # inv itself would wait for the device
        self.inner = half_dt * inverse  # (H, R, R)

    def apply(self, x: Tensor) -> Tensor:
        """Multiply the kept half vectors x (..., H, M)."""
        products = 2 * torch.einsum("rhm,...hm->...hr", self.rows, x).real
        weights = torch.einsum("hqr,...hr->...hq", self.inner, products)
        return self.D * x - torch.einsum("...hq,qhm->...hm", weights.to(x.dtype), self.columns)

    def matrix(self) -> Tensor:
        """The same map as a real matrix (H, N, N) on packed vectors."""
        low_rank = torch.einsum("qhn,hqr,rhm->hnm", pack(self.columns), self.inner, pack_rows(self.rows))
        return pack_diagonal(self.D) - low_rank


class LowRankTransition(Transition):
    """Ā = 2 (I - ΔA/2)⁻¹ - I of a DPLR matrix."""

    def __init__(self, resolvent: Resolvent) -> None:
        self.resolvent = resolvent

    def apply(self, x: Tensor) -> Tensor:
        """Apply in O(N)."""
        return 2 * pack(self.resolvent.apply(unpack(x))) - x

    def matrix(self) -> Tensor:
        """Ā as a real matrix (H, N, N)."""
        twice = 2 * self.resolvent.matrix()
        return twice - torch.eye(twice.shape[-1], dtype=twice.dtype, device=twice.device)

    def squared(self) -> DenseTransition:
        """Dense: the square of a DPLR matrix is not one of the same rank."""
        return DenseTransition(self.matrix()).squared()
