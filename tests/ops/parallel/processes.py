"""A program that runs layers and models in four processes (gloo) and saves what each of them found.

    python -m tests.ops.parallel.processes FOLDER 200

The number is that of random cases.
"""

import os
import sys
import traceback

import torch
import torch._dynamo  # once, before the forks: DistributedDataParallel imports it
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh

from statespan import S4D, sequence_parallel
from statespan.models import Classifier, ClassifierConfig
from tests.ops.parallel.cases import draw, results
from tests.ops.parallel.stacks import LENGTHS, MODELS, SIZES, batch, trained

PLAIN = {"d_input": 2, "d_output": 3, "d_model": 8, "n_layers": 2, "layer": "s4d"}


def case(number):
    """Even draws are for two ranks, odd ones for four."""
    return draw(number, (2, 4)[number % 2])


def mesh_model():
    torch.manual_seed(4)
    return Classifier(ClassifierConfig(**PLAIN), dtype=torch.float64)


def gradients(model):
    return {name.removeprefix("module."): parameter.grad for name, parameter in model.named_parameters()}


def mesh_step(mesh):
    """Two halves of a batch by two shards of each sequence, under DistributedDataParallel over all four."""
    x, y = batch("mean")
    half = slice(2 * mesh.get_local_rank("data"), 2 * mesh.get_local_rank("data") + 2)
    model = nn.parallel.DistributedDataParallel(mesh_model())
    with sequence_parallel(mesh["sequence"]) as shards:
        nn.functional.cross_entropy(model(shards.shard(x[half], sizes=SIZES[2])), y[half]).backward()
    return gradients(model)


def sent(total):
    """Bytes that a layer sends in a forward and backward pass."""
    with sequence_parallel() as shards:
        S4D(8, 16)(shards.shard(torch.randn(1, total, 8))).sum().backward()
    return shards.ranks.sent


def work(rank, folder, count):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "sequence"))
    found = {"draws": {}, "again": {}}
    for number in range(count):
        if number % 2 == 0 and number // 2 % 2 != rank // 2:
            continue  # the other pair's
        each = case(number)
        for name in ("draws", "again")[: 2 if number < 20 else 1]:
            with sequence_parallel(None if number % 2 else mesh["sequence"]) as shards:
                found[name][number] = results(each, each.make(), shards)
    for name in MODELS:
        with sequence_parallel() as shards:
            found[name] = trained(name, MODELS[name](), LENGTHS["padding"], shards)
    found["mesh"], found["sent"] = mesh_step(mesh), [sent(total) for total in (4, 5000)]
    try:
        with sequence_parallel(mesh):
            pass
    except ValueError as error:
        found["mistake"] = str(error)
    torch.save(found, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def main(folder, count):
    children = []
    for rank in range(4):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                work(rank, folder, count)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
