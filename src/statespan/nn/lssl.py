"""LSSL: the layer with dense state matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from statespan.nn.layer import Activation, Mix, SSMLayer
from statespan.nn.options import Discretization, SSMOptions, documented, kernel_count
from statespan.nn.parameters import SSMParameters
from statespan.nn.precision import wide
from statespan.ssm import Dense, inits
from statespan.ssm.inits import Init


class DenseParameters(SSMParameters):
    """A dense real SSM: A, B and C.

    Args:
        options: Sizes, step sizes and what is trained.
        init: As in :class:`statespan.LSSL`.
        device: Device of the parameters.
        dtype: Their dtype, at least float32.

    Example:
        >>> ssm = DenseParameters(SSMOptions(4, 8))
        >>> ssm.structure().A.shape  # (H, N, N)
        torch.Size([4, 8, 8])
    """

    A: Tensor
    B: Tensor

    def __init__(
        self,
        options: SSMOptions,
        *,
        init: Init = "legs",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(options)
        self.init = init
        self._make(device, dtype)

    def _initial(self) -> dict[str, Tensor]:
        options = self.options
        log_dt = self._initial_log_dt()
        A, B = inits.mix_dense(self.init, options.ssms, options.d_state)
        C = torch.randn(options.kernels, options.d_model, options.d_state, dtype=torch.float64)
        return {"log_dt": log_dt, "A": A, "B": B, "C": C}

    def structure(self, dt_scale: float = 1.0, length: int | None = None) -> Dense:
        """The dense SSM."""
        A, B = self._heads(self.A), self._heads(self.B)
        ssm = Dense(A, B, wide(self.C), self._dt(), discretization=self.options.discretization)
        return ssm.with_dt_scale(dt_scale)


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
