"""S4D on one page: the diagonal state space model in plain torch, equation by equation.

    python examples/s4d_minimal.py

Equations, sections and Listing 1 are those of "On the Parameterization and Initialization of Diagonal State Space
Models" (Gu, Gupta, Goel, Ré). Run as a script, the page checks itself: the convolution equals the recurrence, and the
layer equals statespan.S4D with the same parameters, which computes the same map faster.

Shapes: B batch, L length, H heads (features), N state size; of each conjugate pair of modes one is kept (section 3.3).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

import statespan

Rule = Literal["bilinear", "zoh"]
RULES: tuple[Rule, ...] = ("bilinear", "zoh")


def init_A(name: str, N: int) -> Tensor:
    """The diagonal of A, (N/2,): S4D-LegS, S4D-Inv or S4D-Lin (section 4)."""
    n = torch.arange(N // 2, dtype=torch.float64)
    if name == "inv":  # equation (8)
        imag = N / math.pi * (N / (2 * n + 1) - 1)
    elif name == "lin":  # equation (9)
        imag = math.pi * n
    else:  # "legs": eigenvalues of A^(N), equation (5), which is skew-symmetric but for -1/2 on its diagonal
        p = torch.sqrt(torch.arange(N, dtype=torch.float64) + 0.5)
        skew = torch.triu(torch.outer(p, p), 1) - torch.tril(torch.outer(p, p), -1)
        imag = torch.linalg.eigvalsh(-1j * skew).flip(0)[: N // 2]  # the positive half, largest first
    return -0.5 + 1j * imag


def discretize(A: Tensor, B: Tensor, dt: Tensor, rule: str) -> tuple[Tensor, Tensor]:
    """A_bar and B_bar (section 3.1); A and B are (H, N/2), dt is (H,)."""
    dA = dt[:, None] * A
    if rule == "zoh":
        return torch.exp(dA), (torch.exp(dA) - 1) / A * B
    return (1 + dA / 2) / (1 - dA / 2), dt[:, None] * B / (1 - dA / 2)  # bilinear


def vandermonde_kernel(A_bar: Tensor, B_bar: Tensor, C: Tensor, L: int) -> Tensor:
    """K_bar (H, L) by equation (7); twice the real part stands for the conjugate modes (section 3.3)."""
    V = A_bar[..., None] ** torch.arange(L)  # (H, N/2, L), the Vandermonde matrix
    return 2 * torch.einsum("hn,hnl->hl", B_bar * C, V).real


def causal_convolution(u: Tensor, K: Tensor) -> Tensor:
    """Equation (6), y = u * K_bar, by an FFT padded to 2L as in Listing 1; u and y are (B, H, L)."""
    L = u.shape[-1]
    return torch.fft.irfft(torch.fft.rfft(u, n=2 * L) * torch.fft.rfft(K, n=2 * L), n=2 * L)[..., :L]


class S4D(nn.Module):
    """H independent diagonal SSMs, a skip D, GELU, and a linear layer that mixes the heads (Listing 1, section 3.4)."""

    def __init__(self, H: int, N: int, init: str = "legs", rule: str = "bilinear") -> None:
        super().__init__()
        self.rule = rule
        A = init_A(init, N).repeat(H, 1)
        self.log_dt = nn.Parameter(math.log(0.001) + torch.rand(H) * math.log(0.1 / 0.001))  # Δ in [0.001, 0.1]
        self.log_A_real = nn.Parameter(torch.log(-A.real))  # Re A = -exp(log_A_real) < 0 (section 3.3)
        self.A_imag = nn.Parameter(A.imag)
        self.B = nn.Parameter(torch.ones_like(A))  # section 3.3
        self.C = nn.Parameter(torch.randn_like(A) * math.sqrt(2))  # real and imaginary parts with deviation 1
        self.D = nn.Parameter(torch.randn(H))
        self.mix = nn.Linear(H, H)

    def system(self) -> tuple[Tensor, Tensor]:
        """A_bar and B_bar, (H, N/2)."""
        return discretize(-torch.exp(self.log_A_real) + 1j * self.A_imag, self.B, torch.exp(self.log_dt), self.rule)

    def forward(self, u: Tensor) -> Tensor:
        """Whole sequences by convolution; u and y are (B, L, H)."""
        K = vandermonde_kernel(*self.system(), self.C, u.shape[1])
        return self.output(causal_convolution(u.mT, K).mT, u)

    def step(self, u: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """One sample by the recurrence x_k = A_bar x_(k-1) + B_bar u_k, y_k = C x_k; u (B, H), x (B, H, N/2)."""
        A_bar, B_bar = self.system()
        x = A_bar * x + B_bar * u[..., None]
        return self.output(2 * (self.C * x).sum(-1).real, u), x

    def output(self, y: Tensor, u: Tensor) -> Tensor:
        """Skip, activation and mixing of the heads."""
        mixed: Tensor = self.mix(nn.functional.gelu(y + self.D * u))
        return mixed


def check(init: str, rule: Rule, *, H: int = 6, N: int = 16, L: int = 101) -> tuple[float, float]:
    """Largest difference between the two modes of this page, and between this page and statespan.S4D."""
    u = torch.randn(2, L, H, dtype=torch.float64)
    reference = statespan.S4D(H, N, init=init, discretization=rule, mix="linear").double()
    layer = S4D(H, N, init, rule).double()
    torch.testing.assert_close(layer.A_imag, reference.ssm.A_imag, rtol=1e-6, atol=1e-6)  # the same initialization
    values = {name.removeprefix("ssm."): value for name, value in reference.state_dict().items()}
    values["log_A_real"] = values.pop("A_real")
    values["B"], values["C"] = torch.view_as_complex(values["B"]), torch.view_as_complex(values["C"])[0]
    layer.load_state_dict({**values, "D": values["D"][0]})

    y, x, steps = layer(u), torch.zeros(2, H, N // 2, dtype=torch.complex128), []
    for k in range(L):
        y_k, x = layer.step(u[:, k], x)
        steps.append(y_k)
    return float((torch.stack(steps, 1) - y).abs().max()), float((y - reference(u)).abs().max())


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    for init in ("legs", "inv", "lin"):
        for rule in RULES:
            recurrence, library = check(init, rule)
            print(f"S4D {init:4} {rule:8}  recurrence - convolution {recurrence:.0e}", end="  ")
            print(f"this page - statespan.S4D {library:.0e}")
            assert recurrence < 1e-6, "the recurrence and the convolution differ"
            assert library < 1e-6, "this page and statespan.S4D differ"


if __name__ == "__main__":
    main()
