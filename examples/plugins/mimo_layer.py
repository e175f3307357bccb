"""A package that adds an SSM layer of many inputs and outputs, in the manner of S5: one state for all features.

Its pyproject.toml says

    [project.entry-points."statespan.layers"]
    mimo = "mimo_layer:MIMO"

It has no ``step``: such a layer trains and answers for whole sequences, and a stream of its model gets a clear error.

    statespan train digits-s4d model.layer=mimo model.d_state=32 "model.ssm={dt_max: 0.3}"
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from statespan.nn import SequenceLayer
from statespan.nn.padding import Lengths, Padding, fill


class MIMO(SequenceLayer):
    """A diagonal SSM whose M = N/2 modes read and write all D features, then GELU; zero-order hold.

    Args:
        d_model: Number of features D.
        d_state: State size N, even.
        dt_min: Smallest initial step size.
        dt_max: Largest; each mode has its own.
    """

    needs_lengths = False  # it is causal
    parameter_groups: ClassVar[dict[str, str]] = {
        "log_dt": "dt", "log_decay": "ssm", "frequency": "ssm", "B": "ssm", "C": "C",
    }  # fmt: skip

    def __init__(self, d_model: int, d_state: int = 64, *, dt_min: float = 0.001, dt_max: float = 0.1) -> None:
        super().__init__()
        self.d_model = self.d_output = d_model
        modes = d_state // 2
        spread = math.log(dt_max / dt_min) * torch.rand(modes)
        self.log_dt = nn.Parameter(math.log(dt_min) + spread)
        self.log_decay = nn.Parameter(torch.full((modes,), math.log(0.5)))
        self.frequency = nn.Parameter(math.pi * torch.arange(modes, dtype=torch.float32))
        self.B = nn.Parameter(torch.randn(modes, d_model, 2) / math.sqrt(2 * d_model))  # complex, as pairs
        self.C = nn.Parameter(torch.randn(d_model, modes, 2) / math.sqrt(2 * modes))
        self.D = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """Whole sequences x (B, L, D)."""
        padding = Padding.of(x, lengths)
        x = fill(x, padding)
        length = x.shape[1]
        A = torch.complex(-self.log_decay.exp(), self.frequency)
        dtA = dt_scale * self.log_dt.exp() * A  # (M,)
        B = torch.view_as_complex(self.B) * (torch.expm1(dtA) / A)[:, None]
        drive = torch.einsum("md,bld->bml", B, x.to(B.dtype))
        decay = torch.exp(dtA[:, None] * torch.arange(length, device=x.device))  # (M, L)
        spectrum = torch.fft.fft(drive, 2 * length) * torch.fft.fft(decay, 2 * length)
        states = torch.fft.ifft(spectrum)[..., :length]  # (B, M, L), of the causal convolution
        y = 2 * torch.einsum("dm,bml->bld", torch.view_as_complex(self.C), states).real + self.D * x
        return fill(nn.functional.gelu(y), padding)
