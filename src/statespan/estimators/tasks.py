"""What the estimators optimize besides squared errors: cross-entropy with class weights, and quantiles.

Shapes: B batch, K columns, T horizon, Q quantiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from statespan.data.base import Batch
from statespan.train.tasks import ACCURACY, ERRORS, Classes, Task, output


@dataclass(frozen=True)
class WeightedClasses(Classes):
    """Cross-entropy in which each class has a weight; judged by the loss, then by accuracy.

    Example:
        >>> task = WeightedClasses("classification", "loss", False, ("loss", "correct", "count"), weights=(1.0, 3.0))
        >>> batch = Batch(torch.tensor([[2.0, -1.0], [2.0, -1.0]]), torch.tensor([0, 1]))
        >>> task.add(nn.Identity(), batch, 1.0)[1:]  # the weights of the correct ones, and of all
        tensor([1., 4.])
    """

    weights: tuple[float, ...] = ()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy of a batch."""
        scores = output(model, batch).float()
        weight = scores.new_tensor(self.weights) if self.weights else None
        return cross_entropy(scores, batch.y, weight=weight)

    def add(self, model: nn.Module, batch: Batch, dt_scale: float) -> Tensor:
        """(loss, correct, count), each sample with the weight of its class."""
        scores = output(model, batch, dt_scale).float()
        weight = scores.new_tensor(self.weights)[batch.y] if self.weights else torch.ones_like(scores[:, 0])
        loss = (cross_entropy(scores, batch.y, reduction="none") * weight).sum()
        correct = ((scores.argmax(-1) == batch.y) * weight).sum()
        return torch.stack([loss, correct, weight.sum()])


def classes(weights: tuple[float, ...] = ()) -> WeightedClasses:
    """The task of a classifier; the best network weights have the least loss on the held-out part."""
    return WeightedClasses("classification", "loss", False, ACCURACY, weights)


@dataclass(frozen=True)
class Forecasts(Task):
    """Squared errors of the mean and pinball losses of quantiles; NaN targets do not count.

    Example:
        >>> task = Forecasts("forecast", "mse", False, ("loss", "square", "absolute", "count"))
        >>> batch = Batch(torch.tensor([[[1.0], [2.0]]]), torch.tensor([[[1.0], [torch.nan]]]))
        >>> task.add(nn.Identity(), batch, 1.0)[-1]  # a missing target does not count
        tensor(1.)
    """

    quantiles: tuple[float, ...] = ()

    def add(self, model: nn.Module, batch: Batch, dt_scale: float) -> Tensor:
        """(loss, squared errors, absolute errors, count)."""
        forecast = output(model, batch, dt_scale).float()  # (B, T, K, 1 + Q)
        known = ~torch.isnan(batch.y)
        error = torch.where(known, batch.y, 0.0) - torch.where(known, forecast[..., 0], 0.0)
        square, count = error.square().sum(), known.sum().to(error.dtype)
        loss = square
        for number, quantile in enumerate(self.quantiles, 1):
            over = torch.where(known, batch.y, 0.0) - torch.where(known, forecast[..., number], 0.0)
            loss = loss + torch.maximum(quantile * over, (quantile - 1.0) * over).sum() / len(self.quantiles)
        return torch.stack([loss, square.detach(), error.detach().abs().sum(), count.clamp(min=1.0)])

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """Loss, and the errors of the mean."""
        return {
            name: sums[key] / sums["count"] for name, key in (("loss", "loss"), ("mse", "square"), ("mae", "absolute"))
        }


def forecasts(quantiles: tuple[float, ...] = ()) -> Forecasts:
    """The task of a forecaster."""
    return Forecasts("forecast", "mse", False, ERRORS, quantiles)
