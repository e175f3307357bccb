"""Language models: of the next token (S4 paper, appendix D.3.2), and of masked tokens.

Shapes: B batch, L length, D = d_model features, V tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn

from statespan._check import UNKNOWN, check_integers, check_texts
from statespan.models.config import COUNT, BackboneConfig, make_backbone
from statespan.models.encoder import Encoder
from statespan.models.tokens import TokenModel
from statespan.nn import AdaptiveTokens
from statespan.nn.adaptive import check_cutoffs
from statespan.nn.dropout import make_dropout
from statespan.nn.initial import Initialised
from statespan.nn.padding import Lengths


@dataclass(frozen=True, kw_only=True)
class LanguageConfig(BackboneConfig):
    """The fields of :class:`BackboneConfig`, with n_layers counting blocks, and these.

    Args:
        vocabulary: Number of tokens V.
        layers_per_block: SSM layers in a block, before its feed-forward layer.
        cutoffs: First token of each cluster but the first, for the adaptive embedding and softmax; none for a plain
            table and a linear map.
        div_val: Factor by which the tables of successive clusters get narrower.
        unit: What the text is made of, so that the model can generate text without its data: "characters" or "bytes";
            empty if unknown.
        tokens: The text of each token, for characters, and U+FFFD for token 0, which stands for all others; none for
            bytes.

    Example:
        >>> import torch
        >>> config = LanguageConfig(vocabulary=100, d_model=8, d_state=4, n_layers=1)
        >>> LanguageModel(config)(torch.zeros(2, 10, dtype=torch.int64)).shape
        torch.Size([2, 10, 100])
    """

    vocabulary: int
    feed_forward: int = field(default=4, metadata=COUNT)
    tie_dropout: bool = False
    layers_per_block: int = 2
    cutoffs: tuple[int, ...] = ()
    div_val: int = 4
    unit: Literal["", "characters", "bytes"] = ""
    tokens: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        """Reject invalid combinations of fields."""
        super().__post_init__()
        if check_integers("cutoffs", self.cutoffs, minimum=1, most=16):
            check_cutoffs(self.cutoffs, self.vocabulary)
        object.__setattr__(self, "cutoffs", tuple(self.cutoffs))
        object.__setattr__(self, "tokens", check_texts("tokens", self.tokens))
        expected = {"": 0, "characters": self.vocabulary, "bytes": 0}[self.unit]
        if len(self.tokens) != expected:
            raise ValueError(f"tokens must be {expected} texts for unit={self.unit!r}, got {len(self.tokens)}")
        if self.unit == "characters" and self.tokens[0] != UNKNOWN:
            raise ValueError(f"tokens must begin with {UNKNOWN!r} for unit='characters', got {self.tokens[0]!r}")
        if self.unit == "bytes" and self.vocabulary != 256:
            raise ValueError(f"vocabulary must be 256 for unit='bytes', got {self.vocabulary}")


class PlainTokens(Initialised):
    """An embedding table and a linear map back to tokens, with the interface of :class:`AdaptiveTokens`.

    Example:
        >>> import torch
        >>> tokens = PlainTokens(100, 8)
        >>> features = tokens(torch.tensor([[1, 5]]))
        >>> tokens.log_probs(features).shape, tokens.losses(features, torch.tensor([[5, 7]])).shape
        (torch.Size([1, 2, 100]), torch.Size([1, 2]))
    """

    def __init__(self, vocabulary: int, d_model: int, **where: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, d_model, **where)
        self.linear = nn.Linear(d_model, vocabulary, **where)

    def forward(self, x: Tensor) -> Tensor:
        """The features (…, D) of tokens x (…)."""
        return self.table(x)

    def log_probs(self, features: Tensor) -> Tensor:
        """The log-probabilities (…, V) of all tokens."""
        return self.linear(features).log_softmax(-1)

    def losses(self, features: Tensor, y: Tensor) -> Tensor:
        """``−log_probs`` of tokens y (…)."""
        scores = self.linear(features)
        return nn.functional.cross_entropy(scores.flatten(0, -2), y.flatten(), reduction="none").view(y.shape)


class LanguageModel(TokenModel):
    """Log-probabilities of the next token: blocks of SSM layers and a feed-forward layer.

    ``forward``, ``prefill`` and ``step`` give log-probabilities over the whole vocabulary; for training,
    ``token_losses`` computes only those of the targets.

    Example:
        >>> import torch
        >>> config = LanguageConfig(vocabulary=1000, cutoffs=(100, 400), d_model=32, n_layers=1)
        >>> model = LanguageModel(config).eval()
        >>> x = torch.randint(1000, (2, 50))
        >>> model.token_losses(x[:, :-1], x[:, 1:]).shape
        torch.Size([2, 49])
        >>> log_probs, state = model.prefill(x, last=True)
        >>> log_probs, state = model.step(log_probs.argmax(-1), state)
        >>> log_probs.shape
        torch.Size([2, 1000])
    """

    name = "language"
    tasks = ("language",)
    config_class = LanguageConfig

    def _build(self, config: LanguageConfig, where: dict[str, Any]) -> None:
        D, V = config.d_model, config.vocabulary
        self.tokens: AdaptiveTokens | PlainTokens
        if config.cutoffs:
            self.tokens = AdaptiveTokens(V, D, cutoffs=config.cutoffs, div_val=config.div_val, **where)
        else:
            self.tokens = PlainTokens(V, D, **where)
        self.dropout = make_dropout(config.dropout, config.tie_dropout)
        self.backbone = make_backbone(config, repeats=config.layers_per_block, **where)

    def encode(self, x: Tensor) -> Tensor:
        """The features (B, L, D) of tokens x (B, L)."""
        return self.dropout(self.tokens(x))

    def decode(self, features: Tensor) -> Tensor:
        """The log-probabilities (B, L, V) of features (B, L, D)."""
        return self.tokens.log_probs(self.dropout(features))

    def losses(self, features: Tensor, y: Tensor) -> Tensor:
        """``−log p`` (B, L) of the tokens y (B, L), without computing the probabilities of all tokens."""
        return self.tokens.losses(self.dropout(features), y)

    def log_probs(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """The log-probabilities (B, V) of the token after each sequence of x (B, L)."""
        return self.prefill(x, lengths=lengths, dt_scale=dt_scale, last=True)[0]


@dataclass(frozen=True, kw_only=True)
class MaskedConfig(BackboneConfig):
    """The fields of :class:`BackboneConfig`, and these.

    Args:
        vocabulary: Number of tokens V, one of which is the mask.
        bidirectional: Let the layers look both ways; then there is no ``prefill`` and no ``step``.

    Example:
        >>> import torch
        >>> config = MaskedConfig(vocabulary=100, bidirectional=True, d_model=8, d_state=4, n_layers=1)
        >>> MaskedModel(config)(torch.zeros(2, 10, dtype=torch.int64)).shape
        torch.Size([2, 10, 100])
    """

    vocabulary: int
    bidirectional: bool = False


class MaskedModel(TokenModel):
    """Log-probabilities of the token at each position: the encoder and backbone of a classifier, and a linear map.

    Its weights have the names of :class:`Classifier`'s, so that one can start from the other's (``train.start``).

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
