"""Registered optimizers, schedules and metrics, which the section ``train`` of a recipe can name.

Shapes: B batch, K sums of a metric.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from statespan._registry import Registry, check_function

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer
MakeOptimizer: TypeAlias = "Callable[..., Optimizer]"
Schedule: TypeAlias = Callable[..., float]
MEASURED = ("classification", "retrieval", "regression", "forecast")
"""The tasks whose models return one tensor, which metrics can read."""


class Metric(ABC):
    """A metric of your own, reported beside those of the task.

    It is computed from sums over all samples of a split, so it does not depend on the batch size or the number of
    processes.

    Example:
        >>> import torch
        >>> class TopTwo(Metric):
        ...     tasks = ("classification",)
        ...     def add(self, answer, y):
        ...         hits = (answer.topk(2).indices == y[:, None]).any(1)
        ...         return torch.stack([hits.sum(), hits.new_tensor(len(y), dtype=torch.int64)])
        ...     def value(self, sums):
        ...         return sums[0] / sums[1]
        >>> scores = torch.tensor([[0.1, 0.5, 0.4], [0.9, 0.1, 0.0]])
        >>> TopTwo().value(TopTwo().add(scores, torch.tensor([2, 2])).tolist())
        0.5
    """

    tasks: ClassVar[tuple[str, ...]]
    """The tasks it supports: "classification", "retrieval", "regression" or "forecast"."""

    def size(self, d_output: int) -> int:
        """The number K of sums, for d_output classes or values; 2 unless it is overridden."""
        return 2

    @abstractmethod
    def add(self, answer: Tensor, y: Tensor) -> Tensor:
        """The sums (K,) of a batch, from the model's output and the targets; see :class:`statespan.data.Batch`."""

    @abstractmethod
    def value(self, sums: Sequence[float]) -> float:
        """The metric, from the sums (K,) over all batches."""


def _check_metric(name: str, metric: Any) -> None:
    if not isinstance(metric, Metric):
        raise TypeError(f"a metric must be an instance of statespan.train.Metric, got {metric!r}")
    tasks = getattr(metric, "tasks", ())
    if not tasks or not set(tasks) <= set(MEASURED):
        raise ValueError(f"tasks of {type(metric).__name__} must be among {MEASURED}, got {tasks!r}")


OPTIMIZERS: Registry[MakeOptimizer] = Registry(
    "optimizer",
    "statespan.optimizers",
    built_in=("adamw", "lamb"),
    check=lambda name, item: check_function("optimizer", item),
)
SCHEDULES: Registry[Schedule] = Registry(
    "schedule",
    "statespan.schedules",
    built_in=("cosine", "multistep", "plateau", "constant"),
    check=lambda name, item: check_function("schedule", item),
)
METRICS: Registry[Metric] = Registry(
    "metric",
    "statespan.metrics",
    built_in=("loss", "accuracy", "rmse", "mse", "mae", "perplexity", "bits_per_dim"),
    check=_check_metric,
)


def register_optimizer(name: str, make: MakeOptimizer) -> None:
    """Give an optimizer a name that recipes can use: ``train.optimizer=NAME``.

    Installed packages need not call it: they name the class or function in the entry-point group
    ``statespan.optimizers``.

    Args:
        name: At most 64 letters, digits, "_" and "-".
        make: A subclass of :class:`torch.optim.Optimizer`, or a function that returns one. Its first argument is the
            list of :func:`statespan.param_groups`, which contain ``lr`` and ``weight_decay``. It gets ``betas`` and
            ``eps`` of the recipe if it has arguments of these names; all others are options for
            ``train.optimizer_options``. Its state for a parameter must consist of tensors, so that runs can be resumed.

    Example:
        >>> import torch
        >>> register_optimizer("rmsprop", torch.optim.RMSprop)
    """
    OPTIMIZERS.register(name, make)


def register_schedule(name: str, schedule: Schedule) -> None:
    """Give a schedule of learning rates a name that recipes can use: ``train.schedule=NAME``.

    Installed packages need not call it: they name the function in the entry-point group ``statespan.schedules``.

    Args:
        name: At most 64 letters, digits, "_" and "-".
        schedule: ``schedule(train, step, total, steps_per_epoch)`` returns the factor on all learning rates in update
            ``step`` of ``total``, a finite number >= 0. ``train`` contains all settings; the function is called only
            after its ``warmup``. Keyword-only arguments are options for ``train.schedule_options``. It must be a pure
            function, so that runs can be resumed.

    Example:
        >>> from statespan.train import Train
        >>> from statespan.train.optim import rate
        >>> def polynomial(train, step, total, steps_per_epoch, *, power=2.0):
        ...     return (1 - step / total) ** power
        >>> register_schedule("polynomial", polynomial)
        >>> rate(Train(schedule="polynomial", schedule_options={"power": 1.0}), step=3, total=4, steps_per_epoch=2)
        0.25
    """
    SCHEDULES.register(name, schedule)


def register_metric(name: str, metric: Metric) -> None:
    """Give a metric a name that recipes can use: ``train.metrics=[NAME]``.

    Installed packages need not call it: they name the instance in the entry-point group ``statespan.metrics``.

    Args:
        name: At most 64 letters, digits, "_" and "-".
        metric: An instance of :class:`Metric`.
    """
    METRICS.register(name, metric)
