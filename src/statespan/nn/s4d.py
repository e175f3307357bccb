"""S4D and DSS: layers with diagonal state matrices."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import torch

from statespan._check import check_choice
from statespan.nn.layer import Activation, Mix, SSMLayer
from statespan.nn.options import Discretization, SSMOptions, documented, kernel_count
from statespan.nn.parameters import DiagonalParameters
from statespan.nn.real_part import RealPart
from statespan.ssm.inits import Init

Kernel: TypeAlias = Literal["vandermonde", "softmax"]


@documented
class S4D(SSMLayer):
    """S4D: diagonal state space models (S4D paper, section 3.4). The defaults are its base version.

    Args:
        d_model: Number of features D, each with its own SSM.
        d_state: State size N of each SSM, even.
        init: "legs", "inv", "lin", "inv2", "quad", "real", "random", "dfout", or several joined by "/" to share the
            heads. "dfout" starts at Δ = 1 whatever dt_min and dt_max are; its frequencies need "zoh" to be exact. Or a
            name registered by :func:`statespan.ssm.inits.register_init`; or a pair (A, B) of tensors or numpy arrays
            (N/2,), one mode of each conjugate pair; or a function from d_state to such a pair.
        init_options: Keyword arguments of :func:`statespan.ssm.inits.diagonal`, e.g. ``{"imag_scale": 0.01}``.
        discretization: "bilinear"; "zoh" for an input that is constant between samples, "foh" for a linear one.
        real_part: How Re A is kept negative: "exp", "softplus", "relu"; or "none" to leave it free.
        kernel: "vandermonde", or "softmax" for the normalized kernel of DSS (needs "zoh").
        softmax_length: The length that "softmax" normalizes over. None for that of each input, as in the DSS paper, at
            the price of ``prefill``, ``step`` and padding.
        {shared}

    Example:
        >>> layer = S4D(d_model=16, d_state=32)
        >>> layer(torch.randn(2, 100, 16)).shape
        torch.Size([2, 100, 16])
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        *,
        init: Init = "legs",
        init_options: dict[str, Any] | None = None,
        discretization: Discretization = "bilinear",
        real_part: RealPart = "exp",
        kernel: Kernel = "vandermonde",
        softmax_length: int | None = None,
        train_A: bool = True,
        train_B: bool = True,
        n_ssm: int | None = None,
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
            d_model, d_state, kernels=kernel_count(channels, bidirectional), n_ssm=n_ssm, dt_min=dt_min, dt_max=dt_max,
            discretization=discretization, train_A=train_A, train_B=train_B,
        )  # fmt: skip
        ssm = DiagonalParameters(
            options, init=init, init_options=init_options, real_part=real_part, softmax_length=softmax_length,
            softmax=check_choice("kernel", kernel, get_args(Kernel)) == "softmax", device=device, dtype=dtype,
        )  # fmt: skip
        super().__init__(
            ssm, bidirectional=bidirectional, activation=activation, mix=mix, dropout=dropout, tie_dropout=tie_dropout,
            device=device, dtype=dtype,
        )  # fmt: skip


@documented
class DSS(S4D):
    """DSS, row 2 of S4D Table 1: S4D with zero-order hold, free Re A, the softmax kernel and B = 1 not trained.

    Args:
        d_model: Number of features D, each with its own SSM.
        d_state: State size N of each SSM, even.
        init: As in :class:`S4D`, but for B, which is 1; the DSS paper's is "legs".
        init_options: As in :class:`S4D`.
        discretization: As in :class:`S4D`; "softmax" needs "zoh".
        real_part: How Re A is kept negative: "exp", "softplus", "relu"; or "none" to leave it free.
        kernel: "vandermonde", or "softmax".
        softmax_length: The length that "softmax" normalizes over; None for that of each input.
        {shared}

    Example:
        >>> DSS(d_model=16, d_state=32)(torch.randn(2, 100, 16)).shape
        torch.Size([2, 100, 16])
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        *,
        init: Init = "legs",
        init_options: dict[str, Any] | None = None,
        discretization: Discretization = "zoh",
        real_part: RealPart = "none",
        kernel: Kernel = "softmax",
        softmax_length: int | None = 1024,
        train_A: bool = True,
        train_B: bool = False,
        n_ssm: int | None = None,
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
        if isinstance(init_options, dict) and init_options.get("random_B"):
            raise ValueError("init_options must have no random_B for DSS, whose B is fixed to 1, got random_B=True")
        super().__init__(
            d_model, d_state, init=init, init_options=init_options, discretization=discretization, real_part=real_part,
            kernel=kernel, softmax_length=softmax_length, train_A=train_A, train_B=train_B, n_ssm=n_ssm, dt_min=dt_min,
            dt_max=dt_max, channels=channels, bidirectional=bidirectional, activation=activation, mix=mix,
            dropout=dropout, tie_dropout=tie_dropout, device=device, dtype=dtype,
        )  # fmt: skip
        assert isinstance(self.ssm, DiagonalParameters)
        self.ssm.start_with_unit_B()  # DSS has one parameter for B·C
