"""The objective and metrics of each task: a loss for a batch, sums over batches, metrics from the sums.

Sums add up over batches and processes, so a metric is that of all samples, each counted once, however they were cut.

Shapes: B batch, L length, V tokens, K values.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from statespan.data.base import Batch


@dataclass(frozen=True)
class Task(ABC):
    """A task: its name, the metric that selects the best weights, and whether larger is better.

    Example:
        >>> task = TASKS["classification"]
        >>> task.metrics({"loss": 5.0, "correct": 9.0, "count": 10.0}), task.better(0.9, than=0.8)
        ({'loss': 0.5, 'accuracy': 0.9}, True)
    """

    name: str
    metric: str
    larger_is_better: bool
    sums: tuple[str, ...]  # what add() returns, in order

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss of a batch, a scalar."""
        total = self.add(model, batch, 1.0)
        return total[0] / total[-1].clamp(min=1)  # a batch may have nothing that counts

    @abstractmethod
    def add(self, model: nn.Module, batch: Batch, dt_scale: float) -> Tensor:
        """The sums of a batch, (len(sums),); the first is the loss, the last its divisor."""

    @abstractmethod
    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """The metrics, from the sums over all batches."""

    def columns(self) -> tuple[str, ...]:
        """The names of the metrics."""
        return tuple(self.metrics(dict.fromkeys(self.sums, 1.0)))

    def better(self, value: float, than: float | None) -> bool:
        """Whether a value of the metric is an improvement; a non-finite value never is."""
        if not math.isfinite(value):
            return False
        return than is None or (value > than if self.larger_is_better else value < than)


class Classes(Task):
    """Cross-entropy and accuracy, also for pairs of documents.

    Example:
        >>> task = TASKS["classification"]
        >>> batch = Batch(torch.tensor([[2.0, -1.0], [0.5, 1.0]]), torch.tensor([0, 0]))
        >>> sums = task.add(torch.nn.Identity(), batch, 1.0)
        >>> task.metrics(dict(zip(task.sums, sums.tolist())))["accuracy"]
        0.5
    """

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy."""
        return cross_entropy(output(model, batch).float(), batch.y)

    def add(self, model: nn.Module, batch: Batch, dt_scale: float) -> Tensor:
        """(loss, correct, count)."""
        scores = output(model, batch, dt_scale).float()
        loss = cross_entropy(scores, batch.y, reduction="sum")
        correct = (scores.argmax(-1) == batch.y).sum()
        return torch.stack([loss, correct.to(loss.dtype), loss.new_full((), len(batch.y))])

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """Loss and accuracy."""
        return {"loss": sums["loss"] / sums["count"], "accuracy": sums["correct"] / sums["count"]}


@dataclass(frozen=True)
class Values(Task):
    """Mean squared error, its root and the mean absolute error, in the data's own units times ``scale``.

    Example:
        >>> task = Values("regression", "rmse", False, ERRORS, scale=(2.0,))
        >>> batch = Batch(torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [4.0]]))
        >>> sums = task.add(torch.nn.Identity(), batch, 1.0)
        >>> task.metrics(dict(zip(task.sums, sums.tolist())))["mae"]
        2.0
    """

    scale: tuple[float, ...] = (1.0,)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean squared error."""
        return mse_loss(_same_shape(output(model, batch).float(), batch.y), batch.y)

    def add(self, model: nn.Module, batch: Batch, dt_scale: float) -> Tensor:
        """(loss, scaled squared errors, scaled absolute errors, count)."""
        error = _same_shape(output(model, batch, dt_scale).float(), batch.y) - batch.y
        scaled = error.detach() if self.scale == (1.0,) else error.detach() * error.new_tensor(self.scale)
        parts = [error.square().sum(), scaled.square().sum(), scaled.abs().sum(), error.new_full((), error.numel())]
        return torch.stack(parts)

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """Loss; then RMSE, or MSE and MAE of a forecast."""
        square, absolute = sums["square"] / sums["count"], sums["absolute"] / sums["count"]
        loss = {"loss": sums["loss"] / sums["count"]}
        if self.name == "forecast":
            return loss | {"mse": square, "mae": absolute}
        return loss | {"rmse": math.sqrt(square), "mae": absolute}


