"""The training loop.

A run is a pure function of its recipe and data: before each piece of each step the random state is set from
(seed, step, piece), and rows are taken in an order that depends on (seed, epoch). So a run that goes on from any
checkpoint does what it would have done, bit by bit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import signal
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from statespan._io import CheckpointError
from statespan.data.base import Batch, Dataset, trim
from statespan.train import checkpoint, sharded, state
from statespan.train.checkpoint import Facts
from statespan.train.config import ConfigError, Recipe, Train
from statespan.train.ema import Average
from statespan.train.feed import Feed, moved
from statespan.train.graph import CannotCaptureError, GraphStep
from statespan.train.guard import NonFiniteError, find_cause
from statespan.train.log import Bar, Log
from statespan.train.metrics import measure
from statespan.train.optim import build_optimizer
from statespan.train.order import Plan, derive, seed_python, seed_torch
from statespan.train.schedule import rate
from statespan.train.signals import Interrupted, Signals
from statespan.train.state import Progress
from statespan.train.step import Step
from statespan.train.tasks import Objective, task_of

if TYPE_CHECKING:
    from lightning.fabric import Fabric

LOOK_EVERY = 20  # steps after which the host waits for a device that runs ahead of it


class Loop:
    """A run: made from a recipe, put where it was by :meth:`resume`, and then :meth:`run`.

    Args:
        recipe: The recipe.
        folder: The run's folder.
        dataset: The data.
        model: The model, with its first weights.
        fabric: Devices and processes.
    """

    def __init__(self, recipe: Recipe, folder: Path, dataset: Dataset, model: nn.Module, fabric: Fabric) -> None:
        self.made = time.perf_counter()  # what compiling takes is a part of the time that a run takes
        self.recipe, self.train, self.folder, self.fabric = recipe, recipe.train, folder, fabric
        self.dataset, self.model, self.task = dataset, model, task_of(dataset)
        self.progress, self.signals = Progress(), Signals()
        self.saved: Progress | None = None
        self.polls = 0
        self.feeds: dict[str, Feed] = {}
        self.sharded = self.train.strategy == "fsdp"
        self.feed = Feed(dataset.train, fabric.device, self.train.resident)
        self.plan = self._plan()
        self.total = self.train.steps or self.train.epochs * self.plan.steps_per_epoch
        self.validate_every = self.train.validate_every or self.plan.steps_per_epoch
        self.look_every = 1 if fabric.device.type == "cpu" else min(LOOK_EVERY, self.train.log_every)
        self._set_up()

    def _plan(self) -> Plan:
        train, world = self.train, self.fabric.world_size
        if len(self.dataset.train) < train.batch:
            raise ConfigError(
                f"train.batch is {train.batch}; allowed are at most the {len(self.dataset.train)} rows there are"
            )
        if train.batch % (world * train.accumulate):
            pieces = f"{world} processes x {train.accumulate} pieces (train.accumulate)"
            raise ConfigError(
                f"train.batch is {train.batch}; allowed is a multiple of {world * train.accumulate} for {pieces}"
            )
        rank, place = self.fabric.global_rank, str(self.feed.place)
        lengths = self.dataset.train.lengths if train.group_lengths else None
        if train.group_lengths and lengths is None:
            raise ConfigError("train.group_lengths is true; allowed is false for data whose rows all have one length")
        known = None if lengths is None else torch.from_numpy(lengths)
        return Plan(len(self.dataset.train), train.batch, train.accumulate, world, rank, train.seed, place, known)

    def _set_up(self) -> None:
        fabric, train = self.fabric, self.train
        on_cuda = fabric.device.type == "cuda"
        alone = on_cuda and fabric.world_size == 1 and not self.sharded
        captured = alone and train.compile in ("auto", "graph", "both")
        self.compiled = on_cuda and train.compile in ("compile", "both")
        if self.sharded and (train.ema is not None or train.optimizer == "lamb"):
            raise ConfigError("train.strategy is fsdp; allowed with it are neither train.ema nor train.optimizer=lamb")
        if self.compiled:
            self.model.compile()
        self.objective = Objective(self.model, self.task).train()
        self.module: Any = fabric.setup_module(self.objective)
        self.average = None if train.ema is None else Average(self.model, train.ema)
        optimizer = build_optimizer(self.model, train, captured=captured)
        self.step = Step(fabric, self.module, optimizer, train, self.average, self.sharded)
        self.updater: Step | GraphStep = self.step
        if captured:
            self._seed(0, 0)
            try:
                self.updater = GraphStep(self.step, self.model, self._examples())
            except CannotCaptureError as error:
                if train.compile != "auto":
                    raise ConfigError(
                        f"train.compile is {train.compile}; allowed for this model are auto, none and compile, "
                        f"as its step waits for the device: {error}"
                    ) from error

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints are."""
        return self.folder / "checkpoints"

    def resume(self) -> None:
        """Go on from the newest whole checkpoint, if there is one."""
        found = checkpoint.latest(self.checkpoints)
        if found is None:
            return
        tensors, facts = found
        _check_same(facts.recipe, self.recipe.to_dict())
        self.progress = Progress.of(facts.progress)
        self._state().restore(tensors, self._stateful(), self.step.optimizer, self.average, self.step.meter)
        self.saved = dataclasses.replace(self.progress)
        if self.fabric.is_global_zero:
            checkpoint.remove_after(self.checkpoints, facts.step)

    def run(self, progress: bool = True) -> None:
        """Train to the end, or until a signal asks to stop.

        Raises:
            Interrupted: A signal came; everything is saved.
            NonFiniteError: The loss or a gradient is not finite; the last checkpoint is from before.
            CheckpointError: Something could not be written.
        """
        with self.opened(progress) as batches:
            try:
                self._go(batches)
            except Interrupted:  # raised where the weights may be the averages for a moment, so saved only here
                self.save()
                raise

    @contextlib.contextmanager
    def opened(self, progress: bool) -> Iterator[Iterator[Batch]]:
        """Log, progress bar, signals, and the batches from the step of now on."""
        self.began = self.made - self.progress.seconds
        lead = self.fabric.is_global_zero
        columns = ("epoch", "lr", "train_loss", *(f"valid_{name}" for name in self._metric_names()))
        self.start = now = self.progress.step
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.signals)
            self.log = Log(self.folder, columns, self.progress.log_bytes, now, self.train.tensorboard) if lead else None
            if self.log is not None:
                stack.callback(self.log.close)
            self.bar = stack.enter_context(Bar(self.total, now, progress and lead))
            if self.saved is None:
                seed_python(derive(self.train.seed, "python", self.fabric.global_rank))
            batches = self._batches(now)
            stack.callback(batches.close)
            yield batches

    def _go(self, batches: Iterator[Batch]) -> None:
        progress, train = self.progress, self.train
        while True:
            step = progress.step
            if step and (step % self.validate_every == 0 or step == self.total) and progress.validated != step:
                self._validate()
            if step >= self.total or (train.patience is not None and progress.waited >= train.patience):
                break
            if step and step % train.save_every == 0:
                self.save()
            self._poll()
            self.advance(batches)
        self.save()

    def advance(self, batches: Iterator[Batch]) -> None:
        """One update."""
        step, train = self.progress.step, self.train
        factor = rate(train, step, self.total, self.plan.steps_per_epoch) * train.factor**self.progress.lowered
        self.step.prepare(step, factor)
        for piece in range(train.accumulate):
            batch = next(batches)
            self._seed(step, piece)
            self.updater.piece(batch, last=piece == train.accumulate - 1)
        self.updater.update()
        self.progress.step = step + 1
        logged = self.progress.step % train.log_every == 0 or self.progress.step == self.total
        if logged or self.progress.step % self.look_every == 0:
            self._look()
        if logged:
            loss = self.step.mean_loss()
            self._write({"lr": train.lr * factor, "train_loss": loss})
            self.bar.show(epoch=str(1 + step // self.plan.steps_per_epoch), loss=f"{loss:.4g}")
        self.bar.advance()

    def _validate(self) -> None:
        self._look()
        progress, step = self.progress, self.progress.step
        name = f"valid {self.task.metric.replace('_', ' ')}"
        self.bar.show(**{name: "…"})
        found = self.measure("valid", poll=self._poll)
        value, loss = (found.get(name, math.nan) for name in (self.task.metric, "loss"))
        # a metric such as the accuracy of a few samples is often the same; then the surer model is better
        surer = value == progress.best and progress.best_loss is not None and loss < progress.best_loss
        if not found or surer or self.task.better(value, progress.best):
            progress.best, progress.best_loss = (x if math.isfinite(x) else None for x in (value, loss))
            progress.best_step = step
            progress.waited = progress.plateau = 0
        else:
            progress.waited += 1
            progress.plateau += 1
        if self.train.schedule == "plateau" and progress.plateau > self.train.plateau_patience:
            progress.lowered += 1
            progress.plateau = 0
        progress.validated = step
        self._write({f"valid_{name}": number for name, number in found.items()})
        if self.log is not None:
            self.log.time(step, time.perf_counter() - self.began)
        self.bar.show(**{name: f"{value:.4g}"})
        self.save()

    def measure(
        self, split: str, dt_scale: float = 1.0, poll: Any = lambda: None, rows: int | None = None
    ) -> dict[str, float]:
        """The metrics on a split, or its first rows, with the weights of now, averaged where there are averages."""
        if split not in self.feeds:
            self.feeds[split] = Feed(getattr(self.dataset, split), self.fabric.device, self.train.resident)
        size = self.train.valid_batch or max(1, self.train.batch // self.fabric.world_size)
        with self.averaged(), self._eager():
            groups = self.train.group_lengths
            return measure(self.fabric, self.module, self.task, self.feeds[split], size, dt_scale, poll, rows, groups)

    def averaged(self) -> contextlib.AbstractContextManager[None]:
        """The averaged weights for as long as the context lasts, where there are averages."""
        return self.average.swapped() if self.average else contextlib.nullcontext()

    def load_best(self) -> int:
        """Take the weights that are to be tested; returns their step."""
        step = self.progress.best_step if self.train.test_weights == "best" else self.progress.step
        if 0 <= step != self.progress.step:
            tensors, _ = checkpoint.at_step(self.checkpoints, step)
            self._state().load_weights(self._stateful(), tensors)
            self.average = None
        return step if step >= 0 else self.progress.step

    def save(self) -> None:
        """Write a checkpoint of now, if there is none."""
        self._look()
        if self.saved == self.progress:
            return
        self.progress.seconds = time.perf_counter() - self.began
        tensors: dict[str, Tensor] = {}
        problem: CheckpointError | None = None
        if self.sharded or self.log is not None:
            tensors = self._state().collect(self._stateful(), self.step.optimizer, self.average, self.step.meter)
        if self.log is not None:
            try:
                self.progress.log_bytes = self.log.sync()
                facts = Facts(self.progress.step, self.recipe.to_dict(), dataclasses.asdict(self.progress))
                checkpoint.save(self.checkpoints, tensors, facts, self.train.keep)
            except CheckpointError as error:
                problem = error
        if self._any(problem is not None):
            raise problem or CheckpointError("the first process could not save a checkpoint")
        self.saved = dataclasses.replace(self.progress)

    def _poll(self) -> None:
        """Leave if a signal came; several processes agree, from time to time, to do so together."""
        self.polls += 1
        if (self.fabric.world_size == 1 or self.polls % self.look_every == 0) and self._any(self.signals.received != 0):
            raise Interrupted(self.signals.received or signal.SIGTERM, str(self.folder))

    def _look(self) -> None:
        """Stop if an update was bad."""
        good = self.step.guard.first_bad()
        if good is None:
            return
        before = self.saved.step if self.saved else None
        bad = self.start + good
        kept = "there is no checkpoint yet" if before is None else f"the last checkpoint is of step {before}"
        cause = "not looked for with fsdp" if self.sharded else self._cause(bad) or "in another process"
        raise NonFiniteError(
            f"the loss or a gradient is not finite in step {bad} (epoch {1 + bad // self.plan.steps_per_epoch}); "
            f"first: {cause}; nothing was updated; {kept}"
        )

    def _cause(self, step: int) -> str | None:
        batches = self._batches(step)
        for piece in range(self.train.accumulate):
            batch = next(batches)
            self._seed(step, piece)

            def loss(batch: Batch = batch) -> Tensor:
                with self.fabric.autocast(), self._eager():
                    return self.objective(*batch)

            cause = find_cause(self.model, batch, loss)
            if cause is not None:
                return cause
        return None

    def _batches(self, step: int) -> Generator[Batch, None, None]:
        """The pieces from a step on, augmented; each augmentation has a generator of its own."""
        augment, world, rank = self.dataset.augment, self.fabric.world_size, self.fabric.global_rank
        generator = torch.Generator(self.fabric.device)
        for number, batch in enumerate(self.feed.batches(self.plan.stream(step)), step * self.train.accumulate):
            if (length := self.plan.length(*divmod(number, self.train.accumulate))) is not None:
                batch = trim(batch, length)
            if augment is not None:
                generator.manual_seed(derive(self.train.seed, "augment", number, world, rank))
                batch = augment(batch, generator)
            yield batch

    def _examples(self) -> list[Batch]:
        """A batch of every shape there is, the largest first."""
        if not self.plan.shapes():
            return [next(self._batches(0))]
        whole = moved(self.dataset.train.take(self.feed.arrays, self.plan.index(0, 0)), self.fabric.device)
        made = []
        for length in self.plan.shapes():
            lengths = None if whole.lengths is None else whole.lengths.clamp(max=length)
            made.append(trim(whole, length)._replace(lengths=lengths))
        return made

    def _seed(self, step: int, piece: int) -> None:
        seed_torch(self.fabric.device, derive(self.train.seed, "step", step, piece, self.fabric.global_rank))

    def _write(self, values: dict[str, float]) -> None:
        if self.log is not None:
            step = self.progress.step
            self.log.write(step, {"epoch": step / self.plan.steps_per_epoch, **values})
            self.progress.log_bytes = self.log.file.size

    def _any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        if self.fabric.world_size == 1:
            return flag
        flags: Any = self.fabric.all_reduce(torch.tensor(float(flag), device=self.fabric.device), reduce_op="sum")
        return bool(flags > 0)

    def _metric_names(self) -> list[str]:
        return list(self.task.metrics(dict.fromkeys(self.task.sums, 1.0)))

    def _state(self) -> Any:
        return sharded if self.sharded else state

    def _stateful(self) -> nn.Module:
        return self.module._forward_module if self.sharded else self.model  # FSDP gathers from its outermost module

    def _eager(self) -> Any:
        """Without the compiler, which would start again for the last batch's size."""
        return torch.compiler.set_stance("force_eager") if self.compiled else contextlib.nullcontext()


def _check_same(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Refuse to go on with another recipe; only what says when to stop, log and save may change."""
    new = json.loads(json.dumps(new))  # as the old one was
    free = {"epochs", "steps", "patience", "log_every", "save_every", "keep", "tensorboard", "valid_batch"}
    defaults = {"train": json.loads(json.dumps(dataclasses.asdict(Train())))}  # of settings that are newer than the run
    for section in ("data", "model", "train"):
        before = {**defaults.get(section, {}), **old.get(section, {})}
        for key in sorted({*before, *new[section]}):
            was, now = before.get(key), new[section].get(key)
            if was != now and not (section == "train" and key in free):
                raise ConfigError(
                    f"{section}.{key} is {now!r}; allowed is {was!r}, with which the run to continue began"
                )
