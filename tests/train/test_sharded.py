"""FSDP on the CPU: the state of two processes with half of every weight each, gathered and put back."""

import os

import pytest
import torch
from torch import distributed
from torch.distributed.fsdp import FullyShardedDataParallel

from statespan.train.optim import build_optimizer
from statespan.train.state import ShardedState
from statespan.train.tasks import TASKS, Objective
from tests.train.make import Toy, dataset, recipe


def make(seed):
    torch.manual_seed(seed)
    model = Toy()
    objective = Objective(model, TASKS["classification"])
    module = FullyShardedDataParallel(objective, use_orig_params=True, device_id=torch.device("cpu"))
    return module, build_optimizer(model, recipe().train)


def step(module, optimizer):
    module(*dataset().train.batch([0, 1, 2, 3])).backward()
    optimizer.step()
    optimizer.zero_grad()


def work(rank, folder):
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    meter = {"sum": torch.tensor(3.0)}
    first, second = make(0), make(1)
    for _ in range(3):
        step(*first)
    taken = ShardedState(*first, None, meter).collect()
    assert taken["model/first.weight"].shape == (6, 10)
    assert taken["optimizer/first.weight/exp_avg"].shape == (6, 10)
    ShardedState(*second, None, {"sum": torch.zeros(())}).restore(taken)
    for pair in (first, second):
        step(*pair)
    one, two = (ShardedState(*pair, None, meter).collect() for pair in (first, second))
    assert all(torch.equal(one[name], two[name]) for name in one if not name.startswith("random/"))
    assert not torch.equal(one["model/first.weight"], taken["model/first.weight"])
    distributed.destroy_process_group()


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not distributed.is_available() or torch.cuda.is_available(), reason="for torch's CPU collectives")
def test_state_of_two_processes(tmp_path):
    children = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            try:
                work(rank, tmp_path)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
