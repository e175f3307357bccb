"""Models with an output at every sample of a sequence.

Shapes: B batch, L length, D = d_model features, K = d_output values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from statespan.models.base import Model
from statespan.models.config import BackboneConfig, make_backbone, make_layers
from statespan.models.encoder import Encoder
from statespan.nn import SequenceLayer
from statespan.nn.backbone import Call, Composite
from statespan.nn.padding import Lengths, Padding, fill
from statespan.nn.sequence import StepFunction


@dataclass(frozen=True, kw_only=True)
class TransducerConfig(BackboneConfig):
    """The fields of :class:`BackboneConfig`, and these.

    Args:
        d_input: Features of a sample.
        d_output: Values K at each sample.
        bidirectional: Let the layers look both ways; then there is no ``prefill`` and no ``step``.
        residual: False for the layers alone, one after the other, without residuals and norms.

    Example:
        >>> import torch
        >>> config = TransducerConfig(d_input=1, d_output=2, d_model=8, d_state=4, n_layers=1)
        >>> Transducer(config)(torch.zeros(2, 50, 1)).shape
        torch.Size([2, 50, 2])
    """

    d_input: int
    d_output: int
    bidirectional: bool = False
    residual: bool = True

    def __post_init__(self) -> None:
        """Reject invalid combinations of fields."""
        super().__post_init__()
        if not self.residual and self.norm != "none":
            raise ValueError(f"norm must be 'none' with residual=False, got {self.norm!r}")


class Chain(Composite):
    """Layers one after the other, without residuals.

    Args:
        layers: Layers of one d_model.

    Example:
        >>> import torch
        >>> from statespan.nn import S4D
        >>> Chain([S4D(4), S4D(4)])(torch.zeros(2, 50, 4)).shape
        torch.Size([2, 50, 4])
    """

    def __init__(self, layers: Iterable[SequenceLayer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.d_model = self.d_output = int(self.layers[0].d_model)  # type: ignore[arg-type]

    def parts(self) -> Sequence[Any]:
        """The layers."""
        return list(self.layers)

    def flow(self, x: Tensor, call: Call, padding: Padding | None) -> Tensor:
        """The layers in order."""
        for layer in self.layers:
            x = call(layer, x)
        return fill(x, padding)


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
        if config.residual:
            self.backbone: Composite = make_backbone(config, bidirectional=config.bidirectional, **where)
        else:
            self.backbone = Chain(make_layers(config, D, bidirectional=config.bidirectional, **where))
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
