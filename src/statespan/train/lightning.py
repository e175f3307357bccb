"""Models as Lightning modules, for a ``lightning.Trainer`` and ordinary torch loaders.

Losses and metrics are those of :mod:`statespan.train.tasks`, the optimizer and schedule those of recipes. What
``statespan train`` guarantees about resuming and random numbers does not hold here; Lightning's own rules apply.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from statespan._check import check_choice
from statespan._suggest import suggest
from statespan.data.base import Batch
from statespan.train.config import Train
from statespan.train.optim import build_optimizer, rate
from statespan.train.tasks import TASKS, Task, output

OPTIONS = (
    "optimizer", "lr", "weight_decay", "ssm_lr", "slow_C", "fast_dt", "betas", "eps", "schedule", "warmup",
    "decay_steps", "min_lr", "milestones", "factor",
)  # fmt: skip
"""The fields of :class:`Train` that describe the optimizer and its schedule."""
SCHEDULES = ("cosine", "multistep", "constant")


def as_lightning(model: nn.Module, task: str | Task | None = None, **options: Any) -> TaskModule:
    """A LightningModule around a model, ready for ``lightning.Trainer().fit(module, loader)``.

    A loader yields ``(x, y)``, ``(x, y, lengths)``, a dictionary with these keys, or a
    :class:`statespan.data.base.Batch`. The module logs ``train_loss``. Over all samples of a split it logs
    ``valid_loss`` and the task's metrics, such as ``valid_accuracy``; likewise ``test_…``.

    Args:
        model: Any of our models, or a module that is called like them.
        task: "classification", "regression", "retrieval", "language", "density", "masked" or "forecast"; None for the
            model's own task, if it has only one.
        options: Fields of :class:`statespan.train.Train` for the optimizer and its schedule: ``lr``, ``ssm_lr``,
            ``weight_decay``, ``schedule``, ``warmup`` and others, with the same defaults. A, B and Δ get ``ssm_lr`` and
            no weight decay.

    Example:
        >>> from statespan.models import build
        >>> model = build("classifier", options={"d_input": 1, "d_output": 3, "d_model": 16, "n_layers": 1})
        >>> module = as_lightning(model, "classification", lr=0.004, warmup=100)
        >>> module(torch.randn(2, 50, 1)).shape
        torch.Size([2, 3])
    """
    for name in options:
        if name not in OPTIONS:
            raise ValueError(f"options has no {name!r}{suggest(name, OPTIONS)} (allowed: {', '.join(OPTIONS)})")
    train = Train(**options)
    check_choice("schedule", train.schedule, SCHEDULES)
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if isinstance(task, Task):
        return TaskModule(model, task, train)
    own = tuple(getattr(model, "tasks", ()))
    if task is None and len(own) != 1:
        raise ValueError(f"task must be one of {own or tuple(TASKS)} for a {type(model).__name__}, got None")
    name = check_choice("task", own[0] if task is None else task, own or TASKS)
    return TaskModule(model, TASKS[name], train)


class TaskModule(LightningModule):
    """A model with its task and training settings, made by :func:`as_lightning`; ``model`` is the model itself.

    Example:
        >>> from statespan.models import Classifier, ClassifierConfig
        >>> model = Classifier(ClassifierConfig(d_input=1, d_output=3, d_model=8, d_state=4, n_layers=1))
        >>> module = as_lightning(model)
        >>> isinstance(module, TaskModule), module(torch.zeros(2, 50, 1)).shape
        (True, torch.Size([2, 3]))
    """

    def __init__(self, model: nn.Module, task: Task, train_options: Train) -> None:
        super().__init__()
        self.model, self.task, self.train_options = model, task, train_options
        self._sums: dict[int, Tensor] = {}

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """Call the model."""
        return self.model(*arguments, **options)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of a batch."""
        parts = as_batch(batch)
        loss = self.task.loss(self.model, parts)
        self.log("train_loss", loss.detach(), prog_bar=True, batch_size=len(parts.y))
        return loss

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Add the sums of a batch."""
        self._add(batch, dataloader_idx)

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Add the sums of a batch."""
        self._add(batch, dataloader_idx)

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """The model's output for x, or for a batch, whose targets are ignored."""
        return self.model(batch) if isinstance(batch, Tensor) else output(self.model, as_batch(batch))

    def on_validation_epoch_start(self) -> None:
        """Start from zero."""
        self._sums = {}

    def on_test_epoch_start(self) -> None:
        """Start from zero."""
        self._sums = {}

    def on_validation_epoch_end(self) -> None:
        """Log the metrics."""
        self._log_metrics("valid")

    def on_test_epoch_end(self) -> None:
        """Log the metrics."""
        self._log_metrics("test")

    def configure_optimizers(self) -> Any:
        """The optimizer with our parameter groups, and a schedule that is updated every step."""
        optimizer = build_optimizer(self.model, self.train_options)
        train = self.train_options
        if train.schedule == "constant" and not train.warmup:
            return optimizer
        total = self.trainer.estimated_stepping_batches
        if not math.isfinite(total):
            if train.schedule != "constant" and train.decay_steps is None:
                raise ValueError("decay_steps must be given with a Trainer that has no end, got None")
            total = train.decay_steps or 1
        epochs = self.trainer.max_epochs or 1
        an_epoch = max(1, int(total) // epochs) if epochs > 0 else int(total)
        schedule = LambdaLR(optimizer, lambda step: rate(train, step, int(total), an_epoch))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _add(self, batch: Any, loader: int) -> None:
        sums = self.task.add(self.model, as_batch(batch), 1.0)
        sums = sums.to(torch.float32 if sums.device.type == "mps" else torch.float64)
        self._sums[loader] = self._sums[loader] + sums if loader in self._sums else sums

    def _log_metrics(self, split: str) -> None:
        for loader, sums in self._sums.items():
            total = self.trainer.strategy.reduce(sums, reduce_op="sum")
            values = dict(zip(self.task.sums, total.tolist()))
            if values[self.task.sums[-1]] == 0:
                continue  # nothing counted
            suffix = f"_{loader}" if loader else ""
            metrics = self.task.metrics(values)
            self.log_dict({f"{split}_{name}{suffix}": value for name, value in metrics.items()}, prog_bar=True)
        self._sums = {}


def as_batch(batch: Any) -> Batch:
    """A batch of a loader as a :class:`Batch`."""
    if isinstance(batch, Batch):
        return batch
    if isinstance(batch, Mapping):
        known = Batch._fields
        if not {"x", "y"} <= batch.keys() <= set(known):
            raise ValueError(f"a batch must have the keys x and y, and may have {known[2:]}, got {tuple(batch)}")
        return Batch(**batch)
    if not isinstance(batch, (tuple, list)) or not 2 <= len(batch) <= 3:
        got = f"{len(batch)} parts" if isinstance(batch, (tuple, list)) else type(batch).__name__
        raise TypeError(f"a batch must be (x, y) or (x, y, lengths), a dictionary or a Batch, got {got}")
    return Batch(*batch)
