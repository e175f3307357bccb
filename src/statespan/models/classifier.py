"""Models with one output per sequence, or per pair of sequences.

Shapes: B batch, L length, K = d_output classes or values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from statespan.models.base import Model
from statespan.models.config import BackboneConfig, make_backbone
from statespan.models.encoder import Encoder, check_inputs
from statespan.nn import PairHead, SequenceHead
from statespan.nn.heads import Head
from statespan.nn.padding import Lengths
from statespan.nn.pool import PoolMode
from statespan.nn.sequence import StepFunction


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig(BackboneConfig):
    """The fields of :class:`BackboneConfig`, and these.

    Args:
        d_input: Features of a sample; None for tokens.
        vocabulary: Number of tokens; None for samples.
        d_output: Number of classes or values K.
        bidirectional: Let the layers look both ways; then there is no ``prefill`` and no ``step``.
        pool: How positions become one answer: "mean", "last" or "first".

    Example:
        >>> config = ClassifierConfig(d_input=1, d_output=10, d_model=8, d_state=4, n_layers=2)
        >>> Classifier(config)(torch.zeros(2, 50, 1)).shape
        torch.Size([2, 10])
    """

    d_input: int | None = None
    vocabulary: int | None = None
    d_output: int
    bidirectional: bool = False
    pool: PoolMode = "mean"

    def __post_init__(self) -> None:
        """Reject invalid combinations of fields."""
        super().__post_init__()
        check_inputs(self.d_input, self.vocabulary)


class Pooled(Model):
    """An encoder, a backbone and a pooling head. Its state is that of the backbone and that of the head.

    Example:
        >>> config = ClassifierConfig(d_input=1, d_output=10, d_model=8, d_state=4, n_layers=1)
        >>> model = Classifier(config)
        >>> y, state = model.prefill(torch.zeros(2, 50, 1))  # scores after 50 samples
        >>> isinstance(model, Pooled), y.shape
        (True, torch.Size([2, 10]))
    """

    config_class = ClassifierConfig
    head_class: ClassVar[type[Head]]
    head: Head

    def _build(self, config: ClassifierConfig, where: dict[str, Any]) -> None:
        self.encoder = Encoder(config.d_model, d_input=config.d_input, vocabulary=config.vocabulary, **where)
        self.backbone = make_backbone(config, bidirectional=config.bidirectional, **where)
        self.head = self.head_class(config.d_model, config.d_output, config.pool, **where)

    def forward(self, x: Tensor, *, lengths: Lengths = None, dt_scale: float = 1.0) -> Tensor:
        """The outputs (B, K) for whole sequences.

        Args:
            x: Samples (B, L, d_input) or tokens (B, L).
            lengths: True length of each sequence (B,), whole numbers 0 … L; padding is ignored.
            dt_scale: Step of the data relative to that of training: 2.0 if it was sampled half as often.

        Returns:
            Class scores or values (B, K); for pairs, of the B/2 pairs.
        """
        x, padding = self.encoder.read(x, lengths)
        return self.head(self.backbone(self.encoder(x), lengths=padding, dt_scale=dt_scale), lengths=padding)

    def prefill(
        self, x: Tensor, state: Any = None, *, lengths: Lengths = None, dt_scale: float = 1.0
    ) -> tuple[Tensor, tuple[Any, Any]]:
        """The outputs (B, K) after everything seen so far, from a state to a state; see :class:`SequenceModule`."""
        x, padding = self.encoder.read(x, lengths)
        features, pooled = (None, None) if state is None else state
        y, features = self.backbone.prefill(self.encoder(x), features, lengths=padding, dt_scale=dt_scale)
        y, pooled = self.head.prefill(y, pooled, lengths=padding)
        return y, (features, pooled)

    def stepper(self, dt_scale: float = 1.0, *, in_place: bool = False) -> StepFunction:
        """A function from a sample (B, d_input) or token (B,) and a state to the outputs so far and the new state.

        ``in_place`` is for the states of the SSMs; that of the pool is small.
        """
        backbone, head = self.backbone.stepper(dt_scale, in_place=in_place), self.head.stepper()

        def step(x: Tensor, state: Any) -> tuple[Tensor, tuple[Any, Any]]:
            y, features = backbone(self.encoder(self.encoder.check(x, "batch")), state[0])
            y, pooled = head(y, state[1])
            return y, (features, pooled)

        return step

    def initial_state(self, batch: int, *, dtype: torch.dtype | None = torch.float64) -> tuple[Any, Any]:
        """The states of the backbone and of the head before the first sample; see :meth:`Model.initial_state`."""
        return self.backbone.initial_state(batch, dtype=dtype), self.head.initial_state(batch, dtype=dtype)


class Classifier(Pooled):
    """Class scores of sequences: residual SSM layers, a pool over the sequence, a linear map.

    Example:
        >>> model = Classifier(ClassifierConfig(d_input=1, d_output=10, d_model=16, n_layers=2, layer="s4d"))
        >>> model(torch.randn(2, 100, 1)).shape
        torch.Size([2, 10])
        >>> scores, state = model.step(torch.randn(2, 1), model.initial_state(2))
        >>> scores.shape
        torch.Size([2, 10])
    """

    name = "classifier"
    tasks = ("classification",)
    head_class = SequenceHead


class Regressor(Pooled):
    """Real values of sequences: the model of :class:`Classifier` with real-valued outputs.

    Example:
        >>> model = Regressor(ClassifierConfig(d_input=2, d_output=1, d_model=16, n_layers=2, pool="last"))
        >>> model(torch.randn(3, 100, 2), lengths=[100, 70, 5]).shape
        torch.Size([3, 1])
    """

    name = "regressor"
    tasks = ("regression",)
    head_class = SequenceHead


class Retrieval(Pooled):
    """Class scores of pairs of documents, both read by the same layers.

    A batch (2B, …) holds the first documents of all pairs, then the second ones; the scores are (B, K).

    Example:
        >>> model = Retrieval(ClassifierConfig(vocabulary=98, d_output=2, d_model=16, n_layers=2))
        >>> model(torch.randint(98, (2 * 3, 50)), lengths=[50, 3, 20, 50, 50, 7]).shape
        torch.Size([3, 2])
    """

    name = "retrieval"
    tasks = ("retrieval",)
    head_class = PairHead
