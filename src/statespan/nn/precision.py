"""The precision that modules compute in."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """A context in which autocast is off (the meta device has none), where 16 bits are too few."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def example_of(module: nn.Module) -> Tensor:
    """A parameter, for its dtype and device; an empty float32 tensor where there is none, as in a quantized module."""
    return next(module.parameters(), torch.empty(0, dtype=torch.float32, device="cpu"))
