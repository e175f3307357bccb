"""Registered metrics beside those of a task, computed in one pass of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from statespan.data.base import Batch
from statespan.train.parts import METRICS, Metric
from statespan.train.strict import ConfigError
from statespan.train.tasks import Task


@dataclass(frozen=True)
class MeasuredTask(Task):
    """A task with more metrics; the loss and the metric that selects the weights are those of ``base``.

    Example:
        >>> from statespan.train.tasks import TASKS
        >>> class Wrong(Metric):
        ...     tasks = ("classification",)
        ...     def add(self, answer, y):
        ...         return (answer.argmax(-1) != y).sum()[None]
        ...     def value(self, sums):
        ...         return sums[0]
        >>> base = TASKS["classification"]
        >>> fields = base.name, base.metric, base.larger_is_better, (*base.sums, *_keys("wrong", 1))
        >>> task = MeasuredTask(*fields, base=base, extra=(("wrong", Wrong(), 1),))
        >>> task.columns()
        ('loss', 'accuracy', 'wrong')
    """

    base: Task
    extra: tuple[tuple[str, Metric, int], ...]  # name, metric, number of its sums

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss of the task."""
        return self.base.loss(model, batch)

    def add(self, model: nn.Module, batch: Batch, dt_scale: float) -> Tensor:
        """The sums of the task, then those of each metric."""
        recorder = _Recorder(model)
        sums = self.base.add(recorder, batch, dt_scale)  # type: ignore[arg-type]
        parts = [sums]
        for name, metric, size in self.extra:
            part = metric.add(recorder.answer.detach().float(), batch.y)
            if tuple(part.shape) != (size,):
                raise ConfigError(f"the metric {name} must return {size} sums, got shape {tuple(part.shape)}")
            parts.append(part.to(sums.dtype))
        return torch.cat(parts)

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """The metrics of the task, then the others."""
        values = self.base.metrics(sums)
        for name, metric, size in self.extra:
            values[name] = float(metric.value([sums[key] for key in _keys(name, size)]))
        return values

    def columns(self) -> tuple[str, ...]:
        """The names of all metrics."""
        return (*self.base.columns(), *(name for name, _, _ in self.extra))


class _Recorder:
    """A model that remembers its last output."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, *inputs: Any, **options: Any) -> Tensor:
        self.answer: Tensor = self.model(*inputs, **options)
        return self.answer


def with_metrics(task: Task, names: Sequence[str], d_output: int) -> Task:
    """The task with registered metrics, for data with ``d_output`` classes or values."""
    if not names:
        return task
    extra = []
    for name in names:
        metric = METRICS.find(name, "train.metrics")
        if task.name not in metric.tasks:
            raise ValueError(f"the metric {name!r} is for {' and '.join(metric.tasks)}, got data for {task.name}")
        extra.append((name, metric, metric.size(d_output)))
    sums = (*task.sums, *(key for name, _, size in extra for key in _keys(name, size)))
    return MeasuredTask(task.name, task.metric, task.larger_is_better, sums, task, tuple(extra))


def _keys(name: str, size: int) -> list[str]:
    return [f"{name}/{number}" for number in range(size)]
