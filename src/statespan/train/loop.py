"""The training loop.

A run is a pure function of its recipe and data: before each piece of each step the random state is set from
(seed, step, piece), and rows are taken in an order that depends on (seed, epoch). So a run that resumes from any
checkpoint gives the same bits as an uninterrupted one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from statespan._io import CheckpointError
from statespan.data.base import Batch, Dataset, Split, trim
from statespan.nn.threads import few_threads
from statespan.train.config import ConfigError, Train
from statespan.train.device import Processes
from statespan.train.ema import Average
from statespan.train.feed import Feed, moved
from statespan.train.graph import CannotCaptureError, GraphStep
from statespan.train.guard import NonFiniteError, find_cause
from statespan.train.log import progress_bar
from statespan.train.metrics import measure
from statespan.train.optim import build_optimizer, rate
from statespan.train.order import BatchPlan, derive, seed_python, seed_torch
from statespan.train.parts import OPTIMIZERS
from statespan.train.signals import Interrupted, Signals
from statespan.train.sinks import RunFolder, Sink
from statespan.train.state import Progress, RunState, ShardedState
from statespan.train.step import TrainStep
from statespan.train.tasks import Objective, Task

CHECK_EVERY = 20  # steps after which the host waits for a device that runs ahead of it


class Splits(NamedTuple):
    """The training data, and the validation data if there is any.

    Example:
        >>> from statespan.data import Arrays
        >>> split = Arrays({"x": torch.zeros(10, 50, 1).numpy()}, lambda rows: Batch(rows["x"], rows["x"][:, 0]))
        >>> len(Splits(split).train), Splits(split).valid
        (10, None)
    """

    train: Split
    valid: Split | None = None
    augment: Callable[[Batch, torch.Generator], Batch] | None = None


def _check_test(data: Dataset | Splits) -> None:
    """Reject data without a test split of its own, which then cannot select the weights."""
    test = getattr(data, "test", None)
    if test is None or test is data.valid or not len(test):
        raise ConfigError("train.select is test; allowed: valid, as this data has no test split of its own")


class Loop:
    """A run from its settings; :meth:`resume` continues from a checkpoint, and :meth:`run` trains.

    Example:
        >>> from statespan.data import Arrays
        >>> from statespan.train import device, sinks, tasks
        >>> split = Arrays({"x": torch.ones(8, 50, 1).numpy()}, lambda rows: Batch(rows["x"], 2 * rows["x"]))
        >>> parts = {"task": tasks.TASKS["regression"], "processes": device.OneProcess(torch.device("cpu"))}
        >>> loop = Loop(Train(steps=4, batch=4), Splits(split), nn.Linear(1, 1), sink=sinks.Memory(), **parts)
        >>> loop.run(progress=False)
        >>> loop.progress.step
        4
    """

    def __init__(
        self, train: Train, data: Dataset | Splits, model: nn.Module, *, task: Task, processes: Processes, sink: Sink
    ) -> None:
        self.created = time.perf_counter()  # the time of a run includes compiling
        self.train, self.data, self.model, self.task = train, data, model, task
        self.processes, self.sink = processes, sink
        self.progress, self.signals = Progress(), Signals()
        if train.select == "test":
            _check_test(data)
        self.saved: Progress | None = None
        self.polls = 0
        self.feeds: dict[str, Feed] = {}
        self.is_sharded = train.strategy == "fsdp"
        self.feed = Feed(data.train, processes.device, train.resident)
        self.plan = self._plan()
        self.total = train.steps or train.epochs * self.plan.steps_per_epoch
        self.validate_every = train.validate_every or self.plan.steps_per_epoch
        self.check_every = 1 if processes.device.type == "cpu" else min(CHECK_EVERY, train.log_every)
        self._set_up()

    def _plan(self) -> BatchPlan:
        train, world, n = self.train, self.processes.world_size, len(self.data.train)
        if n < train.batch:
            raise ConfigError(f"train.batch is {train.batch}; allowed: at most {n}, the number of rows")
        if train.batch % (world * train.accumulate):
            pieces = f"{world} processes x {train.accumulate} pieces (train.accumulate)"
            raise ConfigError(
                f"train.batch is {train.batch}; allowed: a multiple of {world * train.accumulate} for {pieces}"
            )
        lengths = self.data.train.lengths if train.group_lengths else None
        if train.group_lengths and lengths is None:
            raise ConfigError("train.group_lengths is true; it must be false for data whose rows all have one length")
        return BatchPlan(
            n,
            train.batch,
            train.accumulate,
            world=world,
            rank=self.processes.global_rank,
            seed=train.seed,
            device=str(self.feed.array_device),
            lengths=None if lengths is None else torch.from_numpy(lengths),
        )

    def _set_up(self) -> None:
        processes, train = self.processes, self.train
        on_cuda = processes.device.type == "cuda"
        alone = on_cuda and processes.world_size == 1 and not self.is_sharded
        is_built_in = train.optimizer in OPTIMIZERS.built_in
        if not is_built_in and train.compile in ("graph", "both"):
            raise ConfigError(
                f"train.compile is {train.compile}; allowed: auto, none or compile for optimizer {train.optimizer}, "
                "because a graph captures only built-in optimizers"
            )
        captured = alone and is_built_in and train.compile in ("auto", "graph", "both")
        self.compiled = on_cuda and train.compile in ("compile", "both")
        if self.is_sharded and (train.ema is not None or train.optimizer != "adamw"):
            raise ConfigError("train.strategy is fsdp, which supports train.optimizer=adamw only, and no train.ema")
        if self.compiled:
            self.model.compile()
        self.objective = Objective(self.model, self.task).train()
        self.module: Any = processes.setup_module(self.objective)
        self.average = None if train.ema is None else Average(self.model, train.ema)
        optimizer = build_optimizer(self.model, train, captured=captured)
        self.step = TrainStep(
            processes, self.module, optimizer, train=train, average=self.average, is_sharded=self.is_sharded
        )
        self.state: RunState
        if self.is_sharded:
            outermost: Any = self.module._forward_module  # from which FSDP gathers
            self.state = ShardedState(outermost, optimizer, None, self.step.meter)
        else:
            self.state = RunState(self.model, optimizer, self.average, self.step.meter)
        self.updater: TrainStep | GraphStep = self.step
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

    def few_threads(self) -> contextlib.AbstractContextManager[None]:
        """Within the context, use one thread of a CPU if the model is small and no number was chosen."""
        if self.train.threads is not None or self.processes.device.type != "cpu":
            return contextlib.nullcontext()
        x = self.data.train.take(self.feed.arrays, torch.zeros(1, dtype=torch.int64)).x
        rows = self.train.batch // (self.processes.world_size * self.train.accumulate)
        return few_threads(self.model, rows * len(x), x.shape[1])

    def resume(self, folder: RunFolder) -> None:
        """Resume from the newest intact checkpoint in the run's folder, if there is one."""
        if (newest := folder.resume(self.total)) is not None:
            tensors, self.progress = newest
            self.state.restore(tensors)
            self.saved = dataclasses.replace(self.progress)

    def run(self, progress: bool = True) -> None:
        """Train to the end, or until a signal asks to stop: then everything is saved and Interrupted raised."""
        with self.opened(progress) as batches:
            try:
                self._go(batches)
            except Interrupted:  # raised where the weights may be the averages for a moment, so saved only here
                self.save()
                raise

    @contextlib.contextmanager
    def opened(self, progress: bool) -> Iterator[Iterator[Batch]]:
        """Open the log, the progress bar, the signal handlers and the batches from the current step on."""
        self.began = self.created - self.progress.seconds
        columns = ("epoch", "lr", "train_loss", *(f"{self.train.select}_{name}" for name in self.task.columns()))
        self.start = now = self.progress.step
        with contextlib.ExitStack() as stack:
            if self.sink.folder is not None:
                stack.enter_context(self.signals)
            stack.enter_context(self.sink.opened(self.progress, columns))
            is_shown = progress and self.processes.is_global_zero
            self.bar = stack.enter_context(progress_bar(self.total, now, is_shown))
            if self.saved is None:
                seed_python(derive(self.train.seed, "python", self.processes.global_rank))
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
        """Make one update."""
        step, train = self.progress.step, self.train
        factor = rate(train, step, self.total, self.plan.steps_per_epoch) * train.factor**self.progress.lowered
        self.step.prepare(step, factor)
        for piece in range(train.accumulate):
            batch = next(batches)
            self._seed(step, piece)
            self.updater.piece(batch, last=piece == train.accumulate - 1)
        self.updater.update()
        self.progress.step = step + 1
        is_logged = self.progress.step % train.log_every == 0 or self.progress.step == self.total
        if is_logged or self.progress.step % self.check_every == 0:
            self._check()
        if is_logged:
            loss = self.step.mean_loss()
            self._write({"lr": train.lr * factor, "train_loss": loss})
            self.bar(epoch=str(1 + step // self.plan.steps_per_epoch), loss=f"{loss:.4g}")
        self.bar(1)

    def _validate(self) -> None:
        self._check()
        split = self.train.select
        if split == "valid" and self.data.valid is None:
            return
        progress, step = self.progress, self.progress.step
        label = f"{split} {self.task.metric.replace('_', ' ')}"
        self.bar(**{label: "…"})
        metrics = self.measure(split, poll=self._poll)
        value, loss = (metrics.get(name, math.nan) for name in (self.task.metric, "loss"))
        # a metric such as the accuracy of a few samples is often the same; then the surer model is better
        is_surer = value == progress.best and progress.best_loss is not None and loss < progress.best_loss
        if not metrics or is_surer or self.task.better(value, progress.best):
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
        self._write({f"{split}_{name}": number for name, number in metrics.items()})
        self.sink.validated(progress, value, time.perf_counter() - self.began)
        self.bar(**{label: f"{value:.4g}"})
        self.save()

    def measure(
        self, split: str, *, rows: int | None = None, poll: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        """The metrics on a split, or its first rows, with the current (if configured, averaged) weights."""
        if split not in self.feeds:
            self.feeds[split] = Feed(getattr(self.data, split), self.processes.device, self.train.resident)
        with self.averaged(), self._eager():
            return measure(
                self.processes,
                self.module,
                self.task,
                self.feeds[split],
                batch=self.train.valid_batch or max(1, self.train.batch // self.processes.world_size),
                rows=rows,
                group_lengths=self.train.group_lengths,
                poll=poll,
            )

    def averaged(self) -> contextlib.AbstractContextManager[None]:
        """Use the averaged weights, if any, within the context."""
        return self.average.swapped() if self.average else contextlib.nullcontext()

    def load_best(self) -> int:
        """Load the weights to test; returns their step."""
        step = self.progress.best_step if self.train.test_weights == "best" else self.progress.step
        if 0 <= step != self.progress.step:
            self.state.load_weights(self.sink.weights_at(step))
            self.average = None
        return step if step >= 0 else self.progress.step

    def save(self) -> None:
        """Save the current state, unless it is saved already."""
        self._check()
        if self.saved == self.progress:
            return
        self.progress.seconds = time.perf_counter() - self.began
        problem: CheckpointError | None = None
        try:
            self.sink.save(self.progress, self.state)
        except CheckpointError as error:
            problem = error
        if self._any(problem is not None):
            raise problem or CheckpointError("the first process could not save a checkpoint")
        self.saved = dataclasses.replace(self.progress)

    def _poll(self) -> None:
        """Stop if a signal came; several processes agree on it periodically, to stop together."""
        self.polls += 1
        is_due = self.processes.world_size == 1 or self.polls % self.check_every == 0
        if is_due and self._any(self.signals.received != 0):
            raise Interrupted(self.signals.received or signal.SIGTERM, str(self.sink.folder))

    def _check(self) -> None:
        """Raise an error if an update was not finite."""
        updates = self.step.guard.first_bad()
        if updates is None:
            return
        bad = self.start + updates
        cause = "not looked for with fsdp" if self.is_sharded else self._cause(bad) or "in another process"
        raise NonFiniteError(
            f"the loss or a gradient is not finite in step {bad} (epoch {1 + bad // self.plan.steps_per_epoch}); "
            f"first: {cause}; nothing was updated; {self.sink.advice(self.saved)}"
        )

    def _cause(self, step: int) -> str | None:
        batches = self._batches(step)
        for piece in range(self.train.accumulate):
            batch = next(batches)
            self._seed(step, piece)

            def loss(batch: Batch = batch) -> Tensor:
                with self.processes.autocast(), self._eager():
                    return self.objective(*batch)

            cause = find_cause(self.model, batch, loss)
            if cause is not None:
                return cause
        return None

    def _batches(self, step: int) -> Generator[Batch, None, None]:
        """The pieces from a step on, augmented; each augmentation has its own generator."""
        augment, world, rank = self.data.augment, self.processes.world_size, self.processes.global_rank
        generator = torch.Generator(self.processes.device)
        for number, batch in enumerate(self.feed.batches(self.plan.stream(step)), step * self.train.accumulate):
            if (length := self.plan.length(*divmod(number, self.train.accumulate))) is not None:
                batch = trim(batch, length)
            if augment is not None:
                generator.manual_seed(derive(self.train.seed, "augment", number, world, rank))
                batch = augment(batch, generator)
            yield batch

    def _examples(self) -> list[Batch]:
        """A batch of every possible shape, the largest first."""
        if not self.plan.shapes():
            return [next(self._batches(0))]
        whole = moved(self.data.train.take(self.feed.arrays, self.plan.index(0, 0)), self.processes.device)
        examples = []
        for length in self.plan.shapes():
            lengths = None if whole.lengths is None else whole.lengths.clamp(max=length)
            examples.append(trim(whole, length)._replace(lengths=lengths))
        return examples

    def _seed(self, step: int, piece: int) -> None:
        # a run in memory is one process, and a step is one piece there
        where = (step,) if self.sink.folder is None else (step, piece, self.processes.global_rank)
        seed_torch(self.processes.device, derive(self.train.seed, "step", *where))

    def _write(self, values: dict[str, float]) -> None:
        epoch = self.progress.step / self.plan.steps_per_epoch
        self.sink.write(self.progress, {"epoch": epoch, **values})

    def _any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        if self.processes.world_size == 1:
            return flag
        flags: Any = self.processes.all_reduce(torch.tensor(float(flag), device=self.processes.device), reduce_op="sum")
        return bool(flags > 0)

    def _eager(self) -> Any:
        """Disable the compiler, which would recompile for the size of the last batch."""
        return torch.compiler.set_stance("force_eager") if self.compiled else contextlib.nullcontext()