@dataclass(frozen=True)
class Tokens(Task):
    """Nats per token, reported as perplexity, or in bits per value, character or byte, as :attr:`metric` says.

    Targets below 0 or beyond a length do not count. ``sizes`` are the characters of each token (V,) if some have
    several; the bits are then those of all tokens over the characters of all tokens.

    Example:
        >>> task = TASKS["language"]
        >>> task.metrics({"loss": 0.0, "count": 10.0})
        {'loss': 0.0, 'perplexity': 1.0}
    """

    sizes: tuple[int, ...] = ()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean nats per token."""
        nats, counted = self._nats(model, batch, 1.0)
        return nats.sum() / counted.sum().clamp(min=1)

    def add(self, model: nn.Module, batch: Batch, dt_scale: float) -> Tensor:
        """(loss, count), or (loss, characters, count) if there are sizes."""
        nats, counted = self._nats(model, batch, dt_scale)
        parts = [nats.sum(), counted.sum().to(nats.dtype)]
        if self.sizes:
            sizes = nats.new_tensor(self.sizes)[batch.y.clamp(min=0)]
            parts.insert(1, torch.where(counted, sizes, 0.0).sum())
        return torch.stack(parts)

    def _nats(self, model: nn.Module, batch: Batch, dt_scale: float) -> tuple[Tensor, Tensor]:
        """The loss of each target (B, L), 0 where it does not count, and whether it counts."""
        y = batch.y
        token_losses = getattr(model, "token_losses", None)
        counted = y >= 0
        if batch.lengths is not None:
            counted &= torch.arange(y.shape[1], device=y.device) < batch.lengths[:, None]
        if token_losses is not None:  # (B, L), of a model that never makes all the logits
            nats = token_losses(batch.x, y.clamp(min=0), **extras(batch, dt_scale)).float()
        else:
            logits = output(model, batch, dt_scale).float()  # (B, L, V)
            nats = cross_entropy(logits.mT, y.clamp(min=0), reduction="none")
        return torch.where(counted, nats, 0.0), counted

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """Loss in nats per token, and perplexity or bits."""
        nats = sums["loss"] / sums["count"]
        if self.metric == "perplexity":
            return {"loss": nats, "perplexity": math.exp(nats) if nats < 700 else math.inf}
        return {"loss": nats, self.metric: sums["loss"] / sums.get("characters", sums["count"]) / math.log(2)}


ACCURACY = ("loss", "correct", "count")
ERRORS = ("loss", "square", "absolute", "count")
TASKS: dict[str, Task] = {
    "classification": Classes("classification", "accuracy", True, ACCURACY),
    "retrieval": Classes("retrieval", "accuracy", True, ACCURACY),
    "regression": Values("regression", "rmse", False, ERRORS),
    "forecast": Values("forecast", "mse", False, ERRORS),
    "language": Tokens("language", "perplexity", False, ("loss", "count")),
    "masked": Tokens("masked", "perplexity", False, ("loss", "count")),
    "density": Tokens("density", "bits_per_dim", False, ("loss", "count")),
}


BITS = {"characters": "bits_per_character", "bytes": "bits_per_byte"}


def task_of(dataset: Any) -> Task:
    """The task of a dataset; errors are in original units if the dataset or its info has a ``scale``.

    The metric of a text in characters or bytes is bits per character or byte.
    """
    task = TASKS[dataset.info.task]
    if isinstance(task, Tokens) and (metric := BITS.get(getattr(dataset.info, "unit", ""))):
        sizes = tuple(map(len, dataset.info.tokens))
        if max(sizes, default=1) == 1:
            return replace(task, metric=metric)
        return replace(task, metric=metric, sums=("loss", "characters", "count"), sizes=sizes)
    scale = getattr(dataset, "scale", None) or getattr(dataset.info, "scale", None)
    if scale is None or not isinstance(task, Values):
        return task
    factors = (scale,) if isinstance(scale, (int, float)) else tuple(scale)
    return replace(task, scale=tuple(float(f) for f in factors))


def output(model: nn.Module, batch: Batch, dt_scale: float = 1.0) -> Tensor:
    """The model's output."""
    return model(batch.x, **extras(batch, dt_scale))


def extras(batch: Batch, dt_scale: float) -> dict[str, Any]:
    """The optional arguments; those without effect are omitted, so that any module can be trained."""
    given: dict[str, Any] = {
        "lengths": batch.lengths,
        "marks": batch.marks,
        "gaps": batch.gaps,
        "dt_scale": None if dt_scale == 1.0 else dt_scale,
    }
    return {name: value for name, value in given.items() if value is not None}


def _same_shape(values: Tensor, y: Tensor) -> Tensor:
    if values.shape != y.shape:  # torch would broadcast them, and train something else
        raise ValueError(f"the model must return shape {tuple(y.shape)}, got {tuple(values.shape)}")
    return values


class Objective(nn.Module):
    """A model and its task as one module, so that wrappers (DDP, FSDP) see the loss as its output.

    Example:
        >>> objective = Objective(torch.nn.Linear(3, 2), TASKS["classification"])
        >>> objective(torch.zeros(4, 3), torch.tensor([0, 1, 1, 0])).shape  # the loss
        torch.Size([])
        >>> objective.eval()(torch.zeros(4, 3), torch.tensor([0, 1, 1, 0])).shape  # loss, correct, count
        torch.Size([3])
    """

    def __init__(self, model: nn.Module, task: Task) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, *parts: Any, dt_scale: float = 1.0) -> Tensor:
        """The loss of a batch, given as its parts, in training mode; its sums in evaluation mode."""
        batch = Batch(*parts)
        return self.task.loss(self.model, batch) if self.training else self.task.add(self.model, batch, dt_scale)
