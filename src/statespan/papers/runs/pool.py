"""A pool of processes, each with one job at a time; each exits if its parent is gone."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

BEGUN, ANSWERED, DIED = "begun", "answered", "died"
LOOK = 0.5  # seconds between checks for a signal while waiting


class JobEvent(NamedTuple):
    """The status of a job: "begun", "answered" with the worker's answer, or "died" with how its process ended.

    Example:
        >>> event = JobEvent(job=3, kind="answered", answer={"accuracy": 0.98})
        >>> event.kind, event.answer
        ('answered', {'accuracy': 0.98})
    """

    job: int
    kind: str
    answer: Any = None


@dataclass(frozen=True)
class Pool:
    """Processes that run jobs.

    Example:
        >>> pool = Pool("math:prod", settings=[{}], may_begin=lambda: True, must_stop=lambda: False)
        >>> list(pool.run(jobs=[]))
        []
    """

    work: str
    """A function as "module:name": it takes the settings and returns what turns a job into an answer. Settings, jobs
    and answers travel as JSON."""
    settings: Sequence[Mapping[str, Any]]  # of each process
    may_begin: Callable[[], bool]  # whether a further job may begin
    must_stop: Callable[[], bool]  # whether processes get SIGTERM, to save or abandon their jobs
    log: Path | None = None  # the file their output is appended to; None for the standard error of this process
    patience: float = 60.0  # seconds to wait for them to exit after that

    def run(self, jobs: Sequence[Any]) -> Generator[JobEvent | None, None, None]:
        """Yield events as they happen, and None periodically; processes that die are replaced."""
        waiting = deque(range(len(jobs)))
        alive: dict[int, _Process] = {}
        messages: queue.SimpleQueue[tuple[_Process, Any]] = queue.SimpleQueue()
        count = min(len(self.settings), len(jobs))
        threads = max(1, (os.cpu_count() or 1) // max(1, count))
        with contextlib.nullcontext() if self.log is None else self.log.open("ab") as log:

            def start(number: int) -> None:
                alive[number] = _Process(number, messages, threads, log)
                alive[number].send({"work": self.work, "settings": self.settings[number]})

            try:
                for number in range(count):
                    start(number)
                while alive:
                    for process in alive.values():
                        if self.must_stop() or (process.job is None and not (waiting and self.may_begin())):
                            process.stop()
                    yield None
                    try:
                        process, message = messages.get(timeout=LOOK)
                    except queue.Empty:
                        continue
                    job, process.job = process.job, None
                    if message is None:
                        del alive[process.number]
                        if job is not None:
                            yield JobEvent(job, DIED, process.ending())
                        elif process.running.returncode != 0:  # it failed to start; another one would, too
                            continue
                        if waiting and self.may_begin():
                            start(process.number)
                        continue
                    if job is not None:
                        yield JobEvent(job, ANSWERED, message["answer"])
                    if waiting and self.may_begin():
                        process.job = waiting.popleft()
                        process.send(jobs[process.job])
                        yield JobEvent(process.job, BEGUN)
            finally:
                for process in alive.values():
                    process.stop()
                for process in alive.values():
                    try:
                        process.running.wait(self.patience)
                    except subprocess.TimeoutExpired:
                        process.running.kill()


class _Process:
    """One worker process and the number of its job."""

    def __init__(self, number: int, messages: queue.SimpleQueue[Any], threads: int, log: IO[bytes] | None) -> None:
        self.number, self.is_stopping = number, False
        self.job: int | None = None
        with deaf_to_ctrl_c():
            self.running = subprocess.Popen(
                [sys.executable, "-m", "statespan.papers.runs.worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env={"OMP_NUM_THREADS": str(threads), **os.environ},
            )  # fmt: skip
        threading.Thread(target=self._listen, args=(messages,), daemon=True).start()

    def send(self, message: Any) -> None:
        """Write a line; a process that has exited is noticed later, when it does not answer."""
        with contextlib.suppress(OSError, ValueError):  # the latter: it is closed
            print(json.dumps(message), file=self.running.stdin, flush=True)

    def _listen(self, messages: queue.SimpleQueue[Any]) -> None:
        assert self.running.stdout is not None
        for line in self.running.stdout:
            messages.put((self, json.loads(line)))
        self.running.wait()
        self.running.stdout.close()
        self._close()
        messages.put((self, None))

    def _close(self) -> None:
        assert self.running.stdin is not None
        with contextlib.suppress(OSError):
            self.running.stdin.close()

    def stop(self) -> None:
        """Ask the process to stop its job, or release it."""
        if self.job is None:
            self._close()
        elif not self.is_stopping:
            self.is_stopping = True
            with contextlib.suppress(OSError):
                self.running.send_signal(signal.SIGTERM)

    def ending(self) -> str:
        """How the process ended, in words."""
        code = self.running.returncode
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


@contextlib.contextmanager
def deaf_to_ctrl_c() -> Iterator[None]:
    """Processes started in this context ignore Ctrl-C, which a terminal sends to all: their parent stops them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
