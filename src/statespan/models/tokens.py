"""Models that give one answer at every position of a sequence of tokens.

Shapes: B batch, L length, D = d_model features, K outputs at each position.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from statespan.models.base import Model
from statespan.models.encoder import check_tokens, fill_input
from statespan.nn.padding import Lengths, Padding, fill


class TokenModel(Model):
    """Tokens to features, a causal backbone, features to outputs. Its state is that of the backbone."""

    @abstractmethod
    def encode(self, x: Tensor) -> Tensor:
        """The features (B, L, D) of tokens x (B, L)."""

    @abstractmethod
    def decode(self, features: Tensor) -> Tensor:
        """The outputs (B, L, K) of features (B, L, D)."""

    def forward(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """The outputs at every position.

        Args:
            x: Tokens (B, L).
            lengths: True length of each sequence (B,), whole numbers 0 … L; what follows is ignored and comes out as 0.
            dt_scale: Step of the data relative to that of training.

        Returns:
            Outputs (B, L, K).
        """
        features, padding = self.features(x, lengths=lengths, dt_scale=dt_scale)
        return fill(self.decode(features), padding)

    def features(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> tuple[Tensor, Padding | None]:
        """What the outputs are made of (B, L, D), and the padding."""
        x, padding = self._input(x, lengths)
        return self.backbone(self.encode(x), lengths=padding, dt_scale=dt_scale), padding

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
        """The same map from a state and to a state.

        Args:
            x: Tokens (B, L).
            state: As returned by ``prefill``, ``step`` or ``initial_state``; None to start.
            lengths: As in ``forward``; the state returned is the one after each sequence's own length.
            dt_scale: As in ``forward``.
            last: Give only the outputs (B, K) at each sequence's last position, which are 0 where it has none.
            decode: Give outputs; False for the features (…, D) they are made of.

        Returns:
            Outputs (B, L, K), and the new state.
        """
        x, padding = self._input(x, lengths)
        features, after = self.backbone.prefill(self.encode(x), state, lengths=padding, dt_scale=dt_scale)
        if not last:
            return fill(self.decode(features) if decode else features, padding), after
        batch, length = x.shape
        if length == 0:
            raise ValueError("x must have at least one position where last=True, got length 0")
        ends = torch.full((batch,), length, device=x.device) if padding is None else padding.lengths
        at = (ends - 1).clamp(min=0)[:, None, None]
        y = features.take_along_dim(at, 1)
        y = (self.decode(y) if decode else y)[:, 0]
        return y.masked_fill((ends == 0)[:, None], 0.0), after

    def step(self, x: Tensor, state: Any, *, dt_scale: float = 1.0) -> tuple[Tensor, Any]:
        """One more token. For many steps in a row, use :meth:`stepper`.

        Args:
            x: A token (B,) of each sequence.
            state: It is not changed.
            dt_scale: As in ``forward``.

        Returns:
            Outputs (B, K), and the new state.
        """
        return self.stepper(dt_scale)(x, state)

    def stepper(
        self, dt_scale: float = 1.0, *, in_place: bool = False, decode: bool = True
    ) -> Callable[[Tensor, Any], tuple[Tensor, Any]]:
        """``step`` as a function with the set-up done once, for many steps with the same parameters.

        Args:
            dt_scale: As in ``forward``.
            in_place: Write new states over the old ones.
            decode: Give outputs (B, K); False for the features (B, D) they are made of.
        """
        backbone = self.backbone.stepper(dt_scale, in_place=in_place)

        def step(x: Tensor, state: Any) -> tuple[Tensor, Any]:
            check_tokens("x", x, ("batch",), self.config.vocabulary)
            features, after = backbone(self.encode(x[:, None])[:, 0], state)
            return self.decode(features[:, None])[:, 0] if decode else features, after

        return step

    def _input(self, x: Tensor, lengths: Lengths) -> tuple[Tensor, Padding | None]:
        padding = Padding.of(x, lengths)
        return check_tokens("x", fill_input(x, padding), ("batch", "length"), self.config.vocabulary), padding
