"""ResNet-18 and XResNet-50 in one dimension, as Nonaka and Seita (MLHC 2021) adapted them for signals.

Of the papers' tables they are in S4D Table 11. All stages have the same number of channels, and the head pools by
maximum and mean.

Shapes: B batch, L length, C channels, K = d_output classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from statespan.papers.baselines.cnn import BasicBlock, Cnn, CnnConfig, PoolHead, channel_norm, convolution, kaiming

BLOCKS_18 = (2, 2, 2, 2)
BLOCKS_50 = (3, 4, 6, 3)
EXPANSION = 4  # channels between the blocks of XResNet-50, for each channel within them
KERNEL = 5


@dataclass(frozen=True, kw_only=True)
class ResNet1dConfig(CnnConfig):
    """The fields of :class:`CnnConfig`, here with dropout before the output map.

    Example:
        >>> ResNet1dConfig(d_input=1, d_output=10, d_model=8).dropout
        0.5
    """

    dropout: float = 0.5


class ResNet1d(Cnn):
    """ResNet-18 (He et al., CVPR 2016) in one dimension, with 64 channels in every stage.

    A convolution of width 3 and a maximum pool, each with stride 2; then four stages of two :class:`BasicBlock`, the
    last three of which begin with a stride of 2. S4D Table 11: 216K parameters for 35 classes.

    Example:
        >>> import torch
        >>> model = ResNet1d(ResNet1dConfig(d_input=1, d_output=35))
        >>> sum(p.numel() for p in model.parameters())
        216419
        >>> model.eval()(torch.randn(2, 500, 1)).shape
        torch.Size([2, 35])
    """

    name = "resnet1d"
    config_class = ResNet1dConfig

    def _build(self, config: ResNet1dConfig, where: dict[str, Any]) -> None:
        width = config.d_model
        self.stem = nn.Sequential(
            convolution(config.d_input, width, 3, stride=2, **where), channel_norm(width, **where), nn.ReLU(),
            nn.MaxPool1d(3, 2, 1),
        )  # fmt: skip
        blocks = [BasicBlock(width, width, stride=stride, **where) for stride in strides(BLOCKS_18)]
        self.blocks = nn.Sequential(*blocks)
        self.head = PoolHead(width, config.d_output, dropout=config.dropout, **where)

    def scores(self, x: Tensor) -> Tensor:
        """The class scores (B, K) of x (B, C, L)."""
        return self.head(self.blocks(self.stem(x)))


class XResNet1d(Cnn):
    """XResNet-50 (He et al., CVPR 2019, "Bag of tricks") in one dimension, with 64 and 256 channels in every stage.

    Three convolutions and a maximum pool; then stages of 3, 4, 6 and 3 :class:`Bottleneck`. S4D Table 11: 904K
    parameters for 35 classes.

    Example:
        >>> model = XResNet1d(ResNet1dConfig(d_input=1, d_output=35))
        >>> sum(p.numel() for p in model.parameters())
        903619
    """

    name = "xresnet1d"
    config_class = ResNet1dConfig

    def _build(self, config: ResNet1dConfig, where: dict[str, Any]) -> None:
        width = config.d_model
        widths = (config.d_input, -(-width // 2), -(-width // 2), width)
        stem: list[nn.Module] = []
        for number, (d_input, d_output) in enumerate(pairwise(widths)):
            stride = 1 if number else 2
            stem += [convolution(d_input, d_output, KERNEL, stride=stride, **where), channel_norm(d_output, **where)]
            stem += [nn.ReLU()]
        self.stem = nn.Sequential(*stem, nn.MaxPool1d(3, 2, 1))
        wide = EXPANSION * width
        blocks = [
            Bottleneck(wide if number else width, width, stride=stride, **where)
            for number, stride in enumerate(strides(BLOCKS_50))
        ]
        self.blocks = nn.Sequential(*blocks)
        self.head = PoolHead(wide, config.d_output, dropout=config.dropout, **where)
        self.initialise()

    def initialise(self) -> None:
        """Kaiming's initialization, biases of 0, and blocks that begin as the identity."""
        kaiming(self)
        nn.init.zeros_(self.head.map.bias)
        for block in self.blocks:
            assert isinstance(block, Bottleneck)
            nn.init.zeros_(block.last_norm.weight)

    def scores(self, x: Tensor) -> Tensor:
        """The class scores (B, K) of x (B, C, L)."""
        return self.head(self.blocks(self.stem(x)))


class Bottleneck(nn.Module):
    """Convolutions of width 1, 5 and 1 through few channels, with a residual around them.

    The stride is that of the middle one; the residual is averaged over it first, then mapped by a convolution of
    width 1 if the number of channels changes.

    Example:
        >>> import torch
        >>> Bottleneck(4, 8, stride=2)(torch.zeros(2, 4, 51)).shape
        torch.Size([2, 32, 26])
    """

    def __init__(self, d_input: int, width: int, *, stride: int = 1, **where: Any) -> None:
        super().__init__()
        wide = EXPANSION * width
        self.path = nn.Sequential(
            convolution(d_input, width, 1, **where), channel_norm(width, **where), nn.ReLU(),
            convolution(width, width, KERNEL, stride=stride, **where), channel_norm(width, **where), nn.ReLU(),
            convolution(width, wide, 1, **where),
        )  # fmt: skip
        self.last_norm = nn.BatchNorm1d(wide, **where)
        around: list[nn.Module] = [nn.AvgPool1d(2, ceil_mode=True)] if stride != 1 else []
        if d_input != wide:
            around += [convolution(d_input, wide, 1, **where), channel_norm(wide, **where)]
        self.around = nn.Sequential(*around)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, d_input, L) to (B, 4 · width, ⌈L / stride⌉)."""
        return (self.last_norm(self.path(x)) + self.around(x)).relu()


def strides(blocks: tuple[int, ...]) -> list[int]:
    """The stride of every block: 2 for the first one of each stage but the first stage.

    Example:
        >>> strides((2, 2, 3))
        [1, 1, 2, 1, 2, 1, 1]
    """
    return [2 if stage and not number else 1 for stage, count in enumerate(blocks) for number in range(count)]
