"""What a training loop writes to: the folder of a run, from which it can be resumed, or memory."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor

from statespan.train import checkpoint
from statespan.train.checkpoint import Facts
from statespan.train.config import ConfigError, Recipe, Train
from statespan.train.log import Log
from statespan.train.state import Progress, RunState

# settings that only say when to stop, log and save: a run may be resumed with others
FREE = {"epochs", "steps", "patience", "log_every", "save_every", "keep", "tensorboard", "valid_batch"}


class RunFolder:
    """A run on the disk: ``log.csv``, ``times.csv``, ``checkpoints/`` and ``tensorboard/``.

    Example:
        >>> import tempfile
        >>> recipe = Recipe(name="mine", data={"name": "smnist"}, model={"name": "classifier"})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = RunFolder(Path(folder), recipe)
        ...     run.resume(total=100), run.advice(None)
        (None, 'there is no checkpoint yet')
    """

    def __init__(self, folder: Path, recipe: Recipe, *, is_lead: bool = True) -> None:
        self.folder = folder
        self.recipe, self.is_lead = recipe, is_lead
        self.checkpoints = folder / "checkpoints"
        self.log: Log | None = None

    def resume(self, total: int) -> tuple[dict[str, Tensor], Progress] | None:
        """The newest whole checkpoint, or None; later ones are damaged and removed.

        The recipe must be the same, and its ``total`` of steps not below those that were trained. Otherwise nothing is
        changed: the result would say that the run was shorter than it was.
        """
        newest = checkpoint.latest(self.checkpoints)
        if newest is None:
            return None
        tensors, facts = newest
        _check_same(facts.recipe, self.recipe.to_dict())
        if facts.step > total:
            train = self.recipe.train
            given = f"train.epochs is {train.epochs}" if train.steps is None else f"train.steps is {train.steps}"
            raise ConfigError(
                f"{given}, which ends after step {total}, but the run has trained {facts.step} steps already; "
                "nothing was changed: give more, or start another run without --resume"
            )
        if self.is_lead:
            checkpoint.remove_after(self.checkpoints, facts.step)
        return tensors, Progress.of(facts.progress)

    @contextlib.contextmanager
    def opened(self, progress: Progress, columns: Sequence[str]) -> Iterator[None]:
        """Open the log within the context, to train in."""
        if not self.is_lead:
            yield
            return
        board = self.recipe.train.tensorboard
        self.log = Log(self.folder, columns, size=progress.log_bytes, step=progress.step, tensorboard=board)
        with contextlib.closing(self.log):
            yield

    def write(self, progress: Progress, values: dict[str, float]) -> None:
        """Log a row of values at this step."""
        if self.log is not None:
            self.log.write(progress.step, values)
            progress.log_bytes = self.log.file.size

    def validated(self, progress: Progress, value: float, seconds: float) -> None:
        """Record the seconds that the run had taken at this step's validation; its metric is in the log already."""
        if self.log is not None:
            self.log.time(progress.step, seconds)

    def save(self, progress: Progress, state: RunState) -> None:
        """Write a checkpoint; may raise a CheckpointError."""
        tensors = state.collect() if self.is_lead or state.is_collective else {}
        if self.log is not None:
            progress.log_bytes = self.log.sync()
            facts = Facts(progress.step, self.recipe.to_dict(), dataclasses.asdict(progress))
            checkpoint.save(self.checkpoints, tensors, facts, self.recipe.train.keep)

    def weights_at(self, step: int) -> dict[str, Tensor]:
        """The tensors of the checkpoint of a step."""
        return checkpoint.at_step(self.checkpoints, step)[0]

    def advice(self, saved: Progress | None) -> str:
        """Advice for a run that cannot continue, from the progress that was saved last."""
        return "there is no checkpoint yet" if saved is None else f"the last checkpoint is of step {saved.step}"


@dataclass
class History:
    """The history of training: the number of updates, and (update, metric) on the hold-out, if any.

    Example:
        >>> history = History(steps=20, best_step=10, best=0.4, valid=[(10, 0.4), (20, 0.5)])
        >>> min(history.valid, key=lambda pair: pair[1])
        (10, 0.4)
    """

    steps: int = 0
    best_step: int = 0
    best: float | None = None
    train_loss: list[float] = field(default_factory=list)
    valid: list[tuple[int, float]] = field(default_factory=list)


class Memory:
    """The history and the best weights, in memory; nothing is written, and signals are left to the caller.

    Example:
        >>> sink = Memory()
        >>> sink.write(Progress(step=10), {"train_loss": 0.5})
        >>> sink.history.steps, sink.history.train_loss
        (10, [0.5])
    """

    folder = None

    def __init__(self) -> None:
        self.history = History()
        self.best: dict[str, Tensor] = {}

    def opened(self, progress: Progress, columns: Sequence[str]) -> contextlib.AbstractContextManager[None]:
        """Do nothing: there is no log."""
        return contextlib.nullcontext()

    def write(self, progress: Progress, values: dict[str, float]) -> None:
        """Record the number of updates and the loss."""
        self.history.steps = progress.step
        if "train_loss" in values:
            self.history.train_loss.append(values["train_loss"])

    def validated(self, progress: Progress, value: float, seconds: float) -> None:
        """Record the metric of this step's validation."""
        self.history.valid.append((progress.step, value if math.isfinite(value) else math.inf))
        self.history.best, self.history.best_step = progress.best, max(progress.best_step, 0)

    def save(self, progress: Progress, state: RunState) -> None:
        """Keep the weights if they are the best so far."""
        if progress.step == progress.best_step:
            tensors = {**state.model.state_dict(), **(state.average.values if state.average else {})}
            self.best = {f"model/{name}": value.detach().clone() for name, value in tensors.items()}

    def weights_at(self, step: int) -> dict[str, Tensor]:
        """The best weights, whatever their step."""
        return self.best

    def advice(self, saved: Progress | None) -> str:
        """Advice for a run that cannot continue."""
        return "try a smaller learning rate"


Sink: TypeAlias = RunFolder | Memory


def _check_same(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Refuse to resume a run with another recipe; its own data may have moved."""
    new = json.loads(json.dumps(new))  # as the old one was
    defaults = {"train": json.loads(json.dumps(dataclasses.asdict(Train())))}  # of settings that are newer than the run
    for section in ("data", "model", "train"):
        before = {**defaults.get(section, {}), **old.get(section, {})}
        for key in sorted({*before, *new[section]}):
            was, now = before.get(key), new[section].get(key)
            is_free = key in FREE if section == "train" else (section, key) == ("data", "path")
            if was != now and not is_free:
                raise ConfigError(f"{section}.{key} is {now!r}; allowed: {was!r}, the value of the run to resume")
