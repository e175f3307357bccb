"""The masked language model, whose encoder and backbone a classifier can start from (``train.start``).

Shapes: B batch, L length, D = d_model features, V tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from statespan.models.config import BackboneConfig, make_backbone
from statespan.models.encoder import Encoder
from statespan.models.tokens import TokenModel


@dataclass(frozen=True, kw_only=True)
class MaskedConfig(BackboneConfig):
    """The fields of :class:`BackboneConfig`, and these.

    Args:
        vocabulary: Number of tokens V, one of which is the mask.
        bidirectional: Let the layers look both ways; then there is no ``prefill`` and no ``step``.
    """

    vocabulary: int
    bidirectional: bool = False


class MaskedModel(TokenModel):
    """Log-probabilities of the token at each position: the encoder and backbone of a classifier, and a linear map.

    Its weights have the names of :class:`Classifier`'s, so that one can start from the other's.

    Example:
        >>> import torch
        >>> config = MaskedConfig(vocabulary=30, d_model=16, n_layers=2, layer="s4d", bidirectional=True)
        >>> model = MaskedModel(config)
        >>> x = torch.randint(30, (2, 50))
        >>> model(x).shape, model.token_losses(x, x).shape
        (torch.Size([2, 50, 30]), torch.Size([2, 50]))
    """

    name = "masked"
    tasks = ("masked",)
    config_class = MaskedConfig

    def _build(self, config: MaskedConfig, where: dict[str, Any]) -> None:
        self.encoder = Encoder(config.d_model, d_input=None, vocabulary=config.vocabulary, **where)
        self.backbone = make_backbone(config, bidirectional=config.bidirectional, **where)
        self.tell = nn.Linear(config.d_model, config.vocabulary, **where)

    def encode(self, x: Tensor) -> Tensor:
        """The features (B, L, D) of tokens x (B, L)."""
        return self.encoder(x)

    def decode(self, features: Tensor) -> Tensor:
        """The log-probabilities (B, L, V) of features (B, L, D)."""
        return self.tell(features).log_softmax(-1)

    def losses(self, features: Tensor, y: Tensor) -> Tensor:
        """``−log p`` (B, L) of the tokens y (B, L)."""
        scores = self.tell(features).flatten(0, 1)
        return nn.functional.cross_entropy(scores, y.flatten(), reduction="none").view(y.shape)
