"""Models with an output at every position of a sequence of tokens.

Shapes: B batch, L length, D = d_model features, K outputs at each position.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from statespan.models.base import Model
from statespan.models.encoder import check_tokens
from statespan.nn.padding import Lengths, Padding, fill
from statespan.nn.pool import SequencePool
from statespan.nn.sequence import StepFunction
from statespan.ops.parallel import active


class TokenModel(Model):
    """An encoder of tokens, a causal backbone and a decoder. Its state is that of the backbone.

    Example:
        >>> from statespan.models import LanguageConfig, LanguageModel
        >>> model = LanguageModel(LanguageConfig(vocabulary=100, d_model=8, d_state=4, n_layers=1))
        >>> x = torch.randint(100, (2, 11))
        >>> isinstance(model, TokenModel), model.token_losses(x[:, :-1], x[:, 1:]).shape
        (True, torch.Size([2, 10]))
    """

    @abstractmethod
    def encode(self, x: Tensor) -> Tensor:
        """The features (B, L, D) of tokens x (B, L)."""

    @abstractmethod
    def decode(self, features: Tensor) -> Tensor:
        """The outputs (B, L, K) of features (B, L, D)."""

    @abstractmethod
    def losses(self, features: Tensor, y: Tensor) -> Tensor:
        """``−log p`` (B, L) of targets y (B, L), from features (B, L, D)."""

    def forward(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """The outputs at every position.

        Args:
            x: Tokens (B, L).
            lengths: True length of each sequence (B,), whole numbers 0 … L; padding is ignored; its outputs are 0.
            dt_scale: Step of the data relative to that of training.

        Returns:
            Outputs (B, L, K).
        """
        features, padding = self._features(x, lengths, dt_scale)
        return fill(self.decode(features), padding)

    def token_losses(self, x: Tensor, y: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """``−log p`` of the target at every position, in nats.

        Args:
            x: Tokens (B, L).
            y: The target at each of them (B, L): the token that follows, or that belongs there.
            lengths: True length of each sequence (B,); the losses of padding are 0.
            dt_scale: As in ``forward``.

        Returns:
            Losses (B, L).
        """
        features, padding = self._features(x, lengths, dt_scale)
        y = check_tokens("y", fill(y, padding), ("batch", "length"), self.targets)
        return fill(self.losses(features, y.long()), padding)

    @property
    def targets(self) -> int:
        """Number of values that a target may have."""
        return self.config.vocabulary

    def prefill(
        self,
        x: Tensor,
        state: Any = None,
        *,
        lengths: Lengths = None,
        dt_scale: float = 1.0,
        last: bool = False,
        decode: bool = True,
    ) -> tuple[Tensor, Any]:
        """The same map from a state to a state; see :class:`SequenceModule`.

        Args:
            x: Tokens (B, L).
            state: As returned by ``prefill``, ``step`` or ``initial_state``; None to start.
            lengths: As in ``forward``; the state returned is the one after each sequence's own length.
            dt_scale: As in ``forward``.
            last: Return only the outputs (B, K) at each sequence's last position, which are 0 where it has none.
            decode: Return outputs; False for the features (…, D) they are made of.

        Returns:
            Outputs (B, L, K), and the new state.
        """
        x, padding = self._input(x, lengths)
        features, after = self.backbone.prefill(self.encode(x), state, lengths=padding, dt_scale=dt_scale)
        if not last:
            return fill(self.decode(features) if decode else features, padding), after
        if active() is not None:
            pool = SequencePool(features.shape[-1], "last")
            y, count = pool.advance(features, lengths=padding)
            y = y.to(features.dtype)[:, None]
            return (self.decode(y) if decode else y)[:, 0].masked_fill((count == 0)[:, None], 0.0), after
        batch, length = x.shape
        if length == 0:
            raise ValueError("x must have at least one position where last=True, got length 0")
        ends = torch.full((batch,), length, device=x.device) if padding is None else padding.lengths
        at = (ends - 1).clamp(min=0)[:, None, None]
        y = features.take_along_dim(at, 1)
        y = (self.decode(y) if decode else y)[:, 0]
        return y.masked_fill((ends == 0)[:, None], 0.0), after

    def stepper(self, dt_scale: float = 1.0, *, in_place: bool = False, decode: bool = True) -> StepFunction:
        """A function from a token (B,) and a state to outputs (B, K) and the new state; see :class:`SequenceModule`.

        ``decode=False`` returns the features (B, D) that outputs are made of.
        """
        backbone = self.backbone.stepper(dt_scale, in_place=in_place)

        def step(x: Tensor, state: Any) -> tuple[Tensor, Any]:
            check_tokens("x", x, ("batch",), self.config.vocabulary)
            features, after = backbone(self.encode(x[:, None])[:, 0], state)
            return self.decode(features[:, None])[:, 0] if decode else features, after

        return step

    def _features(self, x: Tensor, lengths: Lengths, dt_scale: float) -> tuple[Tensor, Padding | None]:
        x, padding = self._input(x, lengths)
        return self.backbone(self.encode(x), lengths=padding, dt_scale=dt_scale), padding

    def _input(self, x: Tensor, lengths: Lengths) -> tuple[Tensor, Padding | None]:
        padding = Padding.of(x, lengths)
        return check_tokens("x", fill(x, padding), ("batch", "length"), self.config.vocabulary), padding
