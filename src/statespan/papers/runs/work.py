"""Runs cells one after the other in this process, or in parallel."""

from __future__ import annotations

import contextlib
import gc
import json
import shutil
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch

from statespan import _io as fsio
from statespan.data import MissingData
from statespan.data.base import Dataset
from statespan.papers.runs.cell import Cell
from statespan.papers.runs.outcome import DONE, EVALUATIONS, FAILED, FAULT, MISSING, RUNNING, STOPPED, WAITING, finished
from statespan.papers.runs.pool import BEGUN, DIED, JobEvent, Pool
from statespan.train.run import evaluate, fit, load_data
from statespan.train.signals import Interrupted, Signals
from statespan.train.strict import dump

KEEP_DATASETS = 2  # the cells of a table go through its columns in turn

Show = Callable[[dict[str, str]], None]
"""Called with the status of every cell by key, periodically and at the end."""
_Changes: TypeAlias = Generator[dict[str, tuple[str, str]], None, None]


def process_devices(device: str | None, processes: int | None) -> list[str]:
    """The device of each process; by default one process per CUDA device, or one on the CPU.

    Example:
        >>> process_devices("cpu", 2)
        ['cpu', 'cpu']
        >>> process_devices("cuda:0,cuda:1", 3)
        ['cuda:0', 'cuda:1', 'cuda:0']
    """
    if device is None:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        devices = [f"cuda:{number}" for number in range(count)] or ["cpu"]
    else:
        devices = [name.strip() for name in device.split(",")]
    return [devices[number % len(devices)] for number in range(processes or len(devices))]


def run_cells(
    cells: Sequence[Cell],
    folder: Path,
    *,
    data: Path | None = None,
    device: str | None = None,
    processes: int | None = None,
    keep: str = "model",
    seconds: float = float("inf"),
    show: Show = lambda statuses: None,
) -> dict[str, tuple[str, str]]:
    """Run the cells that are not finished, each once and in their order; their folders are in ``folder``.

    They run on :func:`process_devices`, with 0 ``processes`` in this one, and are saved and stopped after ``seconds``.
    ``keep`` says what to keep of a finished run: see :class:`Worker`. Returns status ("done", "failed", "missing",
    "stopped" or "waiting") and reason of each cell by key.

    Raises:
        Interrupted: A signal came; everything is saved.
        CheckpointError: The folder cannot be used.
    """
    fsio.make_folder(folder)
    end = time.monotonic() + seconds
    with fsio.locked(folder), Signals() as signals:
        statuses = {cell.key: (DONE if finished(cell, folder, keep) else WAITING, "") for cell in cells}
        todo = [cell for cell in {cell.key: cell for cell in cells}.values() if statuses[cell.key][0] != DONE]
        devices = process_devices(device, processes or None)

        def is_closing() -> bool:
            return signals.received != 0 or time.monotonic() > end

        if processes == 0:
            changes = _one_by_one(todo, Worker(folder, data, devices[0], keep), signals, is_closing)
        else:
            place = {"cells": str(folder.absolute()), "data": None if data is None else str(data.absolute())}
            settings = [{**place, "keep": keep, "device": name} for name in devices]
            changes = _side_by_side(todo, settings, folder / "processes.log", is_closing)
        with contextlib.closing(changes):
            for change in changes:
                statuses |= change
                show({key: status for key, (status, _) in statuses.items()})
        show({key: status for key, (status, _) in statuses.items()})
    if signals.received:
        raise Interrupted(signals.received, str(folder))
    return statuses


def _one_by_one(cells: list[Cell], worker: Worker, signals: Signals, is_closing: Callable[[], bool]) -> _Changes:
    for cell in cells:
        if is_closing():
            return
        yield {cell.key: (RUNNING, "")}
        try:
            yield {cell.key: worker.run(cell)}
        except Interrupted as stopped:
            signals.received = int(stopped.code or 0) - 128
            yield {cell.key: (STOPPED, "")}


def _side_by_side(
    cells: list[Cell], settings: list[dict[str, Any]], log: Path, is_closing: Callable[[], bool]
) -> _Changes:
    work = "statespan.papers.runs.work:Worker"
    pool = Pool(work, settings, may_begin=lambda: not is_closing(), must_stop=is_closing, log=log)
    with contextlib.closing(pool.run([cell.job() for cell in cells])) as events:
        for event in events:
            yield {} if event is None else {cells[event.job].key: _status(event, is_closing())}


