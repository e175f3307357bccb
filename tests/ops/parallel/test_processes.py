"""Four processes of torch.distributed (gloo), started once: they check what test_turns checks in threads, and more."""

import os
import subprocess
import sys

import pytest
import torch

from tests.ops.parallel import processes
from tests.ops.parallel.cases import assert_near_one_process, assert_same, joined
from tests.ops.parallel.stacks import LENGTHS, MODELS, batch, trained

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")


def start(folder, count):
    """The results of the four processes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "tests.ops.parallel.processes", str(folder), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240 + count)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"{rank}.pt") for rank in range(4)]


def compare(found, count):
    for number in range(count):
        each = processes.case(number)
        parts = [part["draws"][number] for part in found if number in part["draws"]]
        assert len(parts) == len(each.sizes)
        assert_near_one_process(joined(parts), each, each.make())


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return start(tmp_path_factory.mktemp("four"), 200)


def test_random_shards(found):
    compare(found, 200)


@pytest.mark.soak
def test_many_random_shards(tmp_path):
    compare(start(tmp_path, 5000), 5000)


def test_the_same_ranks_give_the_same_bits(found):
    for part in found:
        assert len(part["again"]) == 15
        for number, first in part["again"].items():
            for name, value in first.items():
                assert torch.equal(value, part["draws"][number][name]), (number, name)


@pytest.mark.parametrize("name", MODELS)
def test_whole_models(found, name):
    wanted = trained(name, MODELS[name](), LENGTHS["padding"])
    for part in found:
        assert_same(part[name], wanted, 1e-11, name)


def test_data_and_sequence_parallel(found):
    x, y = batch("mean")
    model = processes.mesh_model()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    for part in found:
        assert_same(part["mesh"], processes.gradients(model), 1e-11, "mesh")


def test_bytes_do_not_depend_on_the_length(found):
    for part in found:  # float64 states (1, 8, 16) to three others, and back
        assert part["sent"] == [2 * 3 * 8 * 16 * 8] * 2


def test_a_mesh_of_two_dimensions_is_a_mistake(found):
    assert {part["mistake"] for part in found} == {
        "group must be a mesh with one dimension, such as mesh['sequence'], got 2"
    }
