"""Two processes with half the batch each train like one with all of it."""

import pytest
import torch
from torch import distributed, nn
from torch.multiprocessing import spawn

from statespan import S4, S4D
from statespan.ops import use_path
from tests.ops.make import assert_near

PATHS = ("auto", "chunks")


def model():
    torch.manual_seed(0)
    return nn.Sequential(S4D(4, 8, dtype=torch.float64), S4(4, 8, bidirectional=True, dtype=torch.float64))


def data():
    torch.manual_seed(1)
    return torch.randn(6, 100, 4, dtype=torch.float64), torch.randn(6, 100, 4, dtype=torch.float64)


def gradients(network, path, rows):
    """Of the mean square error over these rows of the data."""
    x, y = (part[rows] for part in data())
    with use_path(path):
        (network(x) - y).square().mean().backward()
    return {name.removeprefix("module."): p.grad for name, p in network.named_parameters()}


def work(rank, folder):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    found = {}
    for path in PATHS:
        parallel = nn.parallel.DistributedDataParallel(model())
        found[path] = gradients(parallel, path, slice(3 * rank, 3 * rank + 3))
    torch.save(found, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.skipif(not distributed.is_available(), reason="torch without torch.distributed")
def test_gradients_are_those_of_one_process(tmp_path):
    spawn(work, (str(tmp_path),), nprocs=2)
    halves = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for path in PATHS:
        wanted, alone = gradients(model(), path, slice(0, 6)), gradients(model(), path, slice(0, 3))
        for name, gradient in wanted.items():
            for rank in range(2):
                assert_near(halves[rank][path][name], gradient, 1e-10, f"{name} by {path} in process {rank}")
        assert any((alone[name] - wanted[name]).abs().max() > 1e-3 * wanted[name].abs().max() for name in wanted)
