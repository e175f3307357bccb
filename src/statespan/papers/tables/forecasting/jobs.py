"""The fits of a table: in which order, side by side, and ended at once by a signal."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from statespan.papers.tables.forecasting.harness import Budget, run
from statespan.papers.tables.forecasting.settings import Setting
from statespan.train.signals import Signals

ORDER = ("SeasonalNaive", "NLinear", "DLinear", "S4", "LSTM", "Informer")  # what is cheap or matters most comes first
Job = tuple[str, Setting]
LOOK = 0.2  # seconds after which a signal is noticed, while processes are waited for
PATIENCE = 10.0  # seconds that a process is given to end


def ordered(jobs: list[Job]) -> list[Job]:
    """Of each model the longest fits first: whoever is done early then has a short one left to begin, not a long one.

    Example:
        >>> some = [Setting("etth1", kind, horizon) for kind in "SM" for horizon in (24, 720)]
        >>> [setting.name for _, setting in ordered([("S4", setting) for setting in some])]
        ['etth1-M-720', 'etth1-M-24', 'etth1-S-720', 'etth1-S-24']
    """
    return sorted(jobs, key=lambda job: (ORDER.index(job[0]), job[1].features != "M", -job[1].horizon))


class Stop(Signals):
    """Signals that end a fit in this process at once, and otherwise are noted."""

    def __init__(self) -> None:
        super().__init__()
        self._fitting = False

    def fit(self, *arguments: Any, **options: Any) -> dict[str, Any] | None:
        """What :func:`run` returns, or None if a signal came before or meanwhile."""
        try:
            self._fitting = True
            return None if self.received else run(*arguments, **options)
        except _Stopped:
            return None
        finally:
            self._fitting = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        super()._note(number, frame)
        if self._fitting:
            self._fitting = False  # once is enough
            raise _Stopped(128 + number)


class _Stopped(SystemExit):
    """Leaves a fit, from wherever it is."""


def made(
    jobs: list[Job], budget: Budget, device: torch.device, folder: Path | None, processes: int, seconds: float,
    stop: Stop,
) -> Generator[dict[str, Any], None, None]:  # fmt: skip
    """The fits of these jobs as they are done, until a signal comes; none is begun after so many seconds."""
    end = time.perf_counter() + seconds
    if processes > 1:
        yield from _side_by_side(jobs, budget, device, folder, processes, end, stop)
        return
    for model, setting in jobs:
        if time.perf_counter() > end:
            return
        fit = stop.fit(model, setting, budget, device, folder=folder)
        if fit is None:
            return
        yield fit


def _side_by_side(
    jobs: list[Job], budget: Budget, device: torch.device, folder: Path | None, processes: int, end: float, stop: Stop
) -> Generator[dict[str, Any], None, None]:
    left, running = iter(jobs), set[Future[dict[str, Any]]]()
    strangers = multiprocessing.active_children()
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin)
    try:
        while not stop.received:
            while len(running) < processes and time.perf_counter() <= end and (job := next(left, None)):
                with _deaf_to_ctrl_c():
                    running.add(pool.submit(run, *job, budget, device, folder=folder))
            if not running:
                break
            done, running = wait(running, LOOK, FIRST_COMPLETED)
            for future in done:
                try:
                    yield future.result()
                except BrokenProcessPool:
                    if not stop.received:  # a signal to all of us reaches them, too
                        raise
    finally:
        if running:
            _end([child for child in multiprocessing.active_children() if child not in strangers])
        pool.shutdown(cancel_futures=True)


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes started here never hear of Ctrl-C, which a terminal sends to all: their parent ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(children: list[Any]) -> None:
    for child in children:
        child.terminate()
    until = time.monotonic() + PATIENCE
    for child in children:
        child.join(max(0.0, until - time.monotonic()))
        if child.is_alive():
            child.kill()


def _begin() -> None:
    """In each process: side by side, they would only wait for each other's threads."""
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
