"""What the parameters of all SSMs share."""

from __future__ import annotations

from dataclasses import dataclass

from statespan._check import check_bool, check_choice, check_int, check_number
from statespan.ssm.discretize import RULES


@dataclass(frozen=True)
class SSMOptions:
    """What all SSM parameters share.

    Args:
        d_model: Heads H.
        d_state: State size N.
        kernels: Kernels K of each head: channels, times 2 if bidirectional.
        n_ssm: Independent SSMs S, which must divide d_model; None for one per head.
        dt_min: Smallest initial step size.
        dt_max: Largest initial step size.
        discretization: "bilinear" or "zoh".
        train_A: Whether A (and P) are trained.
        train_B: Whether B is trained.
    """

    d_model: int
    d_state: int
    kernels: int
    n_ssm: int | None
    dt_min: float
    dt_max: float
    discretization: str
    train_A: bool
    train_B: bool

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        check_int("d_model", self.d_model, minimum=1)
        check_int("d_state", self.d_state, minimum=2, even=True)
        if self.n_ssm is not None and self.d_model % check_int("n_ssm", self.n_ssm, minimum=1):
            raise ValueError(f"n_ssm must divide d_model={self.d_model}, got {self.n_ssm}")
        check_number("dt_min", self.dt_min, above=0.0)
        check_number("dt_max", self.dt_max, above=0.0)
        if self.dt_min > self.dt_max:
            raise ValueError(f"dt_min must be at most dt_max={self.dt_max}, got {self.dt_min}")
        check_choice("discretization", self.discretization, RULES)
        check_bool("train_A", self.train_A)
        check_bool("train_B", self.train_B)

    @property
    def ssms(self) -> int:
        """S."""
        return self.d_model if self.n_ssm is None else self.n_ssm
