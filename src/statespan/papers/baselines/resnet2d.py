"""ResNet-18 in two dimensions for images given as sequences of pixels; S4 section 4.3.

Shapes: B batch, L = S · S pixels in rows of S, C channels, K = d_output classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from statespan._check import check_int
from statespan.papers.baselines.cnn import BasicBlock, Cnn, CnnConfig, ImageNorm, channel_norm, convolution
from statespan.papers.baselines.resnet1d import BLOCKS_18, strides


@dataclass(frozen=True, kw_only=True)
class ResNet2dConfig(CnnConfig):
    """The fields of :class:`CnnConfig`, and these. Dropout is before the output map.

    Args:
        norm: "batch", or "layer": over channels and positions of each image together, with a gain and a shift for each
            channel (a group norm with one group).
        stem: Width of the first convolution, odd.
        stem_stride: Its stride.

    Example:
        >>> ResNet2dConfig(d_input=3, d_output=10, norm="layer").stem
        3
    """

    norm: ImageNorm = "batch"
    stem: int = 3
    stem_stride: int = 1

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        if not check_int("stem", self.stem, minimum=1) % 2:
            raise ValueError(f"stem must be odd, got {self.stem}")


class ResNet2d(Cnn):
    """ResNet-18 (He et al., CVPR 2016) with its form for small images: a first convolution of width 3, without pooling.

    It reads the same sequences as S4, (B, 1024, 3) of CIFAR-10, and folds them to images. Four stages of two
    :class:`BasicBlock` with 64 to 512 channels, and a mean over the remaining positions: 11.2M parameters (S4 section
    4.3 says 11.0M). The authors' later code has ``stem=7, stem_stride=2``.

    Example:
        >>> import torch
        >>> model = ResNet2d(ResNet2dConfig(d_input=3, d_output=10, d_model=4, norm="layer"))
        >>> model(torch.randn(2, 32 * 32, 3)).shape
        torch.Size([2, 10])
        >>> model(torch.randn(2, 1000, 3))
        Traceback (most recent call last):
        ...
        ValueError: x must have as many positions as a square image has pixels, got 1000
    """

    name = "resnet2d"
    config_class = ResNet2dConfig

    def _build(self, config: ResNet2dConfig, where: dict[str, Any]) -> None:
        width = config.d_model
        options: dict[str, Any] = {"dims": 2, **where}
        self.stem = nn.Sequential(
            convolution(config.d_input, width, config.stem, stride=config.stem_stride, **options),
            channel_norm(width, norm=config.norm, **options),
            nn.ReLU(),
        )
        blocks: list[nn.Module] = []
        for stride in strides(BLOCKS_18):
            blocks.append(BasicBlock(width, stride * width, stride=stride, norm=config.norm, **options))
            width *= stride  # half the side, twice the channels
        self.blocks = nn.Sequential(*blocks)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(width, config.d_output, **where)

    def scores(self, x: Tensor) -> Tensor:
        """The class scores (B, K) of x (B, C, L)."""
        side = math.isqrt(x.shape[-1])
        if side**2 != x.shape[-1]:
            raise ValueError(f"x must have as many positions as a square image has pixels, got {x.shape[-1]}")
        y = self.blocks(self.stem(x.unflatten(-1, (side, side))))
        return self.head(self.dropout(y.mean((-2, -1))))
