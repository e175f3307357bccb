"""The density model of images as sequences (S4 paper, appendix D.3.1).

Shapes: B batch, L length, D = d_model features, K = d_output values of a pixel's channel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from statespan._check import check_integers
from statespan.models.config import COUNT, BackboneConfig, make_layers, residual_options
from statespan.models.tokens import TokenModel
from statespan.nn import UNet
from statespan.nn.logistic import LogisticMixture
from statespan.ops.fusion import unviewed


@dataclass(frozen=True, kw_only=True)
class PixelsConfig(BackboneConfig):
    """The fields of :class:`BackboneConfig`, with n_layers counting those of each stack of the U-Net, and these.

    Args:
        vocabulary: Number of tokens a model reads: 769 for three channels of 256 values and a start.
        d_output: Number of values K it predicts: 256.
        mixture: Components of a discretised mixture of logistics; 0 for a softmax over the values.
        pools: Factors of the U-Net's resamplings, finest first.
        expand: Factor on the number of features at each of them.

    Example:
        >>> config = PixelsConfig(vocabulary=257, d_output=256, d_model=8, d_state=4, n_layers=1, pools=(2,))
        >>> PixelModel(config)(torch.zeros(2, 16, dtype=torch.int64)).shape
        torch.Size([2, 16, 256])
    """

    vocabulary: int
    d_output: int
    n_layers: int = 8
    feed_forward: int = field(default=2, metadata=COUNT)
    pools: tuple[int, ...] = (3, 4, 4)
    expand: int = 1
    mixture: int = field(default=0, metadata=COUNT)

    def __post_init__(self) -> None:
        """Reject invalid combinations of fields."""
        super().__post_init__()
        if self.positions != "none":
            raise ValueError(f"positions must be 'none' with a U-Net, got {self.positions!r}")
        if not self.residual:
            raise ValueError("residual must be True with a U-Net, got False")
        object.__setattr__(self, "pools", check_integers("pools", self.pools, minimum=1, most=16))

    def least_weights(self) -> int:
        """A lower bound on the number of weights: C of the coarsest level."""
        return super().least_weights() * self.expand ** len(self.pools)


class PixelModel(TokenModel):
    """Scores of the next value of an image read as a sequence: an embedding, a U-Net, a linear map.

    The linear map gives one score a value, or the components of a mixture of logistics, from which the
    log-probabilities of all values are computed.

    Example:
        >>> model = PixelModel(PixelsConfig(vocabulary=769, d_output=256, d_model=8, n_layers=1)).eval()
        >>> scores, state = model.prefill(torch.zeros(2, 1, dtype=torch.int64))
        >>> value = scores[:, -1].argmax(-1)
        >>> scores, state = model.step(value + 1, state)
        >>> scores.shape
        torch.Size([2, 256])
    """

    name = "pixels"
    tasks = ("density", "language")
    config_class = PixelsConfig

    def _build(self, config: PixelsConfig, where: dict[str, Any]) -> None:
        D = config.d_model
        self.table = nn.Embedding(config.vocabulary, D, **where)
        self.backbone = UNet(
            D,
            lambda width: make_layers(config, width, **where),
            pools=config.pools,
            expand=config.expand,
            **residual_options(config),
            **where,
        )
        self.linear: nn.Module
        if config.mixture:
            self.linear = LogisticMixture(D, config.d_output, config.mixture, **where)
        else:
            self.linear = nn.Linear(D, config.d_output, **where)

    @property
    def targets(self) -> int:
        """Number of values K."""
        return self.config.d_output

    def encode(self, x: Tensor) -> Tensor:
        """The features (B, L, D) of tokens x (B, L)."""
        return self.table(x)

    def decode(self, features: Tensor) -> Tensor:
        """The scores (…, K) of features (…, D)."""
        y = self.linear(features)
        return unviewed(y) if isinstance(self.linear, nn.Linear) else y

    def losses(self, features: Tensor, y: Tensor) -> Tensor:
        """``−log p`` (B, L) of the values y (B, L), at least float32."""
        if isinstance(self.linear, LogisticMixture):
            return self.linear.losses(features, y)
        scores = self.linear(features)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        return nn.functional.cross_entropy(scores.mT, y, reduction="none")
