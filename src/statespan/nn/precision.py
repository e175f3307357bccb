"""The precision that modules compute in."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Disable autocast (the meta device has none) where 16 bits are not enough."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def example_of(module: nn.Module) -> Tensor:
    """A parameter, for its dtype and device; an empty float32 tensor if there is none, as in a quantized module."""
    return next(module.parameters(), torch.empty(0, dtype=torch.float32, device="cpu"))
