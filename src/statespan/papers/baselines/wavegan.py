"""The discriminator of WaveGAN (Donahue et al., ICLR 2019) as a classifier of raw speech; S4 Table 5.

Shapes: B batch, L length, C channels, K = d_output classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from statespan.papers.baselines.cnn import Cnn, CnnConfig, channel_norm, convolution, kaiming

KERNEL, STRIDE, STAGES, SLOPE = 25, 4, 5, 0.2


@dataclass(frozen=True, kw_only=True)
class WaveGanConfig(CnnConfig):
    """The fields of :class:`CnnConfig`, and these. Dropout is that of each convolution's channels.

    Args:
        length: Length of every sequence, in training and after it.
        n_residual: Residual convolutions of a stage, before its downsampling.

    Example:
        >>> WaveGanConfig(d_input=1, d_output=10, length=8000).n_residual
        1
    """

    length: int = 16000
    n_residual: int = 1

    def least_weights(self) -> int:
        """Of the last stage's residual convolutions and the output map."""
        wide = self.d_model << (STAGES - 1)
        return self.n_residual * KERNEL * (wide // 2) ** 2 + wide


class WaveGan(Cnn):
    """WaveGAN-D as improved by the authors of S4 (appendix D.2): downsampling, a fully connected output, BatchNorm.

    Five stages of 64 to 1,024 channels. A stage is a residual convolution and one with stride 4, both of width 25, each
    with batch normalization and a leaky ReLU. The input is padded with zeros to the next power of 2, and the output map
    reads all remaining positions: sequences of another length, and so another sampling rate, are rejected, as the
    paper's table says. 26.3M parameters.

    Example:
        >>> import torch
        >>> model = WaveGan(WaveGanConfig(d_input=1, d_output=10, d_model=4, length=1000))
        >>> model(torch.randn(2, 1000, 1)).shape
        torch.Size([2, 10])
        >>> model(torch.randn(2, 500, 1))
        Traceback (most recent call last):
        ...
        ValueError: x must have 1000 positions, those of training, as the output map reads all of them, got 500
    """

    name = "wavegan"
    config_class = WaveGanConfig
    config: WaveGanConfig

    def _build(self, config: WaveGanConfig, where: dict[str, Any]) -> None:
        stages: list[nn.Module] = []
        width = config.d_input
        for stage in range(STAGES):
            stages += [LeakyBlock(width, dropout=config.dropout, **where) for _ in range(config.n_residual)]
            wide = config.d_model << stage
            stages += [
                convolution(width, wide, KERNEL, stride=STRIDE, bias=True, **where), channel_norm(wide, **where),
                nn.LeakyReLU(SLOPE), nn.Dropout1d(config.dropout),
            ]  # fmt: skip
            width = wide
        self.stages = nn.Sequential(*stages)
        self.padded = 1 << (config.length - 1).bit_length()
        self.head = nn.Linear(width * -(-self.padded // STRIDE**STAGES), config.d_output, **where)
        self.initialise()

    def initialise(self) -> None:
        """Kaiming's initialization."""
        kaiming(self)

    def scores(self, x: Tensor) -> Tensor:
        """The class scores (B, K) of x (B, C, L)."""
        length, got = self.config.length, x.shape[-1]
        if got != length:
            raise ValueError(
                f"x must have {length} positions, those of training, as the output map reads all of them, got {got}"
            )
        return self.head(self.stages(nn.functional.pad(x, (0, self.padded - length))).flatten(1))


class LeakyBlock(nn.Module):
    """A convolution and a leaky ReLU with a residual around them, then a norm.

    Example:
        >>> import torch
        >>> LeakyBlock(8, dropout=0.0)(torch.zeros(2, 8, 100)).shape
        torch.Size([2, 8, 100])
    """

    def __init__(self, width: int, *, dropout: float, **where: Any) -> None:
        super().__init__()
        self.convolution = convolution(width, width, KERNEL, bias=True, **where)
        self.dropout = nn.Dropout1d(dropout)
        self.norm = channel_norm(width, **where)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, width, L) to the same shape."""
        return self.norm(x + self.dropout(nn.functional.leaky_relu(self.convolution(x), SLOPE)))
