"""Classifiers and regressors on samples at irregular times; see :mod:`statespan.ssm.irregular`."""

from __future__ import annotations

import sys
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from statespan.models.classifier import Pooled
from statespan.nn.irregular import with_gaps
from statespan.nn.layer import SSMLayer
from statespan.nn.padding import Lengths
from statespan.ssm.irregular import scan_gaps, segment_length

if TYPE_CHECKING:
    from statespan.ssm import Diagonal

ACTIVATIONS = 24  # tensors (B, L, D) that training holds for a layer
STATES = 24  # tensors of complex states that the backward pass through a segment holds at once
PROBE = 8  # samples that are timed
LARGE_BYTES, LARGE_SECONDS = 1e9, 60.0  # costs that are announced


def answer_with_gaps(model: Pooled, x: Tensor, gaps: Tensor, *, lengths: Lengths = None) -> Tensor:
    """The outputs of a model for samples at irregular times.

    Args:
        model: A :class:`~statespan.models.Classifier` or :class:`~statespan.models.Regressor` with S4D layers.
        x: (B, L, d_input).
        gaps: (B, L): time from the sample before to this one, in units of the step of training.
        lengths: True length of each sequence (B,).

    Returns:
        (B, d_output).

    Example:
        >>> import torch
        >>> from statespan.models import Classifier, ClassifierConfig
        >>> model = Classifier(ClassifierConfig(d_input=1, d_output=2, d_model=8, n_layers=1, layer="s4d")).eval()
        >>> answer_with_gaps(model, torch.randn(3, 20, 1), torch.rand(3, 20)).shape
        torch.Size([3, 2])
    """
    if not isinstance(model, Pooled):
        raise TypeError(f"model must be a Classifier or a Regressor, got {type(model).__name__}")
    x, padding = model.encoder.read(x, lengths)
    features = with_gaps(model.backbone, model.encoder(x), gaps, lengths=padding)
    return model.head(features, lengths=padding)


class Cost(NamedTuple):
    """The approximate cost of one training update.

    Example:
        >>> from statespan.models import Classifier, ClassifierConfig
        >>> model = Classifier(ClassifierConfig(d_input=1, d_output=2, layer="s4d", d_model=8, d_state=4, n_layers=1))
        >>> short, long = (training_cost(model, batch=4, length=length) for length in (100, 1000))
        >>> isinstance(long, Cost), long.memory > short.memory
        (True, True)
    """

    memory: int
    """Bytes beyond those of the model."""
    seconds: float


def training_cost(model: Pooled, batch: int, length: int) -> Cost:
    """Estimate the cost of an update on ``batch`` series of up to ``length`` samples at irregular times in advance.

    The memory is counted; it grows with the length for what layers keep for gradients, and with its square root for the
    states. The time is extrapolated from a few samples through one layer.

    Example:
        >>> from statespan.models import Classifier, ClassifierConfig
        >>> model = Classifier(ClassifierConfig(d_input=1, d_output=2, d_model=64, n_layers=3, layer="s4d"))
        >>> training_cost(model, 16, 500).memory < 1e9
        True
    """
    layers = [module for module in model.modules() if isinstance(module, SSMLayer)]
    each, memory, working = segment_length(length), 0, 0
    for layer in layers:
        state = 8 * batch * layer.d_model * layer.d_state  # a mode is a complex number for two of them
        kept = -(-length // each) * (2 if layer.bidirectional else 1)
        memory += kept * state + ACTIVATIONS * layer.D.element_size() * batch * length * layer.d_model
        working = max(working, STATES * each * state)
    if not layers:
        return Cost(0, 0.0)
    seconds = min(_seconds(layers[0], batch) for _ in range(2))  # the first may have to load something
    return Cost(memory + working, seconds * len(layers) * length / PROBE)


def announce_cost(model: Pooled, batch: int, length: int, updates: int) -> None:
    """Print the cost of training to standard error, in one line, if it is large."""
    cost = training_cost(model, batch, length)
    total = cost.seconds * updates
    if cost.memory >= LARGE_BYTES or total >= LARGE_SECONDS:
        print(
            f"irregular times: about {cost.memory / 1e9:.1f} GB of memory and {cost.seconds:.2g} s an update, "
            f"{total / 60:.0f} minutes for up to {updates:,} updates; shorter series and fewer epochs take less",
            file=sys.stderr,
        )


def _seconds(layer: SSMLayer, batch: int) -> float:
    """The time of a few samples through a layer's SSM, forward and backward; no state or random numbers change."""
    u = torch.zeros(batch, PROBE, layer.d_model, device=layer.D.device, requires_grad=True)
    before = perf_counter()
    y, _ = scan_gaps(cast("Diagonal", layer.structure()), u, torch.ones_like(u[..., 0]))
    float(torch.autograd.grad(y.sum(), u)[0].sum())  # waits for a GPU
    return (perf_counter() - before) * (2 if layer.bidirectional else 1)
