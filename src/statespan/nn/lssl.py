"""LSSL: the layer with dense state matrices."""

from __future__ import annotations

import torch

from statespan.nn.layer import Activation, Mix, SSMLayer
from statespan.nn.options import Discretization, SSMOptions, documented, kernel_count
from statespan.nn.parameters import DenseParameters
from statespan.ssm.inits import Init


@documented
class LSSL(SSMLayer):
    """LSSL, the predecessor of S4: a dense real HiPPO state matrix. Exact but costly; a baseline and a check.

    Nothing keeps a trained dense A stable.

    Args:
        d_model: Number of features D, each with its own SSM.
        d_state: State size N of each SSM, even.
        init: "legs", "legt", "fout", or several joined by "/" to share the heads. Or a name registered by
            :func:`statespan.ssm.inits.register_init`; or a pair (A, B) of tensors or numpy arrays, (N, N) and (N,); or
            a function from d_state to such a pair. Any finite A is allowed.
        discretization: "bilinear"; or "zoh" or "foh" (by the matrix exponential).
        {shared}

    Example:
        >>> LSSL(d_model=16, d_state=32)(torch.randn(2, 100, 16)).shape
        torch.Size([2, 100, 16])
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        *,
        init: Init = "legs",
        discretization: Discretization = "bilinear",
        train_A: bool = True,
        train_B: bool = True,
        n_ssm: int | None = 1,
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
        ssm = DenseParameters(options, init=init, device=device, dtype=dtype)
        super().__init__(
            ssm, bidirectional=bidirectional, activation=activation, mix=mix, dropout=dropout, tie_dropout=tie_dropout,
            device=device, dtype=dtype,
        )  # fmt: skip
