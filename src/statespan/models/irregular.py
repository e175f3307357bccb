"""Classifiers and regressors on samples at irregular times; see :mod:`statespan.ssm.irregular`."""

from __future__ import annotations

from torch import Tensor

from statespan.models.classifier import Pooled
from statespan.nn.irregular import with_gaps
from statespan.nn.padding import Lengths


def answer_with_gaps(model: Pooled, x: Tensor, gaps: Tensor, *, lengths: Lengths = None) -> Tensor:
    """The answers of a model for samples at irregular times.

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
    x, padding = model._input(x, lengths)
    features = with_gaps(model.backbone, model.encoder(x), gaps, lengths=padding)
    return model.head(features, lengths=padding)
