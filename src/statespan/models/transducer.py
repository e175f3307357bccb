"""Models with an output at every sample of a sequence.

Shapes: B batch, L length, D = d_model features, K = d_output values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from statespan.models.base import Model
from statespan.models.config import BackboneConfig, make_backbone
from statespan.models.encoder import Encoder
from statespan.nn.padding import Lengths, fill
from statespan.nn.sequence import StepFunction


@dataclass(frozen=True, kw_only=True)
class TransducerConfig(BackboneConfig):
    """The fields of :class:`BackboneConfig`, and these.

    Args:
        d_input: Features of a sample.
        d_output: Values K at each sample.
        bidirectional: Let the layers look both ways; then there is no ``prefill`` and no ``step``.

    Example:
        >>> import torch
        >>> config = TransducerConfig(d_input=1, d_output=2, d_model=8, d_state=4, n_layers=1)
        >>> Transducer(config)(torch.zeros(2, 50, 1)).shape
        torch.Size([2, 50, 2])
    """

    d_input: int
    d_output: int
    bidirectional: bool = False


class Transducer(Model):
    """An output at every sample: residual SSM layers between two linear maps, or layers alone.

    Example:
        >>> import torch
        >>> model = Transducer(TransducerConfig(d_input=3, d_output=2, d_model=16, n_layers=2, layer="s4d"))
        >>> model(torch.randn(2, 100, 3)).shape
        torch.Size([2, 100, 2])
        >>> y, state = model.step(torch.randn(2, 3), model.initial_state(2))
        >>> y.shape
        torch.Size([2, 2])
    """

    name = "transducer"
    tasks = ()
    config_class = TransducerConfig

    def _build(self, config: TransducerConfig, where: dict[str, Any]) -> None:
        D = config.d_model
        self.encoder = Encoder(D, d_input=config.d_input, vocabulary=None, **where)
        self.backbone = make_backbone(config, bidirectional=config.bidirectional, **where)
        self.linear = nn.Linear(D, config.d_output, **where)

    def forward(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """The outputs at every sample.

        Args:
            x: Samples (B, L, d_input).
            lengths: True length of each sequence (B,), whole numbers 0 … L; padding is ignored; its outputs are 0.
            dt_scale: Step of the data relative to that of training.

        Returns:
            Outputs (B, L, K).
        """
        x, padding = self.encoder.read(x, lengths)
        y = self.backbone(self.encoder(x), lengths=padding, dt_scale=dt_scale)
        return fill(self.linear(y), padding)

    def prefill(
        self, x: Tensor, state: Any = None, *, lengths: Lengths = None, dt_scale: float = 1.0
    ) -> tuple[Tensor, Any]:
        """The same map from a state to a state; see :class:`SequenceModule`."""
        x, padding = self.encoder.read(x, lengths)
        y, after = self.backbone.prefill(self.encoder(x), state, lengths=padding, dt_scale=dt_scale)
        return fill(self.linear(y), padding), after

    def stepper(self, dt_scale: float = 1.0, *, in_place: bool = False) -> StepFunction:
        """A function from a sample (B, d_input) and a state to outputs (B, K) and the new state."""
        backbone = self.backbone.stepper(dt_scale, in_place=in_place)

        def step(x: Tensor, state: Any) -> tuple[Tensor, Any]:
            y, after = backbone(self.encoder(self.encoder.check(x, "batch")), state)
            return self.linear(y), after

        return step
