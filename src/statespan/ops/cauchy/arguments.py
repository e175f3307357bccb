"""Options and saved tensors of the operator for S4's kernel."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class CauchyOptions(NamedTuple):
    """Options for computing the kernel of :class:`statespan.ops.ssm.arguments.ModeTensors`.

    Example:
        >>> options = CauchyOptions(length=1024, real_part="exp", log_dt=True, dtype=torch.float32)
        >>> options._replace(save=True).save
        True
    """

    length: int
    real_part: str
    """How ``decay`` becomes Re A."""
    log_dt: bool
    """Whether ``dt`` is log Δ."""
    dtype: torch.dtype
    """Of the kernel, float32 or float64; it decides how many nodes there are."""
    save: bool = False
    """Whether a backward pass will follow."""


class SavedSums(NamedTuple):
    """Results of the forward pass that the backward pass needs.

    Example:
        >>> K, H, L, F = 1, 4, 100, 64
        >>> saved = SavedSums(torch.zeros(K, H, L), torch.zeros(H, F, 2), torch.zeros(K, H, F, 2))
        >>> torch.view_as_complex(saved.e2).shape
        torch.Size([1, 4, 64])
    """

    kernel: Tensor
    """(K, H, L)."""
    e1: Tensor
    """(H, F, 2), float64: what the Woodbury identity makes of the sums; see the kernels."""
    e2: Tensor
    """(K, H, F, 2)."""
