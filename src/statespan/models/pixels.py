"""The density model of images as sequences (S4 paper, appendix D.3.1).

Shapes: B batch, L length, D = d_model features, K = d_output values of a pixel's channel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from statespan._check import check_int
from statespan.models.config import BackboneConfig, check_whole, make_layers, residual_options
from statespan.models.encoder import check_tokens, fill_input
from statespan.models.tokens import TokenModel
from statespan.nn import UNet
from statespan.nn.logistic import LogisticMixture
from statespan.nn.padding import Lengths, fill
from statespan.nn.sequences import unviewed


@dataclass(frozen=True, kw_only=True)
class PixelsConfig(BackboneConfig):
    """The fields of :class:`BackboneConfig`, with n_layers counting those of each stack of the U-Net, and these.

    Args:
        vocabulary: Number of tokens a model reads: 769 for three channels of 256 values and a start.
        d_output: Number of values K it predicts: 256.
        mixture: Components of a discretised mixture of logistics; 0 for a softmax over the values.
        pools: Factors of the U-Net's resamplings, finest first.
        expand: Factor on the number of features at each of them.
    """

    vocabulary: int
    d_output: int
    n_layers: int = 8
    feed_forward: int = 2
    pools: tuple[int, ...] = (3, 4, 4)
    expand: int = 1
    mixture: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        super().__post_init__()
        check_int("vocabulary", self.vocabulary, minimum=1)
        check_int("d_output", self.d_output, minimum=1)
        check_int("expand", self.expand, minimum=1)
        check_int("mixture", self.mixture, minimum=0)
        object.__setattr__(self, "pools", check_whole("pools", self.pools, minimum=1, most=16))

    def least_weights(self) -> int:
        """Those of the coarsest level."""
        return super().least_weights() * self.expand ** len(self.pools)


class PixelModel(TokenModel):
    """Scores of the next value of an image read as a sequence: a table of tokens, a U-Net, a linear map.

    The linear map gives one score a value, or the components of a mixture of logistics, of which log-probabilities of
    all values are made.

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

    def __init__(
        self,
        config: PixelsConfig,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(config)
        self.table = nn.Embedding(config.vocabulary, config.d_model, device=device, dtype=dtype)
        self.backbone = UNet(
            config.d_model,
            lambda width: make_layers(config, width, device=device, dtype=dtype),
            pools=config.pools,
            expand=config.expand,
            **residual_options(config, device, dtype),
        )
        self.linear: nn.Module
        if config.mixture:
            self.linear = LogisticMixture(config.d_model, config.d_output, config.mixture, device=device, dtype=dtype)
        else:
            self.linear = nn.Linear(config.d_model, config.d_output, device=device, dtype=dtype)

    def encode(self, x: Tensor) -> Tensor:
        """The features (B, L, D) of tokens x (B, L)."""
        return self.table(x)

    def decode(self, features: Tensor) -> Tensor:
        """The scores (…, K) of features (…, D)."""
        y = self.linear(features)
        return unviewed(y) if isinstance(self.linear, nn.Linear) else y

    def token_losses(self, x: Tensor, y: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """``−log p(y | x so far)`` of every value, in nats.

        Args:
            x: Tokens (B, L).
            y: The value after each of them (B, L).
            lengths: True length of each sequence (B,); the losses of what follows are 0.
            dt_scale: As in ``forward``.

        Returns:
            Losses (B, L), at least float32.
        """
        features, padding = self.features(x, lengths=lengths, dt_scale=dt_scale)
        y = check_tokens("y", fill_input(y, padding), ("batch", "length"), self.config.d_output).long()
        if isinstance(self.linear, LogisticMixture):
            losses = self.linear.losses(features, y)
        else:
            scores = self.linear(features)
            scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
            losses = nn.functional.cross_entropy(scores.mT, y, reduction="none")
        return fill(losses[..., None], padding)[..., 0]
