"""The two forms in which a layer passes its SSM to the engine: a structure, or parameters ready for a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from statespan.ops.ssm.arguments import ModeTensors
from statespan.ops.ssm.memo import Memo
from statespan.ssm import DPLR, Diagonal, Structure


class Modal(NamedTuple):
    """The parameters of a modal SSM, from which a GPU builds the operators in one launch.

    Example:
        >>> from statespan import S4D
        >>> modal = S4D(4, 8).ssm.modal(2.0)
        >>> modal.dt_scale, modal.modes(None).C.shape
        (2.0, torch.Size([1, 4, 4, 2]))
    """

    parameters: ModeTensors
    """At the sampling rate of training, without the skip."""
    dt_scale: float
    rule: str
    real_part: str
    log_dt: bool

    def modes(self, skip: Tensor | None) -> ModeTensors:
        """The parameters at the requested sampling rate, with the skip (K, H) of the causal channels or None."""
        dt = self.parameters.dt
        if self.dt_scale != 1.0:
            dt = dt.double() + math.log(self.dt_scale) if self.log_dt else dt.double() * self.dt_scale
        return self.parameters._replace(dt=dt, D=None if skip is None else skip.contiguous())


@dataclass(frozen=True)
class SSMSource:
    """An SSM in both forms, each built only on the path that needs it.

    Example:
        >>> from statespan import S4D
        >>> source = S4D(4, 8).ssm.source(dt_scale=2.0)
        >>> source.power, source.dense, source.structure().heads
        ('diagonal', False, 4)
    """

    structure: Callable[[], Structure]
    """Makes the SSM as a structure."""
    modal: Callable[[], Modal | None]
    """Prepares the parameters for a GPU, or None if the kernels cannot build this SSM."""
    d_state: int
    power: str
    """The form of Ā, of which its chunk-to-chunk matrix G is a power: "diagonal"; "rank one" or "low rank" (rank 2) for
    diagonal plus that, whose powers are dense; or "dense". The kernels know the low-rank term P Pᴴ alone: with a Q of
    its own, Ā counts as dense."""
    dtype: torch.dtype
    """The real dtype of its parameters."""
    convolve: bool = False
    """Whether to apply it as a convolution wherever its length is known beforehand."""
    memo: Memo | None = None
    """Where the last set-up is kept; None to keep none."""

    @property
    def dense(self) -> bool:
        """Whether G, multiplied out, is dense."""
        return self.power != "diagonal"


def source_of(ssm: Structure) -> SSMSource:
    """Wrap a structure as a source."""
    power = _power(ssm)

    def modal() -> Modal | None:
        if power == "dense" or (isinstance(ssm, Diagonal) and ssm.softmax_length is not None):
            return None
        P = _pairs(ssm.P) if isinstance(ssm, DPLR) else None
        decay, freq = _pairs(ssm.A).movedim(-1, 0).contiguous().unbind()
        parameters = ModeTensors(ssm.dt.contiguous(), decay, freq, _pairs(ssm.B), _pairs(ssm.C), None, P)
        return Modal(parameters, 1.0, ssm.discretization, "none", False)

    return SSMSource(lambda: ssm, modal, ssm.d_state, power, ssm.dtype)


def _power(ssm: Structure) -> str:
    if isinstance(ssm, Diagonal):
        return "diagonal"
    if isinstance(ssm, DPLR) and ssm.discretization == "bilinear" and ssm.Q is None:
        return low_rank_power(ssm.P.shape[0])
    return "dense"


def low_rank_power(rank: int) -> str:
    """:attr:`SSMSource.power` of a diagonal plus low-rank Ā, as the bilinear rule gives it."""
    return "rank one" if rank == 1 else "low rank"


def _pairs(x: Tensor) -> Tensor:
    """The real and imaginary parts side by side."""
    return torch.view_as_real(x.resolve_conj()).contiguous()
