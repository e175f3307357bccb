"""Re A from a free parameter (S4D section 3.3): exp, softplus and relu keep it from being positive."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

RealPart: TypeAlias = Literal["exp", "softplus", "relu", "none"]
REAL_PARTS: tuple[str, ...] = get_args(RealPart)

# An undamped start (Re A = 0 in LegT and FouT) has no logarithm, and relu has no slope there, so it starts here. The
# slope of exp is Re A itself: with 1e-6 the gradients would be as small as Adam's epsilon, 1e-8, and training would
# stall; with this value, which the reference code uses as well, Adam takes its full steps.
SMALLEST = 1e-4


def real_part(kind: str, parameter: Tensor) -> Tensor:
    """Re A from the parameter, in float64, where exp is finite for parameters from -700 to 700."""
    p = parameter.double()
    if kind == "exp":
        return -torch.exp(p)
    if kind == "softplus":
        return -torch.logaddexp(p, torch.zeros_like(p))  # F.softplus turns linear above 20
    return -torch.relu(p) if kind == "relu" else p


def inverse_real_part(kind: str, value: Tensor) -> Tensor:
    """The parameter that gives Re A = value, which must not be positive unless ``kind`` is "none"."""
    if kind == "none":
        return value
    size = (-value).clamp(min=SMALLEST)
    if kind == "exp":
        return size.log()
    return size + torch.log(-torch.expm1(-size)) if kind == "softplus" else size
