"""InceptionNet in one dimension, as Nonaka and Seita (MLHC 2021) adapted InceptionTime for signals; S4D Table 11.

Shapes: B batch, L length, C channels, K = d_output classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from statespan.papers.baselines.cnn import Cnn, CnnConfig, PoolHead, channel_norm, convolution

KERNELS = (39, 19, 9)
DEPTH, PERIOD = 6, 3  # blocks, and blocks around which there is a residual


@dataclass(frozen=True, kw_only=True)
class InceptionConfig(CnnConfig):
    """The fields of :class:`CnnConfig`: ``d_model`` channels of each kind in a block, dropout before the output map.

    Example:
        >>> InceptionConfig(d_input=1, d_output=10).d_model
        32
    """

    d_model: int = 32
    dropout: float = 0.5


class Inception(Cnn):
    """InceptionTime (Fawaz et al., 2020): six blocks of parallel convolutions, with a residual around every third.

    It keeps the length. S4D Table 11: 481K parameters for 35 classes.

    Example:
        >>> import torch
        >>> model = Inception(InceptionConfig(d_input=1, d_output=35))
        >>> sum(p.numel() for p in model.parameters())
        480739
        >>> model.eval()(torch.randn(2, 100, 1)).shape
        torch.Size([2, 35])
    """

    name = "inception"
    config_class = InceptionConfig

    def _build(self, config: InceptionConfig, where: dict[str, Any]) -> None:
        wide = (len(KERNELS) + 1) * config.d_model
        self.blocks = nn.ModuleList(
            InceptionBlock(wide if number else config.d_input, config.d_model, **where) for number in range(DEPTH)
        )
        self.around = nn.ModuleList(
            nn.Sequential(convolution(d_input, wide, 1, **where), channel_norm(wide, **where))
            for d_input in (config.d_input, wide)
        )
        self.head = PoolHead(wide, config.d_output, dropout=config.dropout, **where)

    def scores(self, x: Tensor) -> Tensor:
        """The class scores (B, K) of x (B, C, L)."""
        for number, around in enumerate(self.around):
            y = x
            for block in self.blocks[PERIOD * number : PERIOD * (number + 1)]:
                y = block(y)
            x = (y + around(x)).relu()
        return self.head(x)


class InceptionBlock(nn.Module):
    """Convolutions of three widths of a narrow input, beside one of width 1 after a maximum pool.

    Example:
        >>> InceptionBlock(3, 8)(torch.zeros(2, 3, 100)).shape
        torch.Size([2, 32, 100])
    """

    def __init__(self, d_input: int, width: int, **where: Any) -> None:
        super().__init__()
        self.narrow = convolution(d_input, width, 1, **where)
        self.convolutions = nn.ModuleList(convolution(width, width, kernel, **where) for kernel in KERNELS)
        self.pooled = nn.Sequential(nn.MaxPool1d(3, 1, 1), convolution(d_input, width, 1, **where))
        self.norm = channel_norm((len(KERNELS) + 1) * width, **where)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, d_input, L) to (B, 4 · width, L)."""
        narrow = self.narrow(x)
        parts = [convolve(narrow) for convolve in self.convolutions]
        return self.norm(torch.cat([*parts, self.pooled(x)], 1)).relu()
