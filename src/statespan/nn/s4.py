"""S4: the layer with diagonal plus low-rank state matrices."""

from __future__ import annotations

import torch

from statespan._check import check_choice
from statespan.nn.layer import SSMLayer, kernel_count
from statespan.nn.options import SSMOptions
from statespan.nn.parameters import DPLRParameters
from statespan.ssm.dplr import ALGORITHMS


class S4(SSMLayer):
    """S4: structured state spaces with a HiPPO state matrix in diagonal plus low-rank form.

    Args:
        d_model: Number of features D, each with its own SSM.
        d_state: State size N of each SSM, even.
        init: "legs", "legt", "fout", or several joined by "/": "legs/fout" is S4-(LegS/FouT).
        discretization: "bilinear" or "zoh".
        real_part: How Re Λ is kept negative: "exp", "softplus", "relu"; or "none" to leave it free.
        kernel: How the convolution kernel is computed: "krylov" (powers of the state matrix by doubling) or "cauchy"
            (the algorithm of the S4 paper, for "bilinear" only). Both give the same numbers.
        train_A: Train Λ and P.
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
        >>> layer = S4(d_model=16, d_state=32)
        >>> layer(torch.randn(2, 100, 16)).shape
        torch.Size([2, 100, 16])
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        *,
        init: str = "legs",
        discretization: str = "bilinear",
        real_part: str = "exp",
        kernel: str = "krylov",
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
        algorithm = check_choice("kernel", kernel, ALGORITHMS)
        super().__init__(
            DPLRParameters(options, init, real_part, algorithm, device, dtype),
            channels=channels,
            bidirectional=bidirectional,
            activation=activation,
            mix=mix,
            dropout=dropout,
            tie_dropout=tie_dropout,
            device=device,
            dtype=dtype,
        )
