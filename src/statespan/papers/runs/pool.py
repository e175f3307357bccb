"""Running cells side by side: some processes, each with one cell at a time."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from statespan import _io as fsio
from statespan.papers.runs.cell import Cell
from statespan.papers.runs.outcome import DONE, FAILED, RUNNING, STOPPED, WAITING, finished
from statespan.papers.runs.work import Worker
from statespan.train.signals import Interrupted, Signals

Show = Callable[[dict[str, str]], None]
"""Told the status of every cell by key, now and then and at the end."""
PATIENCE = 60.0  # seconds a process that was asked to save and stop is given


@dataclass
class _Plan:
    """What is to be run and how, and what is known of it; see :func:`run_cells`."""

    todo: list[Cell]
    found: dict[str, tuple[str, str]]
    folder: Path
    data: Path | None
    devices: list[str]
    keep: str
    end: float
    show: Show
    signals: Signals

    @property
    def closing(self) -> bool:
        """Whether no cell is to be begun any more."""
        return self.signals.received != 0 or time.monotonic() > self.end

    def tell(self) -> None:
        """Tell how things stand."""
        self.show({key: status for key, (status, _) in self.found.items()})


class _Process:
    """One worker process, and what it is doing."""

    def __init__(
        self, number: int, settings: dict[str, Any], threads: int, log: IO[bytes], heard: queue.SimpleQueue[Any]
    ) -> None:
        environment = {"OMP_NUM_THREADS": str(threads), **os.environ}
        self.number, self.stopping = number, False
        self.cell: Cell | None = None
        self.running = subprocess.Popen(
            [sys.executable, "-m", "statespan.papers.runs.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, text=True,
            start_new_session=True,  # Ctrl-C is for the parent, which asks its processes to stop
        )  # fmt: skip
        self.send(settings)
        threading.Thread(target=self._listen, args=(heard,), daemon=True).start()

    def send(self, what: dict[str, Any]) -> None:
        """Write a line; a process that is gone is noticed by its silence."""
        assert self.running.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # the latter: it is closed
            self.running.stdin.write(json.dumps(what) + "\n")
            self.running.stdin.flush()

    def _listen(self, heard: queue.SimpleQueue[Any]) -> None:
        assert self.running.stdout is not None
        for line in self.running.stdout:
            heard.put((self, json.loads(line)))
        self.running.wait()
        self.running.stdout.close()
        self._close()
        heard.put((self, None))

    def _close(self) -> None:
        assert self.running.stdin is not None
        with contextlib.suppress(OSError):
            self.running.stdin.close()

    def stop(self) -> None:
        """Ask it to save what it is doing, or let it go."""
        if self.cell is None:
            self._close()
        elif not self.stopping:
            self.stopping = True
            with contextlib.suppress(OSError):
                self.running.send_signal(signal.SIGTERM)


def places(device: str | None, processes: int | None) -> list[str]:
    """The device of each process.

    Args:
        device: "cpu", "cuda", "cuda:1", or several with commas; None for every CUDA device there is, or the CPU.
        processes: How many; None for one on each device.

    Example:
        >>> places("cpu", 2)
        ['cpu', 'cpu']
        >>> places("cuda:0,cuda:1", 3)
        ['cuda:0', 'cuda:1', 'cuda:0']
    """
    if device is None:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        devices = [f"cuda:{number}" for number in range(count)] or ["cpu"]
    else:
        devices = [one.strip() for one in device.split(",")]
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
    """Run the cells that are not finished, in their order, and leave everything in their folders.

    Args:
        cells: The cells; one that is there twice is run once.
        folder: The folder of all cells; made if it is not there.
        data: The folder of the datasets.
        device: See :func:`places`.
        processes: See :func:`places`; 0 to run in this process.
        keep: What of a finished run stays: "result", "model" or "all".
        seconds: After so long, running cells are saved and stopped.
        show: Told how things stand.

    Returns:
        Status ("done", "failed", "missing", "stopped" or "waiting") and reason of each cell by key.

    Raises:
        Interrupted: A signal came; everything is saved.
        CheckpointError: The folder cannot be used.
    """
    fsio.make_folder(folder)
    with fsio.locked(folder), Signals() as signals:
        found: dict[str, tuple[str, str]] = {cell.key: (WAITING, "") for cell in cells}
        todo = {cell.key: cell for cell in cells if not finished(cell, folder, keep)}
        found |= {key: (DONE, "") for key in found if key not in todo}
        plan = _Plan(
            list(todo.values()), found, folder, data, places(device, processes or None), keep,
            time.monotonic() + seconds, show, signals,
        )  # fmt: skip
        if processes == 0:
            _run_here(plan)
        else:
            _Processes(plan).run()
        plan.tell()
    if signals.received:
        raise Interrupted(signals.received, str(folder))
    return found


def _run_here(plan: _Plan) -> None:
    """All cells in this process."""
    worker = Worker(plan.folder, plan.data, plan.devices[0], plan.keep)
    for cell in plan.todo:
        if plan.closing:
            return
        plan.found[cell.key] = (RUNNING, "")
        plan.tell()
        try:
            plan.found[cell.key] = worker.run(cell)
        except Interrupted as stopped:
            plan.found[cell.key] = (STOPPED, "")
            plan.signals.received = int(stopped.code or 0) - 128


class _Processes:
    """All cells in processes of their own."""

    def __init__(self, plan: _Plan) -> None:
        self.plan = plan
        self.devices = plan.devices[: len(plan.todo)]
        self.threads = max(1, (os.cpu_count() or 1) // max(1, len(self.devices)))
        self.heard: queue.SimpleQueue[tuple[_Process, dict[str, Any] | None]] = queue.SimpleQueue()
        self.alive: dict[int, _Process] = {}

    def run(self) -> None:
        """Run them."""
        with (self.plan.folder / "processes.log").open("ab") as log:
            try:
                for number in range(len(self.devices)):
                    self._start(number, log)
                self._loop(log)
            finally:
                for process in self.alive.values():
                    process.stop()
                for process in self.alive.values():
                    try:
                        process.running.wait(PATIENCE)
                    except subprocess.TimeoutExpired:
                        process.running.kill()

    def _start(self, number: int, log: IO[bytes]) -> None:
        plan = self.plan
        data = None if plan.data is None else str(plan.data.absolute())
        settings = {"cells": str(plan.folder.absolute()), "data": data, "keep": plan.keep}
        settings["device"] = self.devices[number]
        self.alive[number] = _Process(number, settings, self.threads, log, self.heard)

    def _loop(self, log: IO[bytes]) -> None:
        plan = self.plan
        while self.alive:
            for process in self.alive.values():
                if plan.closing or (process.cell is None and not plan.todo):
                    process.stop()
            plan.tell()
            try:
                process, answer = self.heard.get(timeout=0.5)
            except queue.Empty:
                continue
            if answer is None:
                self._ended(process, log)
                continue
            if process.cell is not None and "status" in answer:
                plan.found[process.cell.key] = (answer["status"], answer["why"])
                process.cell = None
            if plan.todo and not plan.closing:
                process.cell = plan.todo.pop(0)
                plan.found[process.cell.key] = (RUNNING, "")
                process.send(process.cell.job())

    def _ended(self, process: _Process, log: IO[bytes]) -> None:
        """A process is gone: because it was let go, or in the middle of a cell, which failed then."""
        plan, code = self.plan, process.running.returncode
        del self.alive[process.number]
        if process.cell is not None:
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            why = "" if process.stopping else f"its process ended with {how}; see processes.log"
            plan.found[process.cell.key] = (STOPPED if process.stopping else FAILED, why)
        elif code != 0:  # it could not even begin; another one would not either
            return
        if plan.todo and not plan.closing:
            self._start(process.number, log)
