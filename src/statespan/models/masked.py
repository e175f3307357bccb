"""A model that tells what is hidden in a text: what a classifier can begin with (``train.start``).

Shapes: B batch, L length, D = d_model features, V tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from statespan._check import check_bool, check_int
from statespan.models.config import BackboneConfig, make_layers, residual_options
from statespan.models.encoder import Encoder, check_tokens, fill_input
from statespan.models.tokens import TokenModel
from statespan.nn import Backbone
from statespan.nn.padding import Lengths, fill


@dataclass(frozen=True, kw_only=True)
class MaskedConfig(BackboneConfig):
    """The fields of :class:`BackboneConfig`, and these.

    Args:
        vocabulary: Number of tokens V, one of which stands for those that are hidden.
        bidirectional: Let the layers look both ways, at the price of ``prefill`` and ``step``.
    """

    vocabulary: int
    bidirectional: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        super().__post_init__()
        check_int("vocabulary", self.vocabulary, minimum=1)
        check_bool("bidirectional", self.bidirectional)


class MaskedModel(TokenModel):
    """Log-probabilities of the token that belongs at each position: the encoder and the backbone of a classifier, and
    a linear map.

    Its weights have the names of :class:`Classifier`'s, so that one can begin with the other's.

    Example:
        >>> config = MaskedConfig(vocabulary=30, d_model=16, n_layers=2, layer="s4d", bidirectional=True)
        >>> model = MaskedModel(config)
        >>> x = torch.randint(30, (2, 50))
        >>> model(x).shape, model.token_losses(x, x).shape
        (torch.Size([2, 50, 30]), torch.Size([2, 50]))
    """  # noqa: D205

    name = "masked"
    tasks = ("masked",)
    config_class = MaskedConfig

    def __init__(
        self,
        config: MaskedConfig,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(config)
        D, V = config.d_model, config.vocabulary
        self.encoder = Encoder(D, d_input=None, vocabulary=V, device=device, dtype=dtype)
        layers = make_layers(config, D, bidirectional=config.bidirectional, device=device, dtype=dtype)
        self.backbone = Backbone(layers, **residual_options(config, device, dtype))
        self.tell = nn.Linear(D, V, device=device, dtype=dtype)

    def encode(self, x: Tensor) -> Tensor:
        """The features (B, L, D) of tokens x (B, L)."""
        return self.encoder(x)

    def decode(self, features: Tensor) -> Tensor:
        """The log-probabilities (B, L, V) of features (B, L, D)."""
        return self.tell(features).log_softmax(-1)

    def token_losses(self, x: Tensor, y: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """``−log p(y | x)`` at every position, in nats.

        Args:
            x: Tokens (B, L), some of them hidden.
            y: The token that belongs at each position (B, L).
            lengths: True length of each sequence (B,); the losses of what follows are 0.
            dt_scale: As in ``forward``.

        Returns:
            Losses (B, L).
        """
        features, padding = self.features(x, lengths=lengths, dt_scale=dt_scale)
        y = check_tokens("y", fill_input(y, padding), ("batch", "length"), self.config.vocabulary).long()
        losses = nn.functional.cross_entropy(self.tell(features).flatten(0, 1), y.flatten(), reduction="none")
        return fill(losses.view(y.shape)[..., None], padding)[..., 0]
