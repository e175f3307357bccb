"""LSSL: the layer with dense state matrices."""

from __future__ import annotations

import torch

from statespan.nn.layer import SSMLayer, kernel_count
from statespan.nn.options import SSMOptions
from statespan.nn.parameters import DenseParameters


class LSSL(SSMLayer):
    """LSSL, the predecessor of S4: a dense real HiPPO state matrix. Exact but costly; a baseline and a check.

    Args:
        d_model: Number of features D, each with its own SSM.
        d_state: State size N of each SSM, even.
        init: "legs", "legt", "fout", or several joined by "/" to share the heads.
        discretization: "bilinear" or "zoh" (by the matrix exponential).
        train_A: Train A. Nothing keeps a trained dense A stable.
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
        >>> LSSL(d_model=16, d_state=32)(torch.randn(2, 100, 16)).shape
        torch.Size([2, 100, 16])
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        *,
        init: str = "legs",
        discretization: str = "bilinear",
        train_A: bool = True,
        train_B: bool = True,
        n_ssm: int | None = 1,
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
        super().__init__(
            DenseParameters(options, init, device, dtype),
            channels=channels,
            bidirectional=bidirectional,
            activation=activation,
            mix=mix,
            dropout=dropout,
            tie_dropout=tie_dropout,
            device=device,
            dtype=dtype,
        )