def _status(event: JobEvent, is_closing: bool) -> tuple[str, str]:
    if event.kind == BEGUN:
        return RUNNING, ""
    if event.kind == DIED:
        return (STOPPED, "") if is_closing else (FAILED, f"its process ended with {event.answer}; see processes.log")
    status, why = event.answer
    return status, why


class Worker:
    """Runs cells one after the other, here or in a process of a pool, and caches the latest datasets.

    What stays of a finished run is the "result" (and the log), the tested "model", too, or "all".

    Example:
        >>> worker = Worker("cells", data=None, device="cpu", keep="result")
        >>> worker.cells.name, worker.loaded
        ('cells', {})
    """

    def __init__(self, cells: Path | str, data: Path | str | None, device: str, keep: str) -> None:
        self.cells, self.data, self.device, self.keep = Path(cells), None if data is None else Path(data), device, keep
        self.loaded: dict[str, Dataset] = {}

    def __call__(self, job: dict[str, Any]) -> tuple[str, str]:
        """:meth:`run` a cell that is given as plain data; an interrupted one is "stopped"."""
        try:
            return self.run(Cell.from_job(job))
        except (Interrupted, KeyboardInterrupt):
            return STOPPED, ""

    def run(self, cell: Cell) -> tuple[str, str]:
        """Train and measure a cell, or resume it: "done", "failed" or "missing", and why in one line.

        An interruption is raised; the cell is saved then.
        """
        folder = cell.folder(self.cells)
        try:
            if not finished(cell, self.cells, self.keep):
                fsio.make_folder(folder)
                fit(cell.recipe, folder, resume=True, data=self._dataset(cell), progress=False, device=self.device)
                self._evaluate(cell, folder)
            (folder / FAULT).unlink(missing_ok=True)
            self._prune(folder)
            return DONE, ""
        except MissingData as error:
            why = f"the files of dataset {error.dataset!r} are not here; see statespan data {error.dataset}"
            return self._fault(folder, MISSING, why)
        except (torch.OutOfMemoryError, MemoryError):
            return self._fault(folder, FAILED, "out of memory")
        except Exception as error:  # a cell that fails, for whatever reason, must not stop the others
            kind = "" if isinstance(error, (ValueError, RuntimeError)) else f"{type(error).__name__}: "
            return self._fault(folder, FAILED, kind + " ".join(str(error).split()))
        finally:
            if cell.recipe.train.compile in ("compile", "both"):
                torch._dynamo.reset()  # after some models of a class it would run the next ones uncompiled
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _dataset(self, cell: Cell) -> Dataset:
        key = dump(dict(cell.recipe.data))
        if key not in self.loaded:
            while len(self.loaded) >= KEEP_DATASETS:  # free the oldest before the next one needs its room
                del self.loaded[next(iter(self.loaded))]
            self.loaded[key] = load_data(cell.recipe, self.data)
        return self.loaded[key]

    def _evaluate(self, cell: Cell, folder: Path) -> None:
        metrics = {}
        for evaluation in cell.evaluations:
            metrics[evaluation.name] = evaluate(
                folder, "test", evaluation.rate, overrides=evaluation.overrides, data=self.data, device=self.device
            )
        if metrics:
            fsio.replace_file(folder / EVALUATIONS, (json.dumps(metrics, indent=2) + "\n").encode())

    def _prune(self, folder: Path) -> None:
        """Remove temporary files, the checkpoints last, because until then the run can be resumed."""
        removed = {
            "result": ("curve.png", "times.csv", "tensorboard", "model", "checkpoints"),
            "model": ("tensorboard", "checkpoints"),
            "all": (),
        }
        for name in removed[self.keep]:
            if (folder / name).is_dir():
                shutil.rmtree(folder / name, ignore_errors=True)
            else:
                (folder / name).unlink(missing_ok=True)

    def _fault(self, folder: Path, status: str, why: str) -> tuple[str, str]:
        with contextlib.suppress(OSError, fsio.CheckpointError):  # a full disk; the terminal shows the fault anyway
            fsio.make_folder(folder)
            fsio.replace_file(folder / FAULT, (json.dumps({"status": status, "why": why}) + "\n").encode())
        return status, why
