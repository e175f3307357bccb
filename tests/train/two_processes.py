"""A program that trains the toy in two processes, again and again, and stops it where it is told to.

    python -m tests.train.two_processes FOLDER '[["name of a run", 3, 0, 20], ["name of a run", null, 0, 20]]'

Each entry starts both processes on the run FOLDER/name, new or resumed, for this many steps; with a step, the process
of that rank receives SIGTERM before it. Prints the exit codes.
"""

import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path

import lightning.fabric  # noqa: F401  # once, before the forks
import torch

from statespan.train import Interrupted, fit, result
from statespan.train import loop as loops
from tests.train.make import Toy, dataset, recipe

SETTINGS = {"steps": 20, "decay_steps": 20, "batch": 8, "ema": 0.9, "clip": 0.4}


def settings(processes, steps=20):
    return recipe(**{**SETTINGS, "steps": steps, "accumulate": 2 if processes == 2 else 1})


def main(folder, plan):
    torch.set_num_threads(1)
    result._picture = lambda result: b""
    codes = []
    for name, step, stopped, steps in plan:
        port = free_port()
        children = []
        for rank in range(2):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    code = work(folder / name, rank, port, step if rank == stopped else None, steps)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            children.append(child)
        codes.append([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
    print(json.dumps(codes))


def work(folder, rank, port, step, steps):
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", GROUP_RANK="0",
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_RUN_ID="test",
    )  # fmt: skip
    advance = loops.Loop.advance

    def stopping(self, batches):
        if self.progress.step == step:
            os.kill(os.getpid(), signal.SIGTERM)
        advance(self, batches)

    loops.Loop.advance = stopping
    try:
        fit(settings(2, steps), folder, resume=True, data=dataset(valid=5), model=Toy, progress=False)
    except Interrupted as stop:
        return stop.code
    return 0


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
