"""Diagonal plus low-rank state matrices: S4, its recurrence by the Woodbury identity, and its kernel.

Shapes: H heads, M kept modes, N packed state size, R rank, K channels, F frequencies of a kernel.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from statespan._check import check_choice, check_int, check_tensor
from statespan.ssm.dense import DenseViews, held_linearly, krylov_kernel
from statespan.ssm.discretize import RULES, dense_zoh, expm1, scale
from statespan.ssm.packed import DenseTransition, Transition, pack, pack_diagonal, pack_rows, unpack
from statespan.ssm.powers import block_length, cut_off, powers
from statespan.ssm.rank_one import RankOneFactors
from statespan.ssm.structure import Recurrence

ALGORITHMS = ("cauchy", "krylov")
_BLOCK_BYTES = 1 << 25  # of the Cauchy matrix held at a time


class Resolvent:
    """``(I - ΔA/2)⁻¹`` of ``Λ - Σ_r P_r Q_rᴴ``, from A = Λ (H, M), P, Q (R, H, M) and Δ (H,), float64: O(N) to apply.

    With Re Λ ≤ 0 and Q = P the inner R × R matrix is at least the identity, so nothing is ill-conditioned however large
    ΔΛ is. Vectors are the kept half x of (x, conj x); ``q_rᴴ (x, conj x) = 2 Re Σ conj(Q_r) x`` is real.

    Example:
        >>> A, P = torch.tensor([[-0.5 + 1j]], dtype=torch.complex128), torch.ones(1, 1, 1, dtype=torch.complex128)
        >>> resolvent = Resolvent(A, P, torch.tensor([0.1], dtype=torch.float64))
        >>> x = torch.ones(1, 1, dtype=torch.complex128)
        >>> torch.allclose(pack(resolvent.apply(x)), resolvent.matrix()[0] @ pack(x)[0])
        True
    """

    def __init__(self, A: Tensor, P: Tensor, dt: Tensor, *, Q: Tensor | None = None) -> None:
        self.D = 1 / (1 - scale(A, dt) / 2)  # (H, M)
        self.columns = self.D * P  # (R, H, M)
        self.rows = (P if Q is None else Q).conj() * self.D  # (R, H, M)
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
    """Ā = 2 (I - ΔA/2)⁻¹ - I of a DPLR matrix.

    Example:
        >>> A, P = torch.tensor([[-0.5 + 1j]], dtype=torch.complex128), torch.ones(1, 1, 1, dtype=torch.complex128)
        >>> transition = LowRankTransition(Resolvent(A, P, torch.tensor([0.1], dtype=torch.float64)))
        >>> x = torch.ones(1, 2, dtype=torch.float64)
        >>> torch.allclose(transition.apply(x)[0], transition.matrix()[0] @ x[0])
        True
    """

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


class DPLR(DenseViews):
    """An SSM with state matrix ``diag(A) - Σ_r P_r Q_rᴴ`` over the full set of conjugate pairs (the form of S4).

    With Q = P the low-rank term only damps: if Re A ≤ 0, no eigenvalue has a positive real part. With another Q some
    may, and the SSM then grows.

    Args:
        A: (H, M) complex, the diagonal Λ.
        P: (R, H, M) complex, rank R = 1 or 2.
        B: (H, M) complex.
        C: (K, H, M) complex; its precision is that of the results.
        dt: (H,) real, the step sizes.
        Q: (R, H, M) complex; None for P itself.
        discretization: "bilinear" (S4's), or "zoh" or "foh" (by the matrix exponential of the dense form).
        algorithm: How the kernel is computed: "cauchy", the S4 paper's, for "bilinear" only; or "krylov", powers of the
            dense form by doubling. The same numbers. By default "cauchy" where it exists.

    Example:
        >>> from statespan.ssm import hippo
        >>> Lambda, P, B = hippo.dplr("legs", 4)
        >>> C = torch.ones(1, 1, 2, dtype=torch.complex128)
        >>> DPLR(Lambda[None], P[:, None], B[None], C, dt=torch.tensor([0.1])).kernel(3).shape
        torch.Size([1, 1, 3])
    """

    def __init__(
        self,
        A: Tensor,
        P: Tensor,
        B: Tensor,
        C: Tensor,
        *,
        dt: Tensor,
        Q: Tensor | None = None,
        discretization: str = "bilinear",
        algorithm: str | None = None,
    ) -> None:
        H, M = check_tensor("A", A, ("H", "N/2"), kind="complex").shape
        self.A = A
        self.Q = None if Q is None else check_tensor("Q", Q, (len(P), H, M), kind="complex")
        self.P = check_tensor("P", P, ("rank", H, M), kind="complex")
        if P.shape[0] not in (1, 2):
            raise ValueError(f"P must have rank (first dimension) 1 or 2, got {P.shape[0]}")
        self.B = check_tensor("B", B, (H, M), kind="complex")
        self.C = check_tensor("C", C, ("channels", H, M), kind="complex")
        self.dt = check_tensor("dt", dt, (H,), kind="real")
        self.discretization = check_choice("discretization", discretization, RULES)
        if algorithm is None:
            algorithm = "cauchy" if discretization == "bilinear" else "krylov"
        self.algorithm = check_choice("algorithm", algorithm, ALGORITHMS)
        if algorithm == "cauchy" and discretization != "bilinear":
            raise ValueError(f"algorithm='cauchy' needs discretization='bilinear', got {discretization!r}")
        self.d_state = 2 * M

    def with_dt_scale(self, dt_scale: float) -> DPLR:
        """The same system at another sampling rate."""
        dt = self._scaled_dt(dt_scale)
        rule = {"discretization": self.discretization, "algorithm": self.algorithm}
        return DPLR(self.A, self.P, self.B, self.C, dt=dt, Q=self.Q, **rule)

    def recurrence(self) -> Recurrence:
        """Ā, B̄ and C on packed states; for "bilinear" Ā is applied in O(N)."""
        dt, P, Q, B, C = self._double()
        if self.discretization == "bilinear":
            resolvent = Resolvent(self.A, P, dt, Q=Q)
            return Recurrence(LowRankTransition(resolvent), pack(resolvent.apply(dt[:, None] * B)), pack_rows(C))
        low_rank = torch.einsum("rhn,rhm->hnm", pack(P), pack(Q))
        dtA = pack_diagonal(scale(self.A, dt)) - 2 * dt[:, None, None] * low_rank
        dtB = dt[:, None] * pack(B)
        if self.discretization == "foh":
            return held_linearly(dtA, dtB, pack_rows(C))
        Abar, Bbar = dense_zoh(dtA, dtB)
        return Recurrence(DenseTransition(Abar), Bbar, pack_rows(C))

    def factors(self) -> RankOneFactors:
        """Ā as diagonal plus rank one, B̄ and C, on packed states; for "bilinear" and rank 1."""
        assert (self.discretization, self.P.shape[0]) == ("bilinear", 1)
        dt, P, Q, B, C = self._double()
        resolvent = Resolvent(self.A, P, dt, Q=Q)
        f = -2 * resolvent.inner[:, 0] * resolvent.columns[0]
        first = pack(resolvent.apply(dt[:, None] * B))
        return RankOneFactors(pack(2 * resolvent.D - 1), pack(f), pack_rows(resolvent.rows[0]), first, pack_rows(C))

    def kernel(self, length: int, *, ahead: int = 0) -> Tensor:
        """The kernel (K, H, length) by the chosen algorithm."""
        check_int("length", length, minimum=1)
        self.check_ahead(ahead)
        if self.algorithm == "krylov":
            kernel = krylov_kernel(self.recurrence(), length, ahead)
        else:
            kernel = self._generating_function_kernel(length)
        return cut_off(kernel, self.dtype)

    def _double(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Δ, P, Q, B and C."""
        P, Q, B, C = (x.to(torch.complex128) for x in (self.P, self.P if self.Q is None else self.Q, self.B, self.C))
        return self.dt.double(), P, Q, B, C

    def _generating_function_kernel(self, length: int) -> Tensor:
        """S4's algorithm, (K, H, length) in float64.

        The truncated generating function ``Σ_{l<L} K_l ω^l = C̃ (I - ωĀ)⁻¹ B̄`` with ``C̃ = C (I - ω^L Ā^L)`` is evaluated
        at L nodes ω and inverted by an FFT. For the bilinear rule

            (I - ωĀ)⁻¹ B̄ = ((1-ω) I - (1+ω) ΔA/2)⁻¹ ΔB,

        diagonal plus low rank: Cauchy products and the Woodbury identity. Written this way, without dividing by 1+ω,
        nothing happens at ω = -1. The nodes are the roots of unity times ρ = exp(-1/L): inside the circle they keep
        clear of undamped modes (Re Λ = 0 in LegT and FouT, whose poles lie on it) at the price of a factor of at most
        e, and ω^L is still the same number for all of them. Where modes grow, ρ shrinks with the fastest of them. (A Q
        of its own can move poles across the circle. The sum is finite, so that the algorithm stays exact.) On a
        GPU, :mod:`statespan.ops.cauchy` replaces C̃ by a smaller circle.
        """
        dt, P, Q, B, C = self._double()
        z = scale(self.A, dt) / 2
        with torch.no_grad():  # Re Λ bounds the growth, for -P Pᴴ only damps; the kernel does not depend on ρ
            log_radius = -1.0 / length - 2 * torch.atanh(z.real.amax(-1, keepdim=True).clamp(min=0.0))  # (H, 1)
        Ctilde = C - _times_power(C, Resolvent(self.A, P, dt, Q=Q), log_radius.exp(), length)
        left = torch.cat([Ctilde, Q.conj()])  # (K+R, H, M)
        right = torch.cat([B[None], P])  # (1+R, H, M)
        weights = torch.einsum("phm,qhm->hpqm", left, right).flatten(1, 2)  # (H, (K+R)(1+R), M)
        minus, plus = _nodes(length, log_radius)
        products = _cauchy(minus, plus, z, weights)  # (H, (K+R)(1+R), F)
        products = products.unflatten(1, (left.shape[0], right.shape[0])).movedim(0, 2)  # (K+R, 1+R, H, F)
        spectrum = dt[:, None] * _woodbury(products, C.shape[0], plus * (dt / 2)[:, None])
        growth = -log_radius * torch.arange(length, dtype=torch.float64, device=dt.device)
        return torch.fft.irfft(spectrum, n=length) * growth.clamp(max=300.0).exp()


def _times_power(C: Tensor, resolvent: Resolvent, radius: Tensor, length: int) -> Tensor:
    """``C (ρĀ)^length`` for rows C (K, H, M), in O(length · N) a head and without a dense matrix.

    With ρĀ = d + Σ_r f_r b_r a power is ``(ρĀ)^m = d^m + Σ_j Σ_r (d^(m-1-j) f_r) (b_r (ρĀ)^j)``: √length steps make the
    lists of its factors, and as many products with them make the whole power.
    """
    d = radius * (2 * resolvent.D - 1)  # (H, M)
    f = -2 * radius * torch.einsum("hqr,qhm->rhm", resolvent.inner.to(d.dtype), resolvent.columns)  # (R, H, M)
    m = block_length(length)
    rows = [resolvent.rows]  # b_r (ρĀ)^j, each (R, H, M)
    for _ in range(m - 1):
        products = 2 * torch.einsum("rhm,qhm->rqh", rows[-1], f).real
        rows.append(d * rows[-1] + torch.einsum("rqh,qhm->rhm", products.to(d.dtype), resolvent.rows))
    J = pack_rows(torch.stack(rows)).permute(2, 0, 1, 3).flatten(1, 2)  # (H, mR, N)
    table = powers(d, m + 1)  # (H, M, m+1)

    for steps, times in ((m, length // m), (length % m, 1)):
        F = pack((f[..., None] * table[..., :steps].flip(-1)).movedim(-1, 1)).permute(2, 3, 1, 0).flatten(2)
        for _ in range(times):
            real, imag = ((pack_rows(C).transpose(0, 1) @ F) @ J[:, : steps * len(f)]).transpose(0, 1).chunk(2, -1)
            C = C * table[..., steps] + torch.complex(real, -imag) / 2
    return C


def _nodes(length: int, log_radius: Tensor) -> tuple[Tensor, Tensor]:
    """1-ω and 1+ω at ``ω = radius · exp(-2πik/L)``, k = 0 … L/2, each (H, F) and without cancellation."""
    k = torch.arange(length // 2 + 1, dtype=torch.float64, device=log_radius.device)
    minus = -expm1(log_radius, -2 * math.pi * k / length)
    return minus, -expm1(log_radius, math.pi * (length - 2 * k) / length)


def _cauchy(minus: Tensor, plus: Tensor, half: Tensor, weights: Tensor) -> Tensor:
    """``Σ_n w_n/(minus - plus·half_n) + conj(w_n)/(minus - plus·conj(half_n))`` for every node, (H, Q, F).

    The Cauchy matrix is computed block by block, and again for the gradient; it is never stored whole.
    """
    half = torch.cat([half, half.conj()], -1)  # (H, N)
    weights = torch.cat([weights, weights.conj()], -1)  # (H, Q, N)

    def block(minus: Tensor, plus: Tensor, half: Tensor, weights: Tensor) -> Tensor:
        return weights @ (minus[:, None] - plus[:, None] * half[..., None]).reciprocal()

    size = max(1, _BLOCK_BYTES // (16 * max(1, half.numel())))
    parts = []
    for m, p in zip(minus.split(size, -1), plus.split(size, -1), strict=True):
        tracked = torch.is_grad_enabled() and (half.requires_grad or weights.requires_grad)
        if tracked and not torch._C._are_functorch_transforms_active():  # which knows no checkpoints
            parts.append(checkpoint(block, m, p, half, weights, use_reentrant=False, preserve_rng_state=False))
        else:
            parts.append(block(m, p, half, weights))
    return torch.cat(parts, -1)


def _woodbury(products: Tensor, channels: int, c: Tensor) -> Tensor:
    """``C̃ (D + c P Qᴴ)⁻¹ B`` from the products with D⁻¹ alone; (K, H, F)."""
    r11, r10 = products[:channels, 0], products[:channels, 1:]
    r01, r00 = products[channels:, 0], products[channels:, 1:]
    if r01.shape[0] == 1:
        return r11 - c * r10[:, 0] * r01[0] / (1 + c * r00[0, 0])
    a, b, d, e = 1 + c * r00[0, 0], c * r00[0, 1], c * r00[1, 0], 1 + c * r00[1, 1]
    determinant = a * e - b * d
    first, second = (e * r01[0] - b * r01[1]) / determinant, (a * r01[1] - d * r01[0]) / determinant
    return r11 - c * (r10[:, 0] * first + r10[:, 1] * second)
