"""S4D and DSS: layers with diagonal state matrices."""

from __future__ import annotations

from typing import Any

import torch

from statespan._check import check_choice
from statespan.nn.layer import SSMLayer, kernel_count
from statespan.nn.options import SSMOptions
from statespan.nn.parameters import DiagonalParameters

KERNELS = ("vandermonde", "softmax")


class S4D(SSMLayer):
    """S4D: diagonal state space models (S4D paper, section 3.4). The defaults are its base version.

    Args:
        d_model: Number of features D, each with its own SSM.
        d_state: State size N of each SSM, even.
        init: "legs", "inv", "lin", "inv2", "quad", "real", "random", or several joined by "/" to share the heads.
        init_options: Keyword arguments of :func:`statespan.ssm.inits.diagonal`, e.g. ``{"imag_scale": 0.01}``.
        discretization: "bilinear" or "zoh".
        real_part: How Re A is kept negative: "exp", "softplus", "relu"; or "none" to leave it free.
        kernel: "vandermonde", or "softmax" for the normalized kernel of DSS (needs "zoh").
        softmax_length: The length that "softmax" normalizes over. None for that of each input, as in the DSS paper, at
            the price of ``prefill``, ``step`` and padding.
        train_A: Train A.
        train_B: Train B.
        n_ssm: Number of independent (A, B), shared by the heads in turn (head h uses number h mod n_ssm); None for
            one per head. Must divide d_model. A mixture of initializations is dealt out over them in equal parts.
        dt_min: Smallest initial step size Δ.
        dt_max: Largest; Δ is drawn log-uniformly between the two.
        channels: See :class:`SSMLayer`, as for all that follow.
        bidirectional: Look both ways.
        activation: "gelu" or None.
        mix: "linear", "glu" or None.
        dropout: Dropout before the mixing.
        tie_dropout: One dropout mask for all positions.
        device: Where the parameters live.
        dtype: Their dtype.

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
        init: str = "legs",
        init_options: dict[str, Any] | None = None,
        discretization: str = "bilinear",
        real_part: str = "exp",
        kernel: str = "vandermonde",
        softmax_length: int | None = None,
        train_A: bool = True,
        train_B: bool = True,
        n_ssm: int | None = None,
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        channels: int = 1,
        bidirectional: bool = False,
        activation: str | None = "gelu",
        mix: str | None = "linear",
        dropout: float = 0.0,
        tie_dropout: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        kernels = kernel_count(channels, bidirectional)
        options = SSMOptions(d_model, d_state, kernels, n_ssm, dt_min, dt_max, discretization, train_A, train_B)
        softmax = check_choice("kernel", kernel, KERNELS) == "softmax"
        super().__init__(
            DiagonalParameters(options, init, init_options, real_part, softmax, softmax_length, device, dtype),
            channels=channels,
            bidirectional=bidirectional,
            activation=activation,
            mix=mix,
            dropout=dropout,
            tie_dropout=tie_dropout,
            device=device,
            dtype=dtype,
        )


class DSS(S4D):
    """DSS, row 2 of S4D Table 1: S4D with zero-order hold, free Re A, the softmax kernel and B = 1 not trained.

    Args:
        d_model: Number of features D.
        d_state: State size N, even.
        init: As in :class:`S4D`; the DSS paper's is "legs".
        softmax_length: As in :class:`S4D`.
        **options: The other arguments of :class:`S4D`.

    Example:
        >>> DSS(d_model=16, d_state=32)(torch.randn(2, 100, 16)).shape
        torch.Size([2, 100, 16])
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        *,
        init: str = "legs",
        softmax_length: int | None = 1024,
        **options: Any,
    ) -> None:
        own = {"discretization": "zoh", "real_part": "none", "kernel": "softmax", "train_B": False}
        super().__init__(d_model, d_state, init=init, softmax_length=softmax_length, **{**own, **options})
        assert isinstance(self.ssm, DiagonalParameters)
        self.ssm.start_with_unit_B()  # DSS has one parameter for B·C
