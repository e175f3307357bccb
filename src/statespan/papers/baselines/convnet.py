"""The ConvNet of S4D appendix B: four stages of residual convolutions for raw speech; S4D Table 11.

Shapes: B batch, L length, C channels, K = d_output classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from statespan.papers.baselines.cnn import Cnn, CnnConfig, channel_norm, convolution

KERNEL = 25
STAGES, POOL = 4, 4


@dataclass(frozen=True, kw_only=True)
class ConvNetConfig(CnnConfig):
    """The fields of :class:`CnnConfig`, and these. Dropout is that of each block's channels.

    Args:
        n_blocks: Residual blocks of a stage.

    Example:
        >>> ConvNetConfig(d_input=1, d_output=10, d_model=8).n_blocks
        3
    """

    n_blocks: int = 3

    def least_weights(self) -> int:
        """The convolutions of the first stage."""
        return self.n_blocks * KERNEL * self.d_model**2


class ConvNet(Cnn):
    """Four stages of three residual blocks of 64 to 512 channels, with kernels of 25.

    Each stage but the last ends in a position-wise linear map to twice the channels and an average pool of width 4. The
    input is padded with zeros to the next power of 2, as 16,000 samples to 16,384 in the paper, and goes through a
    convolution of width 25, as in the authors' code; the last stage's output is averaged over all positions (so the
    paper's last pool, which an average follows, is left out). S4D Table 11: 26.2M parameters for 35 classes.

    Example:
        >>> import torch
        >>> model = ConvNet(ConvNetConfig(d_input=1, d_output=35, d_model=4, n_blocks=1))
        >>> model(torch.randn(2, 1000, 1)).shape
        torch.Size([2, 35])
    """

    name = "convnet"
    config_class = ConvNetConfig

    def _build(self, config: ConvNetConfig, where: dict[str, Any]) -> None:
        width = config.d_model
        self.encoder = convolution(config.d_input, width, KERNEL, bias=True, **where)
        stages: list[nn.Module] = []
        for stage in range(STAGES):
            if stage:
                stages += [nn.AvgPool1d(POOL), convolution(width, 2 * width, 1, bias=True, **where)]
                width *= 2
            stages += [ConvBlock(width, dropout=config.dropout, **where) for _ in range(config.n_blocks)]
        self.stages = nn.Sequential(*stages)
        self.norm = channel_norm(width, **where)
        self.head = nn.Linear(width, config.d_output, **where)

    def scores(self, x: Tensor) -> Tensor:
        """The class scores (B, K) of x (B, C, L)."""
        x = nn.functional.pad(x, (0, padded(x.shape[-1]) - x.shape[-1]))
        return self.head(self.norm(self.stages(self.encoder(x))).mean(-1))


class ConvBlock(nn.Module):
    """A norm, a convolution and GELU, with a residual around them.

    Example:
        >>> import torch
        >>> ConvBlock(8, dropout=0.0)(torch.zeros(2, 8, 100)).shape
        torch.Size([2, 8, 100])
    """

    def __init__(self, width: int, *, dropout: float, **where: Any) -> None:
        super().__init__()
        self.norm = channel_norm(width, **where)
        self.convolution = convolution(width, width, KERNEL, bias=True, **where)
        self.dropout = nn.Dropout1d(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, width, L) to the same shape."""
        return x + self.dropout(nn.functional.gelu(self.convolution(self.norm(x))))


def padded(length: int) -> int:
    """The next power of 2 that all pools divide.

    Example:
        >>> padded(16000), padded(8000), padded(1)
        (16384, 8192, 64)
    """
    return max(POOL ** (STAGES - 1), 1 << (length - 1).bit_length())
