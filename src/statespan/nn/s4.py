"""S4: the layer with diagonal plus low-rank state matrices."""

from __future__ import annotations

from typing import Literal

import torch

from statespan._check import check_choice
from statespan.nn.layer import Activation, Mix, SSMLayer
from statespan.nn.options import Discretization, SSMOptions, documented, kernel_count
from statespan.nn.parameters import DPLRParameters
from statespan.nn.real_part import RealPart
from statespan.ssm.dplr import ALGORITHMS
from statespan.ssm.inits import Init


@documented
class S4(SSMLayer):
    """S4: structured state spaces with a HiPPO state matrix in diagonal plus low-rank form.

    Args:
        d_model: Number of features D, each with its own SSM.
        d_state: State size N of each SSM, even.
        init: "legs", "legt", "fout", or several joined by "/": "legs/fout" is S4-(LegS/FouT). Or a name registered by
            :func:`statespan.ssm.inits.register_init`; or a pair (A, B) of tensors or numpy arrays, (N, N) and (N,), in
            which ``(A + Aᵀ)/2`` is a multiple of the identity less a term of rank 1 or 2; or a function from d_state to
            such a pair.
        discretization: "bilinear"; or "zoh" or "foh", which make the state matrix dense.
        real_part: How Re Λ is kept negative: "exp", "softplus", "relu"; or "none" to leave it free.
        kernel: How the convolution kernel is computed: "krylov" (powers of the state matrix by doubling) or "cauchy"
            (the algorithm of the S4 paper, for "bilinear" only). Both give the same numbers.
        separate_Q: Train Q of the state matrix ``Λ - P Qᴴ`` apart from P, as the S4 paper did; it starts as P. Only
            Q = P, the default, keeps the SSM from growing, whatever is trained (Goel et al., 2022). The optimizer group
            of Q is that of C, as in the authors' code. On a GPU its operators are built in torch, which is slower.
        {shared}

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
        init: Init = "legs",
        discretization: Discretization = "bilinear",
        real_part: RealPart = "exp",
        kernel: Literal["krylov", "cauchy"] = "krylov",
        separate_Q: bool = False,
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
        algorithm = check_choice("kernel", kernel, ALGORITHMS)
        ssm = DPLRParameters(
            options, init=init, real_part=real_part, algorithm=algorithm, separate_Q=separate_Q, device=device,
            dtype=dtype,
        )  # fmt: skip
        super().__init__(
            ssm, bidirectional=bidirectional, activation=activation, mix=mix, dropout=dropout, tie_dropout=tie_dropout,
            device=device, dtype=dtype,
        )  # fmt: skip
