"""The papers' kernels as printed, with every large matrix in memory: the baseline of the library.

All take a layer and a length L, and return the kernel (K, H, L), real.

Shapes: H heads, M = N/2 kept complex modes, N state size, L length, K channels, F = L/2 + 1 frequencies.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from statespan.nn.layer import SSMLayer
from statespan.ops import fftconv
from statespan.ssm import DPLR, Dense, Diagonal

KernelFunction = Callable[[SSMLayer, int], Tensor]


def vandermonde(layer: SSMLayer, length: int, dtype: torch.dtype = torch.complex64) -> Tensor:
    """S4D's kernel ``2 Re Σ_n C_n B̄_n exp(l log Ā_n)`` by the whole Vandermonde matrix (H, M, L) (S4D equation (7)).

    ``dtype`` is that of the matrix: complex64 as in the papers' code, complex128 for the library's accuracy.
    """
    ssm = layer.structure()
    assert isinstance(ssm, Diagonal)
    Abar, Bbar, C = ssm.discrete()
    matrix = torch.exp(torch.log(Abar).to(dtype)[..., None] * torch.arange(length, device=C.device))  # (H, M, L)
    return 2 * torch.einsum("khm,hml->khl", (C * Bbar).to(dtype), matrix).real.to(ssm.dtype)


def cauchy(layer: SSMLayer, length: int, dtype: torch.dtype = torch.complex64, shared: bool = True) -> Tensor:
    """S4's kernel by Algorithm 1 of its paper: generating function, Cauchy matrix (H, N, F), Woodbury, inverse FFT.

    At the roots of unity ω, ``Σ_l K_l ω^l = C̃ (I - ωĀ)⁻¹ B̄ = C̃ ((1-ω) I - (1+ω) ΔA/2)⁻¹ ΔB``, written without the
    division by 1+ω of the paper's form, which fails at ω = -1. With ``shared`` there is one Cauchy matrix for the four
    products; without, each of them divides, ``Σ_n v_n / (z - λ_n)``, as the papers' code without its extension does.
    The rule of the layer is the bilinear one.
    """
    ssm = layer.structure()
    assert isinstance(ssm, DPLR)
    assert (ssm.discretization, ssm.P.shape[0]) == ("bilinear", 1)
    dt, half = ssm.dt.double(), ssm.dt.double()[:, None] * ssm.A / 2  # (H,), (H, M)
    Abar, _, rows = ssm.discrete()  # (H, N, N), _, (K, H, N)
    rows = rows - (rows[..., None, :] @ torch.linalg.matrix_power(Abar, length))[..., 0, :]
    real, imag = rows.chunk(2, -1)
    Ctilde = torch.complex(real, -imag) / 2  # (K, H, M)

    angle = -2 * math.pi * torch.arange(length // 2 + 1, dtype=torch.float64, device=dt.device) / length
    omega = torch.polar(torch.ones_like(angle), angle)
    modes = torch.cat([half, half.conj()], -1)[..., None]  # (H, N, 1)
    nodes = (1 - omega).to(dtype) - (1 + omega).to(dtype) * modes.to(dtype)  # (H, N, F)
    P, B = ssm.P[0].to(torch.complex128), ssm.B.to(torch.complex128)
    left, right = torch.cat([Ctilde, P.conj()[None]]), torch.stack([B, P])
    weights = left[:, None] * right  # (K + 1, 2, H, M)
    weights = torch.cat([weights, weights.conj()], -1).to(dtype)  # (K + 1, 2, H, N)
    if shared:
        products = torch.einsum("abhn,hnf->abhf", weights, nodes.reciprocal())
    else:
        products = (weights[..., None] / nodes).sum(-2)
    (CB, CP), (PB, PP) = products[:-1].unbind(1), products[-1]
    c = ((1 + omega) * dt[:, None] / 2).to(dtype)  # (H, F)
    spectrum = dt[:, None].to(dtype) * (CB - c * CP * PB / (1 + c * PP))
    return torch.fft.irfft(spectrum, n=length).to(ssm.dtype)


def krylov(layer: SSMLayer, length: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """LSSL's kernel ``C Ā^l B̄`` by the whole Krylov matrix (H, N, L), doubled from one column with powers of Ā."""
    ssm = layer.structure()
    assert isinstance(ssm, Dense)
    power, Bbar, C = (t.to(dtype) for t in ssm.discrete())
    columns = Bbar[..., None]  # (H, N, 1)
    while columns.shape[-1] < length:
        columns = torch.cat([columns, power @ columns], -1)
        power = power @ power
    return torch.einsum("khn,hnl->khl", C, columns[..., :length]).to(ssm.dtype)


def forward_with(kernel: KernelFunction) -> Callable[[nn.Module, Tensor], Tensor]:
    """The forward pass of a causal layer of one channel, with this kernel in place of its own."""

    def forward(layer: nn.Module, x: Tensor) -> Tensor:
        assert isinstance(layer, SSMLayer)
        with torch.autocast(x.device.type, enabled=False):
            u = x.to(layer.ssm.C.dtype)
            y = fftconv(u, kernel(layer, x.shape[1]))[:, :, 0] + layer.D[0].to(u.dtype) * u
        y = y.to(x.dtype)
        return layer.mix(y if layer.activation is None else nn.functional.gelu(y))

    return forward
