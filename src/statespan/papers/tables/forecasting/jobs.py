"""Runs the fits of a table in parallel, longest first; a signal ends them at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from statespan.papers.runs.pool import ANSWERED, DIED, Pool
from statespan.papers.tables.forecasting.harness import Budget, run
from statespan.papers.tables.forecasting.settings import Setting
from statespan.train.signals import Interrupted, Signals

MODEL_ORDER = ("SeasonalNaive", "NLinear", "DLinear", "S4", "LSTM", "Informer")  # cheap or important models first
Job = tuple[str, Setting]
PATIENCE = 10.0  # seconds to wait for a process to exit


def longest_first(jobs: list[Job]) -> list[Job]:
    """Order the fits longest first per model, so that processes end at about the same time.

    Example:
        >>> settings = [Setting("etth1", kind, horizon) for kind in "SM" for horizon in (24, 720)]
        >>> [setting.name for _, setting in longest_first([("S4", setting) for setting in settings])]
        ['etth1-M-720', 'etth1-M-24', 'etth1-S-720', 'etth1-S-24']
    """
    return sorted(jobs, key=lambda job: (MODEL_ORDER.index(job[0]), job[1].features != "M", -job[1].horizon))


class Stop(Signals):
    """Signal handling: ends a fit in this process at once; otherwise the signal is recorded.

    Example:
        >>> with Stop() as stop:
        ...     stop.received
        0
    """

    def __init__(self) -> None:
        super().__init__()
        self._fitting = False

    def fit(self, *arguments: Any, **options: Any) -> dict[str, Any] | None:
        """The result of :func:`run`, or None if a signal came before or during it."""
        try:
            self._fitting = True
            return None if self.received else run(*arguments, **options)
        except Interrupted:
            return None
        finally:
            self._fitting = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        super()._note(number, frame)
        if self._fitting:
            self._fitting = False  # once is enough
            raise Interrupted(number, "the record")


@dataclass(frozen=True)
class FitOptions:
    """Options for running the fits of a table.

    Example:
        >>> FitOptions(Budget(steps=100), torch.device("cpu")).processes
        1
    """

    budget: Budget  # training budget of each model
    device: torch.device  # where
    folder: Path | None = None  # where the datasets are
    processes: int = 1  # fits at a time
    seconds: float = float("inf")  # no fit starts after this time


def fits(jobs: list[Job], options: FitOptions, stop: Stop) -> Generator[dict[str, Any], None, None]:
    """Yield the fits of these jobs as they finish, until a signal comes."""
    end = time.monotonic() + options.seconds
    if options.processes == 1:
        for model, setting in jobs:
            if time.monotonic() > end:
                return
            fit = stop.fit(model, setting, options.budget, options.device, folder=options.folder)
            if fit is None:
                return
            yield fit
        return
    folder = None if options.folder is None else str(options.folder.absolute())
    settings = {"budget": asdict(options.budget), "device": str(options.device), "folder": folder}
    pool = Pool(
        "statespan.papers.tables.forecasting.jobs:fit_worker", [settings] * options.processes,
        may_begin=lambda: not stop.received and time.monotonic() <= end, must_stop=lambda: stop.received != 0,
        patience=PATIENCE,
    )  # fmt: skip
    with closing(pool.run(jobs)) as events:
        for event in events:
            if event is not None and event.kind == ANSWERED:
                yield event.answer
            elif event is not None and event.kind == DIED and not stop.received:  # a signal to all reaches them too
                model, setting = jobs[event.job]
                raise RuntimeError(f"the process that fitted {model} in {setting.name} ended with {event.answer}")


def fit_worker(budget: dict[str, Any], device: str, folder: str | None) -> Callable[[list[Any]], dict[str, Any]]:
    """Return a function that runs a fit in a process of a pool."""
    torch.set_num_threads(1)  # side by side, they would only wait for each other's threads
    torch.set_float32_matmul_precision("high")
    where = None if folder is None else Path(folder)

    def fit(job: list[Any]) -> dict[str, Any]:
        return run(job[0], Setting(*job[1]), Budget(**budget), torch.device(device), folder=where)

    return fit
