"""S5: the layer with one diagonal SSM for all features."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from statespan._check import check_choice, check_int
from statespan.nn.layer import Activation, Mix, SSMLayer
from statespan.nn.mimo import MIMOParameters
from statespan.nn.options import SSMOptions, documented, kernel_count
from statespan.nn.real_part import REAL_PARTS, RealPart, inverse_real_part
from statespan.ops.ssm.source import Modal
from statespan.ssm import inits

MIMODiscretization: TypeAlias = Literal["zoh", "bilinear"]


class S5Parameters(MIMOParameters):
    """The modes of S5, each with its own step size.

    Args:
        options: Sizes, step sizes and what is trained.
        init: Name of a diagonal initialization, or several joined by "/".
        blocks: Number of copies of the initialization, each of state size N/blocks.
        real_part: "exp", "softplus", "relu" or "none".
        device: Device of the parameters.
        dtype: Their dtype, at least float32.

    Example:
        >>> ssm = S5Parameters(SSMOptions(4, 8), blocks=2)
        >>> ssm(torch.randn(2, 100, 4)).shape  # (B, L, K, D)
        torch.Size([2, 100, 1, 4])
    """

    A_real: Tensor
    A_imag: Tensor

    def __init__(
        self,
        options: SSMOptions,
        *,
        init: str = "legs",
        blocks: int = 1,
        real_part: RealPart = "exp",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(options)
        self.init, self.blocks = init, check_int("blocks", blocks, minimum=1)
        if options.d_state % (2 * blocks):
            raise ValueError(f"blocks must divide d_state={options.d_state} into equal, even parts, got {blocks}")
        if isinstance(init, str) and (count := len(init.split("/"))) > blocks:
            raise ValueError(f"blocks must be at least {count} for init {init!r}, got {blocks}")
        self.real_part = check_choice("real_part", real_part, REAL_PARTS)
        self._make(device, dtype)

    def _initial(self) -> dict[str, Tensor]:
        N, D, K = self.options.d_state, self.options.d_model, self.options.kernels
        A, _ = inits.mix_diagonal(self.init, self.blocks, N // self.blocks)
        log_dt = self._initial_log_dt(N // 2)
        log_dt[inits.has_unit_step(self.init, self.blocks).repeat_interleave(A.shape[1])] = 0.0
        B = torch.randn(N // 2, D, dtype=torch.complex128) / math.sqrt(D)
        C = torch.randn(K, D, N // 2, dtype=torch.complex128) / math.sqrt(N)
        return {
            "log_dt": log_dt,
            "A_real": inverse_real_part(self.real_part, A.real.flatten()),
            "A_imag": A.imag.flatten(),
            "B": torch.view_as_real(B),
            "C": torch.view_as_real(C),
        }

    def modal(self, dt_scale: float) -> Modal:
        """The modes as heads, with an input gain of 1."""
        dt, decay, freq = (x.to(self.precision) for x in (self.log_dt, self.A_real, self.A_imag))
        heads = self._as_heads(dt, decay, freq, torch.complex(torch.ones_like(freq), torch.zeros_like(freq)))
        return Modal(heads, dt_scale=dt_scale, rule=self.options.discretization, real_part=self.real_part, log_dt=True)

    def extra_repr(self) -> str:
        """The options."""
        return f"{super().extra_repr()}, init={self.init}, blocks={self.blocks}, real_part={self.real_part}"


@documented
class S5(SSMLayer):
    """S5 (Smith, Warrington and Linderman, ICLR 2023): one diagonal SSM for all features, with a step size per mode.

    B mixes the features before the recurrence and C after it, so there are N state variables in all instead of N for
    each feature. The paper draws B and C in the basis of HiPPO-LegS and transforms them to its eigenbasis. Here they
    are drawn in the eigenbasis, from the same distribution.

    The engine treats each mode as a head. The real and the imaginary part of its input are two sequences with two
    outputs each. A state of size 2 does not fill a tile of a matrix product, which limits the speed on a GPU.

    Args:
        d_model: Number of features D.
        d_state: State size N of the SSM, even.
        init: The name of an initialization of :class:`S4D`, or several joined by "/" to share the blocks.
        blocks: Number of blocks J of the state, each initialized as a system of size N/J.
        discretization: "zoh" or "bilinear".
        real_part: How Re A is kept negative: "exp", "softplus", "relu"; or "none" to leave it free.
        {shared}

    Example:
        >>> layer = S5(d_model=16, d_state=32, blocks=4)
        >>> layer(torch.randn(2, 100, 16)).shape
        torch.Size([2, 100, 16])
        >>> layer.initial_state(2).shape                    # the real and the imaginary part of each mode
        torch.Size([2, 16, 2])
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        *,
        init: str = "legs",
        blocks: int = 1,
        discretization: MIMODiscretization = "zoh",
        real_part: RealPart = "exp",
        train_A: bool = True,
        train_B: bool = True,
        dt_min: float = 0.001,
        dt_max: float = 0.1,
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
            d_model, d_state, kernels=kernel_count(channels, bidirectional), dt_min=dt_min, dt_max=dt_max,
            discretization=discretization, train_A=train_A, train_B=train_B,
        )  # fmt: skip
        ssm = S5Parameters(options, init=init, blocks=blocks, real_part=real_part, device=device, dtype=dtype)
        super().__init__(
            ssm, bidirectional=bidirectional, activation=activation, mix=mix, dropout=dropout, tie_dropout=tie_dropout,
            device=device, dtype=dtype,
        )  # fmt: skip
