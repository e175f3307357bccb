"""Options that all SSM layers share, and their documentation."""

from __future__ import annotations

import inspect
import re
from dataclasses import KW_ONLY, dataclass
from typing import Literal, TypeAlias, TypeVar

from statespan._check import check_bool, check_choice, check_int, check_number
from statespan.ssm.discretize import RULES

Discretization: TypeAlias = Literal["bilinear", "zoh", "foh"]
Layer = TypeVar("Layer", bound=type)

SHARED = """train_A: Train the state matrix.
        train_B: Train B.
        n_ssm: Number of independent (A, B), shared by the heads in turn (head h uses number h mod n_ssm); None for
            one per head. Must divide d_model. A mixture of initializations is dealt out over them in equal parts.
        dt_min: Smallest initial step size Δ.
        dt_max: Largest; Δ is drawn log-uniformly between the two.
        channels: Outputs of each SSM, mixed afterwards.
        bidirectional: Add a second kernel that looks ahead, starting at the next sample; such a layer has no
            recurrence, so ``prefill`` and ``step`` raise an error.
        activation: "gelu", or None for the linear map alone.
        mix: "glu" for ``W₁y · sigmoid(W₂y)``, "linear", or None to return all d_model · channels features.
        dropout: Probability of dropping a feature before the mixing.
        tie_dropout: Drop the same features at every position of a sequence.
        device: Device of the parameters.
        dtype: Their dtype; those of the SSM itself are at least float32."""


def documented(layer: Layer) -> Layer:
    """Insert the arguments that SSM layers share where the docstring has ``{shared}``, those that this one has."""
    if layer.__doc__ is not None:  # as with python -OO
        known = inspect.signature(layer).parameters
        entries = re.split(r"\n {8}(?=\w)", SHARED)
        shared = "\n        ".join(entry for entry in entries if entry.partition(":")[0] in known)
        layer.__doc__ = layer.__doc__.replace("{shared}", shared)
    return layer


@dataclass(frozen=True)
class SSMOptions:
    """Options that the parameters of all SSMs share.

    Args:
        d_model: Heads H.
        d_state: State size N.
        kernels: Kernels K of each head: channels, times 2 if bidirectional.
        n_ssm: Independent SSMs S, which must divide d_model; None for one per head.
        dt_min: Smallest initial step size.
        dt_max: Largest initial step size.
        discretization: "bilinear", "zoh" or "foh".
        train_A: Whether A (and P and Q) are trained.
        train_B: Whether B is trained.

    Example:
        >>> options = SSMOptions(d_model=64, d_state=32, kernels=2)
        >>> options.ssms, options.channels(bidirectional=True)
        (64, 1)
    """

    d_model: int
    d_state: int
    _: KW_ONLY
    kernels: int = 1
    n_ssm: int | None = None
    dt_min: float = 0.001
    dt_max: float = 0.1
    discretization: Discretization = "bilinear"
    train_A: bool = True
    train_B: bool = True

    def __post_init__(self) -> None:
        """Reject invalid combinations of options."""
        check_int("d_model", self.d_model, minimum=1)
        check_int("d_state", self.d_state, minimum=2, even=True)
        check_int("kernels", self.kernels, minimum=1)
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

    def channels(self, bidirectional: bool) -> int:
        """The channels of a layer with these kernels."""
        channels, rest = divmod(self.kernels, 2 if check_bool("bidirectional", bidirectional) else 1)
        if rest:
            raise ValueError(f"bidirectional=True needs an even number of kernels, got {self.kernels}")
        return channels


def kernel_count(channels: int, bidirectional: bool) -> int:
    """The number of kernels of each head."""
    return check_int("channels", channels, minimum=1) * (2 if check_bool("bidirectional", bidirectional) else 1)
