"""Training in memory: the pieces of :mod:`statespan.train` without its folders.

The same numbers come out for the same data, settings and seed; the random state of the caller is left alone.
"""

from __future__ import annotations

import copy
import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from statespan.data.base import Batch, Split
from statespan.train.config import Train
from statespan.train.ema import Average
from statespan.train.feed import Feed
from statespan.train.graph import GraphStep
from statespan.train.guard import NonFiniteError
from statespan.train.log import Bar
from statespan.train.metrics import measure
from statespan.train.optim import build_optimizer
from statespan.train.order import Plan, derive, seed_torch
from statespan.train.schedule import rate
from statespan.train.step import Step
from statespan.train.tasks import Objective, Task

LEAST = 25  # updates between two looks at the held-out part, where their number was given
VALID = 64  # series judged together, at least


class OneDevice:
    """What the pieces of training ask of Lightning Fabric, for one process on one device."""

    world_size = 1
    global_rank = 0

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def backward(self, loss: Tensor) -> None:
        """The gradients of a loss."""
        loss.backward()

    def no_backward_sync(self, module: nn.Module, enabled: bool = True) -> AbstractContextManager[None]:
        """There is nobody to wait for."""
        return nullcontext()


@dataclass(frozen=True)
class Settings:
    """How to train.

    Args:
        epochs: Passes over the training part, at most.
        batch: Series an update.
        lr: Learning rate; that of the SSMs is at most 0.001.
        weight_decay: Weight decay.
        patience: Validations without improvement after which training ends; None for none.
        validations: How often the held-out part is looked at, over all epochs; at most once an epoch if 0.
        ema: Decay of the average of the weights, or None.
        seed: Of everything random.
        steps: Updates at most, whatever the epochs say; None for no limit.
        capture: Run the update as a CUDA graph, on a CUDA device.
    """

    epochs: int
    batch: int
    lr: float = 0.004
    weight_decay: float = 0.05
    patience: int | None = None
    validations: int = 0
    ema: float | None = None
    seed: int = 0
    steps: int | None = None
    capture: bool = True


@dataclass
class History:
    """What training did: the updates made, and (update, held-out metric) where there was a held-out part."""

    steps: int = 0
    best_step: int = 0
    best: float | None = None
    train_loss: list[float] = field(default_factory=list)
    valid: list[tuple[int, float]] = field(default_factory=list)


def train(
    model: nn.Module, task: Task, data: Split, held_out: Split | None, settings: Settings, device: torch.device,
    *, show: bool = False,
) -> History:  # fmt: skip
    """Train a model in place; with a held-out part it ends with the weights that were best on it.

    Args:
        model: On its device.
        task: Its loss and metric.
        data: What to learn from.
        held_out: What to judge by, or None.
        settings: How.
        device: Where the model is.
        show: Whether to show a progress bar.

    Raises:
        NonFiniteError: The loss or a gradient is not finite.
    """
    cuda = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda), Bar(_total(len(data), settings), 0, show) as bar:
        return _Training(model, task, data, held_out, settings, device).run(bar)


def _total(n: int, settings: Settings) -> int:
    total = settings.epochs * max(1, n // min(settings.batch, n))
    return total if settings.steps is None else min(total, settings.steps)


class _Training:
    def __init__(
        self, model: nn.Module, task: Task, data: Split, held_out: Split | None, settings: Settings,
        device: torch.device,
    ) -> None:  # fmt: skip
        n = len(data)
        self.model, self.task, self.device, self.settings = model, task, device, settings
        self.total = _total(n, settings)
        self.train = Train(
            steps=self.total, batch=min(settings.batch, n), lr=settings.lr, weight_decay=settings.weight_decay,
            warmup=max(1, self.total // 10), schedule="cosine", clip=1.0, seed=settings.seed,
        )  # fmt: skip
        self.fabric: Any = OneDevice(device)
        self.feed = Feed(data, device)
        self.held_out = None if held_out is None else Feed(held_out, device)
        self.plan = Plan(n, self.train.batch, seed=settings.seed, device=str(self.feed.place))
        self.module = Objective(model, task).train()
        self.average = None if settings.ema is None else Average(model, settings.ema)
        every = self.plan.steps_per_epoch
        if settings.validations:
            every = max(self.total // settings.validations, min(LEAST, self.total))
        self.every = every
        self.history = History()
        self.best: dict[str, Tensor] | None = None
        self.waited = 0

    def run(self, bar: Bar) -> History:
        """Train to the end."""
        capture = self.device.type == "cuda" and self.settings.capture
        step = self._step(capture)
        updater: Step | GraphStep = step
        batches = self.feed.batches(self.plan.stream(0))
        for number in range(self.total):
            batch = next(batches)
            if capture and number == 0 and batch.lengths is None:  # lengths are checked on the way, which no graph can
                step, updater = self._captured(step, batch)
            step.prepare(number, rate(self.train, number, self.total, self.plan.steps_per_epoch))
            seed_torch(self.device, derive(self.settings.seed, "step", number))
            updater.piece(batch, last=True)
            updater.update()
            bar.advance()
            done = number + 1
            if (done % self.every == 0 or done == self.total) and not self._look(step, done, bar):
                break
        self.history.steps = done
        if self.best is not None:
            self.model.load_state_dict(self.best)
        elif self.average is not None:
            self._take_average()
        self.model.eval()
        return self.history

    def _step(self, captured: bool) -> Step:
        optimizer = build_optimizer(self.model, self.train, captured=captured)
        return Step(self.fabric, self.module, optimizer, self.train, self.average)

    def _captured(self, step: Step, batch: Batch) -> tuple[Step, Step | GraphStep]:
        """The update as a CUDA graph, or as it is where something in the model cannot be captured."""
        start = {name: value.clone() for name, value in self.model.state_dict().items()}
        seed_torch(self.device, derive(self.settings.seed, "step", 0))
        try:
            return step, GraphStep(step, self.model, [batch])
        except RuntimeError:
            self.model.load_state_dict(start)
            eager = self._step(False)
            return eager, eager

    def _look(self, step: Step, done: int, bar: Bar) -> bool:
        """See how it goes; whether to go on."""
        bad = step.guard.first_bad()
        if bad is not None:
            raise NonFiniteError(f"the loss or a gradient is not finite in update {bad}; try a smaller learning_rate")
        loss = step.mean_loss()
        self.history.train_loss.append(loss)
        bar.show(loss=f"{loss:.4g}")
        if self.held_out is None:
            return True
        value = self._measure()
        self.history.valid.append((done, value))
        bar.show(**{f"held-out {self.task.metric}": f"{value:.4g}"})
        if self.task.better(value, self.history.best):
            self.history.best, self.history.best_step, self.waited = value, done, 0
            self.best = self._weights()
        else:
            self.waited += 1
        return self.settings.patience is None or self.waited < self.settings.patience

    def _measure(self) -> float:
        assert self.held_out is not None
        with self.average.swapped() if self.average else nullcontext():
            found = measure(self.fabric, self.module, self.task, self.held_out, max(VALID, self.train.batch))
        value = found[self.task.metric]
        return value if math.isfinite(value) else math.inf

    def _weights(self) -> dict[str, Tensor]:
        with self.average.swapped() if self.average else nullcontext():
            return {name: value.detach().clone() for name, value in copy.copy(self.model.state_dict()).items()}

    def _take_average(self) -> None:
        assert self.average is not None
        with torch.no_grad():
            for name, parameter in self.average.parameters.items():
                parameter.copy_(self.average.values[name])
