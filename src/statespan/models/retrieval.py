"""A model that compares two documents."""

from __future__ import annotations

from statespan.models.classifier import Pooled
from statespan.nn import PairHead


class Retrieval(Pooled):
    """Class scores of pairs of documents, both read by the same layers.

    A batch (2B, …) holds the first documents of all pairs, then the second ones; the scores are (B, K).

    Example:
        >>> import torch
        >>> from statespan.models import ClassifierConfig
        >>> model = Retrieval(ClassifierConfig(vocabulary=98, d_output=2, d_model=16, n_layers=2))
        >>> model(torch.randint(98, (2 * 3, 50)), lengths=[50, 3, 20, 50, 50, 7]).shape
        torch.Size([3, 2])
    """

    name = "retrieval"
    tasks = ("retrieval",)
    head_class = PairHead
