"""Layers and backbones on samples at irregular times; see :mod:`statespan.ssm.irregular`.

Shapes: B batch, L length, D = d_model features, K channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from statespan.nn.backbone import Backbone
from statespan.nn.block import ResidualBlock
from statespan.nn.layer import SSMLayer
from statespan.nn.padding import Lengths, Padding, fill
from statespan.nn.parameters import DiagonalParameters
from statespan.nn.sequence import SequenceLayer
from statespan.ops.fusion import mix_features
from statespan.ops.parallel.context import check_alone
from statespan.ops.parallel.packing import check_unpacked
from statespan.ssm import Diagonal
from statespan.ssm.irregular import check_gaps, scan_gaps


def with_gaps(module: nn.Module, x: Tensor, gaps: Tensor, *, lengths: Lengths = None) -> Tensor:
    """Apply a layer, a residual block or a backbone to samples at irregular times.

    With gaps of 1 everywhere it equals ``module(x, lengths=lengths)``; with gaps of 2, the same with ``dt_scale=2.0``.
    The SSMs must be diagonal (S4D): S4 and LSSL would need a matrix exponential at every sample, and the softmax of DSS
    assumes equal steps. For gradients, a layer stores its input, its output and about √L states per sequence.

    Args:
        module: :class:`~statespan.S4D`, or :class:`~statespan.nn.ResidualBlock` and :class:`~statespan.nn.Backbone` of
            such (and of position-wise layers).
        x: (B, L, D).
        gaps: (B, L), at least 0: time from the sample before to this one, in units of the step of training.
        lengths: True length of each sequence (B,); padding is ignored, and its outputs are 0.

    Returns:
        y of shape (B, L, D).

    Example:
        >>> from statespan import S4D
        >>> layer, x = S4D(8, 4), torch.randn(2, 20, 8)
        >>> y = with_gaps(layer, x, torch.full((2, 20), 2.0))
        >>> bool((y - layer(x, dt_scale=2.0)).abs().max() < 1e-5)
        True
    """
    check_alone("with_gaps")
    check_unpacked("with_gaps")
    padding = Padding.of(x, lengths)
    check_gaps(gaps, *x.shape[:2])
    if isinstance(module, Backbone):
        return module.flow(x, lambda block, x: with_gaps(block, x, gaps, lengths=padding), padding)
    if isinstance(module, ResidualBlock):
        inner = module.layer_input(x, padding)
        return module.add_to(x, with_gaps(module.layer, inner, gaps, lengths=padding), padding)
    if isinstance(module, SSMLayer):
        return _layer(module, x, gaps, padding)
    if isinstance(module, SequenceLayer) and not module.is_position_wise:
        raise TypeError(f"module must be made of S4D layers for irregular times, got {type(module).__name__}")
    return fill(module(x), padding)


def _layer(layer: SSMLayer, x: Tensor, gaps: Tensor, padding: Padding | None) -> Tensor:
    own = isinstance(layer.ssm, DiagonalParameters) and not layer.ssm.convolve
    ssm: Any = layer.structure() if own else None
    if not isinstance(ssm, Diagonal):
        raise TypeError(
            "module must be made of S4D layers (without a softmax) for irregular times, got one of "
            f"{type(layer).__name__}"
        )
    u = fill(x, padding).to(ssm.dtype)

    def scan(kernels: slice, u: Tensor, gaps: Tensor) -> Tensor:
        return scan_gaps(Diagonal(ssm.A, ssm.B, ssm.C[kernels], ssm.dt, discretization=ssm.discretization), u, gaps)[0]

    y = scan(slice(layer.channels), u, gaps)
    if layer.bidirectional:  # from the right, starting at the next sample, whose gap lies between the two
        next_u = torch.cat([u[:, 1:], torch.zeros_like(u[:, :1])], 1)
        next_gaps = torch.cat([gaps[:, 1:], torch.ones_like(gaps[:, :1])], 1)
        y = y + scan(slice(layer.channels, None), next_u.flip(1), next_gaps.flip(1)).flip(1)
    y = (y + layer.D.to(u.dtype) * u[:, :, None]).to(x.dtype)
    if layer.activation is not None:
        y = nn.functional.gelu(y)
    return fill(mix_features(y, layer.dropout, layer.mix), padding)
