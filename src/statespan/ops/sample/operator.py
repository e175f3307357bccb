"""Samples from an adaptive softmax on a GPU without writing its scores, billions for a batch of thousands.

Shapes: B batch, K features of a table, V words of it, C clusters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from statespan.ops.dispatch import forced_path, kernels_run

LARGEST = 1 << 20
"""Words of a table up to which a program keeps the sums of its blocks in registers."""
COLDEST = 1e-30
"""Below this temperature nothing changes: every probability but the largest has underflown."""


class VocabularyPart(NamedTuple):
    """Words whose scores are ``z · tableᵀ + bias``.

    Example:
        >>> part = VocabularyPart(z=torch.randn(2, 8), table=torch.randn(100, 8), bias=torch.zeros(100))
        >>> (part.z @ part.table.mT + part.bias).shape  # the scores
        torch.Size([2, 100])
    """

    z: Tensor
    """(B, K)."""
    table: Tensor
    """(V, K)."""
    bias: Tensor
    """(V,)."""


def sampling_is_fused(features: Tensor, tables: Sequence[Tensor], parameters: Iterable[Tensor]) -> bool:
    """Whether the kernels sample from features (B, D): on a GPU, without gradients (of any parameter) and autocast."""
    if torch.compiler.is_compiling() or features.shape[0] == 0:
        return False
    if max(len(table) for table in tables) > LARGEST:
        return False
    if torch.is_autocast_enabled(features.device.type):
        return False
    if torch.is_grad_enabled() and any(x.requires_grad for x in (features, *parameters)):
        return False
    return kernels_run(features) and (features.dtype != torch.float64 or forced_path() == "triton")


def fused_sample(
    parts: Sequence[VocabularyPart], clusters: Tensor, uniform: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Sample a word for each row: from the head, or from the cluster that the head chooses.

    Args:
        parts: The first part and the C clusters.
        clusters: Scores (B, C) of the clusters beside the words of the first part.
        uniform: Numbers in [0, 1), (B,), at which the distribution function is inverted, words in their order.
        temperature: Above 0.

    Returns:
        Words (B,) int64, counted through all parts, and their log-probabilities (B,) at temperature 1: float64 for
        float64 parts, else float32.
    """
    from statespan.ops.sample._triton import sample

    inverse = None
    if temperature != 1:
        # a tensor: a number would become a float32
        inverse = torch.full((1,), 1 / max(temperature, COLDEST), dtype=torch.float64, device=uniform.device)
    return sample(
        [(z.contiguous(), table.contiguous(), bias.contiguous()) for z, table, bias in parts],
        clusters.contiguous(),
        uniform.contiguous(),
        inverse,
    )
