"""S4 on one page: the structured state space model in plain torch, theorem by theorem.

    python examples/s4_minimal.py

Equations, theorems, lemmas and appendices are those of "Efficiently Modeling Long Sequences with Structured State
Spaces" (Gu, Goel, Ré), except where the S4D paper is named (Gu, Gupta, Goel, Ré). Run as a script, the page checks
itself: the convolution equals the recurrence, and the layer equals statespan.S4 with the same parameters.

Shapes: B batch, L length, H heads (features), N state size. Of each conjugate pair of eigenvalues one is a parameter,
(H, N/2); `pairs` adds the other, (H, N).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

import statespan


class DPLR(NamedTuple):
    """H systems with A = Lambda - P P*, all modes included: Lambda, P and B are (H, N), step is (H,)."""

    Lambda: Tensor
    P: Tensor
    B: Tensor
    step: Tensor


def make_NPLR_HiPPO(N: int) -> tuple[Tensor, Tensor, Tensor]:
    """HiPPO-LegS, A and B of equation (2), and P that makes A + P Pᵀ normal (Theorem 1, Appendix C.1)."""
    B = torch.sqrt(2 * torch.arange(N, dtype=torch.float64) + 1)
    A = torch.tril(torch.outer(B, B), -1) + torch.diag(torch.arange(N) + 1.0)
    return -A, B / math.sqrt(2), B  # P Pᵀ has the entries (2n+1)^½ (2k+1)^½ / 2


def make_DPLR_HiPPO(N: int) -> tuple[Tensor, Tensor, Tensor]:
    """Lambda, P and B, each (N/2,): V* A V = Lambda - P P* with a unitary V (Lemma 3.1, Theorem 1)."""
    A, P, B = make_NPLR_HiPPO(N)
    skew = A + torch.outer(P, P) + torch.eye(N) / 2  # Appendix C.1: what is left is skew-symmetric
    frequencies, V = torch.linalg.eigh(-1j * skew)  # Hermitian: real, ascending, in pairs of opposite sign
    frequencies, V = frequencies.flip(0)[: N // 2], V.flip(1)[:, : N // 2]  # the positive half, largest first
    return -0.5 + 1j * frequencies, V.mH @ P.to(V.dtype), V.mH @ B.to(V.dtype)


def pairs(v: Tensor) -> Tensor:
    """Add the conjugates (S4D section 3.3): (H, N/2) to (H, N)."""
    return torch.cat([v, v.conj()], -1)


def discrete_DPLR(ssm: DPLR) -> tuple[Tensor, Tensor]:
    """A_bar (H, N, N) and B_bar (H, N) by the bilinear rule, equation (3), as in Appendix C.2."""
    Lambda, P, B, step = ssm
    rate = 2 / step[:, None]
    PPs = P[:, :, None] * P.conj()[:, None, :]  # P P*, (H, N, N)
    A0 = torch.diag_embed(rate + Lambda) - PPs
    D = 1 / (rate - Lambda)  # (H, N), the inverse of a diagonal matrix
    inner = 1 + (P.conj() * D * P).sum(-1)  # (H,), the scalar 1 + P* D P of the Woodbury identity
    A1 = torch.diag_embed(D) - D[:, :, None] * PPs * D[:, None, :] / inner[:, None, None]
    return A1 @ A0, 2 * (A1 @ B[..., None])[..., 0]


def cauchy(v: Tensor, omega: Tensor, Lambda: Tensor) -> Tensor:
    """The Cauchy kernel: the sum over n of v_n / (omega - Lambda_n) (Definition 3, Corollary C.5); (H, L)."""
    return (v[..., None] / (omega[:, None, :] - Lambda[..., None])).sum(-2)


def kernel_DPLR(ssm: DPLR, C: Tensor, L: int) -> Tensor:
    """K_bar (H, L) = C B_bar, C A_bar B_bar, … by Cauchy products (Theorem 3, Algorithm 1); C is (H, N)."""
    Lambda, P, B, step = ssm
    nodes = L + 1 - L % 2  # odd, which keeps z = -1 out, where the pole of 2 / (1 + z) cancels
    # Lemma C.3: with C_tilde = C (I - A_bar^L), L terms of the generating function have a closed form
    C_tilde = C - (C[:, None, :] @ torch.linalg.matrix_power(discrete_DPLR(ssm)[0], nodes))[:, 0]
    # Lemma C.2: the generating function at the roots of unity
    z = torch.exp(-2j * math.pi * torch.arange(nodes, dtype=torch.float64) / nodes)
    omega = 2 / step[:, None] * (1 - z) / (1 + z)  # (H, nodes)
    # Lemma C.3: four Cauchy products, and Woodbury (Proposition 4) for the low-rank term
    k00 = cauchy(C_tilde * B, omega, Lambda)
    k01 = cauchy(C_tilde * P, omega, Lambda)
    k10 = cauchy(P.conj() * B, omega, Lambda)
    k11 = cauchy(P.conj() * P, omega, Lambda)
    K_hat = 2 / (1 + z) * (k00 - k01 * (1 / (1 + k11)) * k10)
    return torch.fft.ifft(K_hat).real[:, :L]  # Lemma C.2 again: the inverse DFT


def causal_convolution(u: Tensor, K: Tensor) -> Tensor:
    """The convolution y_k = K_0 u_k + K_1 u_(k-1) + … by an FFT padded to 2L; u and y are (B, H, L)."""
    L = u.shape[-1]
    return torch.fft.irfft(torch.fft.rfft(u, n=2 * L) * torch.fft.rfft(K, n=2 * L), n=2 * L)[..., :L]


class S4(nn.Module):
    """H independent SSMs, a skip D, GELU, and a linear layer that mixes the heads (section 3.4)."""

    def __init__(self, H: int, N: int) -> None:
        super().__init__()
        Lambda, P, B = (v.repeat(H, 1) for v in make_DPLR_HiPPO(N))
        self.log_step = nn.Parameter(math.log(0.001) + torch.rand(H) * math.log(0.1 / 0.001))  # in [0.001, 0.1]
        self.log_Lambda_real = nn.Parameter(torch.log(-Lambda.real))  # Re Lambda = -exp(…) < 0 (S4D section 3.3)
        self.Lambda_imag = nn.Parameter(Lambda.imag)
        self.P, self.B = nn.Parameter(P), nn.Parameter(B)
        self.C = nn.Parameter(torch.randn_like(B) * math.sqrt(2))  # real and imaginary parts with deviation 1
        self.D = nn.Parameter(torch.randn(H))
        self.mix = nn.Linear(H, H)

    def system(self) -> DPLR:
        """The systems that the parameters stand for."""
        Lambda = -torch.exp(self.log_Lambda_real) + 1j * self.Lambda_imag
        return DPLR(pairs(Lambda), pairs(self.P), pairs(self.B), torch.exp(self.log_step))

    def forward(self, u: Tensor) -> Tensor:
        """Whole sequences by convolution; u and y are (B, L, H)."""
        K = kernel_DPLR(self.system(), pairs(self.C), u.shape[1])
        return self.output(causal_convolution(u.mT, K).mT, u)

    def step(self, u: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """One sample by the recurrence, equation (3): x_k = A_bar x_(k-1) + B_bar u_k; u (B, H), x (B, H, N).

        Theorem 2 applies A_bar = A1 A0 in O(N); here it is a matrix.
        """
        A_bar, B_bar = discrete_DPLR(self.system())
        x = (A_bar @ x[..., None])[..., 0] + B_bar * u[..., None]
        return self.output((pairs(self.C) * x).sum(-1).real, u), x

    def output(self, y: Tensor, u: Tensor) -> Tensor:
        """Skip, activation and mixing of the heads."""
        return self.mix(nn.functional.gelu(y + self.D * u))


def copy_parameters(reference: statespan.S4, layer: S4) -> None:
    """Give the layer of this page the parameters of statespan's, after a comparison of their initial values."""
    values = {name.removeprefix("ssm."): value for name, value in reference.state_dict().items()}
    P, B, C = (torch.view_as_complex(values.pop(name)) for name in ("P", "B", "C"))
    torch.testing.assert_close(layer.Lambda_imag, values["A_imag"], rtol=1e-6, atol=1e-6)
    invariant = layer.P * layer.B.conj()  # eigenvectors are free up to a phase, which cancels here
    torch.testing.assert_close(invariant, P[0] * B.conj(), rtol=1e-6, atol=1e-6)
    values["log_step"], values["D"] = values.pop("log_dt"), values["D"][0]
    values["log_Lambda_real"], values["Lambda_imag"] = values.pop("A_real"), values.pop("A_imag")
    layer.load_state_dict({**values, "P": P[0], "B": B, "C": C[0]})


def check(L: int, *, H: int = 6, N: int = 16) -> tuple[float, float]:
    """Largest difference between the two modes of this page, and between this page and statespan.S4."""
    u = torch.randn(2, L, H, dtype=torch.float64)
    reference, layer = statespan.S4(H, N, init="legs", mix="linear").double(), S4(H, N).double()
    copy_parameters(reference, layer)
    y, x, steps = layer(u), torch.zeros(2, H, N, dtype=torch.complex128), []
    for k in range(L):
        y_k, x = layer.step(u[:, k], x)
        steps.append(y_k)
    return float((torch.stack(steps, 1) - y).abs().max()), float((y - reference(u)).abs().max())


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    for L in (1, 100, 101):
        recurrence, library = check(L)
        print(f"S4, L = {L:3}  recurrence - convolution {recurrence:.0e}  this page - statespan.S4 {library:.0e}")
        assert recurrence < 1e-6, "the recurrence and the convolution differ"
        assert library < 1e-6, "this page and statespan.S4 differ"


if __name__ == "__main__":
    main()
