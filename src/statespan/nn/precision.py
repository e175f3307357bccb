"""Leaving autocast where 16 bits are too few."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """What is inside has the precision of its inputs, also under autocast (which the meta device does not have)."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)
