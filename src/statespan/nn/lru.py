"""LRU: the layer whose recurrence is discrete from the start."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from statespan._check import check_number
from statespan.nn.layer import Activation, Mix, SSMLayer
from statespan.nn.mimo import MIMOParameters
from statespan.nn.options import SSMOptions, documented, kernel_count
from statespan.ops.ssm.source import Modal
from statespan.ssm import zoh

_SMALLEST = 1e-8  # smallest |λ|², so that its logarithm is finite


class LRUParameters(MIMOParameters):
    """The modes λ = exp(-exp(ν) + i exp(θ)) and their gains γ.

    Args:
        options: Sizes and what is trained; an LRU has no step size.
        r_min: Smallest initial |λ|.
        r_max: Largest initial |λ|.
        max_phase: Largest initial phase of λ.
        device: Device of the parameters.
        dtype: Their dtype, at least float32.

    Example:
        >>> ssm = LRUParameters(SSMOptions(4, 8), r_min=0.9, max_phase=0.3)
        >>> ssm(torch.randn(2, 100, 4)).shape  # (B, L, K, D)
        torch.Size([2, 100, 1, 4])
    """

    nu: Tensor
    theta: Tensor
    log_gamma: Tensor

    def __init__(
        self,
        options: SSMOptions,
        *,
        r_min: float = 0.0,
        r_max: float = 1.0,
        max_phase: float = 2 * math.pi,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(options)
        self.r_min = check_number("r_min", r_min, above=0.0, below=1.0, closed=True)
        self.r_max = check_number("r_max", r_max, above=0.0)
        if not r_min < r_max <= 1.0:
            raise ValueError(f"r_max must be above r_min={r_min} and at most 1, got {r_max}")
        self.max_phase = check_number("max_phase", max_phase, above=0.0)
        if max_phase > 2 * math.pi:
            raise ValueError(f"max_phase must be at most 2π, got {max_phase}")
        self._make(device, dtype)

    def _initial(self) -> dict[str, Tensor]:
        M, D, K = self.options.d_state // 2, self.options.d_model, self.options.kernels
        place, turn = torch.rand(2, M, dtype=torch.float64).clamp(min=torch.finfo(torch.float64).tiny)
        square = (self.r_min**2 + (self.r_max**2 - self.r_min**2) * place).clamp(min=_SMALLEST)  # |λ|²
        B = torch.randn(M, D, 2, dtype=torch.float64) / math.sqrt(2 * D)
        C = torch.randn(K, D, M, 2, dtype=torch.float64) / math.sqrt(M) / 2
        return {
            "nu": torch.log(-torch.log(square) / 2),
            "theta": torch.log(self.max_phase * turn),
            "log_gamma": torch.log1p(-square) / 2,
            "B": B,
            "C": C,
        }

    def modal(self, dt_scale: float) -> Modal:
        """The modes as heads: the zero-order hold of log λ over a step of 1, with a gain that makes B̄ = γ."""
        nu, freq = self.nu.to(self.precision), self.theta.double().exp()
        A = torch.complex(-nu.double().exp(), freq)[:, None]
        held = zoh(A, torch.ones_like(A), torch.ones_like(A.real[:, 0]))[1]
        gain = self.log_gamma.double().exp() / held[:, 0]
        gain = torch.complex(gain.real.to(self.precision), gain.imag.to(self.precision))
        heads = self._as_heads(torch.ones_like(nu), nu, freq, gain)
        return Modal(heads, dt_scale=dt_scale, rule="zoh", real_part="exp", log_dt=False)

    def extra_repr(self) -> str:
        """The options."""
        return f"kernels={self.options.kernels}, r_min={self.r_min}, r_max={self.r_max}, max_phase={self.max_phase:.4g}"


@documented
class LRU(SSMLayer):
    """LRU (Orvieto et al., ICML 2023): one linear recurrence for all features, discrete from the start.

    A step is ``s ← λ s + γ B u``, ``y = 2 Re(C s) + D u``, where λ = exp(-exp(ν) + i exp(θ)) lies inside the unit
    circle. λ is initialized on a ring, with |λ|² uniform in [r_min², r_max²], and γ = √(1 - |λ|²), so that white noise
    gives all states the same variance. log γ is trained with B. As everywhere in this library, a mode stands for itself
    and its conjugate, so C starts at half the paper's scale. There is no step size. With ``dt_scale``, data sampled at
    another rate is read as constant between samples: λ becomes λ^dt_scale.

    It is as fast on a GPU as :class:`S5`.

    Args:
        d_model: Number of features D.
        d_state: State size N, even: N/2 complex modes.
        r_min: Smallest initial |λ|, at least 0.
        r_max: Largest initial |λ|, at most 1.
        max_phase: Initial phases of λ are uniform in [0, max_phase], at most 2π.
        {shared}

    Example:
        >>> layer = LRU(d_model=16, d_state=32, r_min=0.9, r_max=0.999)
        >>> layer(torch.randn(2, 100, 16)).shape
        torch.Size([2, 100, 16])
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        *,
        r_min: float = 0.0,
        r_max: float = 1.0,
        max_phase: float = 2 * math.pi,
        train_A: bool = True,
        train_B: bool = True,
        channels: int = 1,
        bidirectional: bool = False,
        activation: Activation | None = "gelu",
        mix: Mix | None = "glu",
        dropout: float = 0.0,
        tie_dropout: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        options = SSMOptions(
            d_model, d_state, kernels=kernel_count(channels, bidirectional), discretization="zoh", train_A=train_A,
            train_B=train_B,
        )  # fmt: skip
        ssm = LRUParameters(options, r_min=r_min, r_max=r_max, max_phase=max_phase, device=device, dtype=dtype)
        super().__init__(
            ssm, bidirectional=bidirectional, activation=activation, mix=mix, dropout=dropout, tie_dropout=tie_dropout,
            device=device, dtype=dtype,
        )  # fmt: skip
