"""Two processes (DDP on the CPU) train as one, and as themselves when they are interrupted."""

import json
import os
import random
import subprocess
import sys

import pytest
import torch

from statespan.train import fit
from statespan.train.checkpoint import latest
from tests.train.make import Toy, dataset, state
from tests.train.two_processes import SETTINGS, settings

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")


def run(folder, plan):
    """The exit codes of both processes, for each entry of the plan."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "tests.train.two_processes", str(folder), json.dumps(plan)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60 + 30 * len(plan))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def values(folder):
    tensors, _ = latest(folder / "checkpoints")
    return {name: t.float() for name, t in tensors.items() if name.startswith(("model/", "optimizer/", "ema/"))}


def assert_same(folder, other):
    mine, wanted = state(folder), state(other)
    assert mine.keys() == wanted.keys()
    assert [name for name in mine if mine[name] != wanted[name]] == []


def test_they_train_as_one(tmp_path):
    """After 20 steps the weights are those of one process to 1e-6, and the same bits when resumed on the way."""
    codes, messages = run(tmp_path, [["whole", None, 0, 20], ["cut", None, 0, 13], ["cut", None, 0, 20]])
    assert codes == [[0, 0]] * 3, messages
    fit(settings(1), tmp_path / "one", data=dataset(valid=5), model=Toy, progress=False)
    two, one = values(tmp_path / "whole"), values(tmp_path / "one")
    assert two.keys() == one.keys()
    for name, value in one.items():
        assert (two[name] - value).abs().max() <= 1e-6, name
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("one", "whole")]
    assert results[1]["test"] == pytest.approx(results[0]["test"], rel=1e-5)
    assert results[1]["machine"]["processes"] == 2
    mine, wanted = state(tmp_path / "cut"), state(tmp_path / "whole")  # the log has one validation more
    names = [name for name in mine if name.startswith(("model/", "optimizer/", "ema/"))]
    assert names
    assert [name for name in names if mine[name] != wanted[name]] == []


@pytest.mark.soak
def test_a_hundred_interruptions(tmp_path):
    draw = random.Random(0)
    plan = [["whole", None, 0, 20]]
    for number in range(20):
        steps = sorted(draw.sample(range(SETTINGS["steps"]), 5))
        plan += [*([str(number), step, draw.randrange(2), 20] for step in steps), [str(number), None, 0, 20]]
    codes, messages = run(tmp_path, plan)
    assert codes == [[0, 0] if step is None else [143, 143] for _, step, *_ in plan], messages
    for number in range(20):
        assert_same(tmp_path / str(number), tmp_path / "whole")
