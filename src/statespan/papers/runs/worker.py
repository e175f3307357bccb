"""A process that runs jobs: ``python -m statespan.papers.runs.worker``, started by :mod:`statespan.papers.runs.pool`.

It reads JSON values from its input, one per line: first what to do, then jobs. It answers each job with one line, and
exits as soon as its input ends, because then its parent has exited or no longer needs it.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import sys
import threading
from typing import Any


def main() -> None:
    """Run jobs until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries must not be mistaken for an answer
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    start = json.loads(sys.stdin.readline() or "null")
    if start is None:
        return
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    module, _, function = start["work"].partition(":")
    work = getattr(importlib.import_module(module), function)(**start["settings"])
    message: dict[str, Any] = {"ready": True}
    while True:
        print(json.dumps(message), file=answers, flush=True)
        message = {"answer": work(jobs.get())}


def _listen(jobs: queue.SimpleQueue[Any]) -> None:
    for line in sys.stdin:
        jobs.put(json.loads(line))
    os._exit(0)


if __name__ == "__main__":
    main()
