"""A process that runs cells: ``python -m statespan.papers.runs.worker``, started by :mod:`statespan.papers.runs.pool`.

It reads one JSON object a line from its input, first its settings and then jobs, and answers each job with one line.
When its input ends, whoever started it is gone: it leaves at once, and what it was doing can be gone on with.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from pathlib import Path
from typing import Any


def main() -> None:
    """Run cells until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not be taken for an answer
    jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    settings = json.loads(sys.stdin.readline())
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()

    from statespan.papers.runs.cell import Cell
    from statespan.papers.runs.outcome import STOPPED
    from statespan.papers.runs.work import Worker
    from statespan.train import Interrupted

    data = None if settings["data"] is None else Path(settings["data"])
    worker = Worker(Path(settings["cells"]), data, settings["device"], settings["keep"])
    _say(answers, {"ready": True})
    while True:
        cell = Cell.from_job(jobs.get())
        try:
            status, why = worker.run(cell)
        except (Interrupted, KeyboardInterrupt):
            status, why = STOPPED, ""
        _say(answers, {"status": status, "why": why})


def _say(answers: Any, what: dict[str, Any]) -> None:
    answers.write(json.dumps(what) + "\n")
    answers.flush()


def _listen(jobs: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        jobs.put(json.loads(line))
    os._exit(0)


if __name__ == "__main__":
    main()
