"""The small parts: schedules, LAMB, averages, order, feed, graph of names."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from statespan.data.base import Arrays, Batch, Dataset, Info
from statespan.train import Train
from statespan.train.ema import Average
from statespan.train.feed import Feed
from statespan.train.optim import Lamb, rate
from statespan.train.order import BatchPlan, order
from statespan.train.tasks import TASKS, task_of


def rates(total=10, per_epoch=2, **train):
    return [rate(Train(**train), step, total, per_epoch) for step in range(total)]


def test_schedules():
    cosine = [0.5 * (1 + math.cos(math.pi * t / 8)) for t in range(8)]
    assert rates(warmup=2) == pytest.approx([0.5, 1.0, *cosine])
    assert rates(warmup=2, min_lr=0.5) == pytest.approx([0.5, 1.0, *(0.5 + 0.5 * c for c in cosine)])
    assert rates(decay_steps=5)[5:] == pytest.approx([0.0] * 5)
    assert rates(schedule="multistep", milestones=(1, 3), factor=0.1) == pytest.approx([1, 1] + [0.1] * 4 + [0.01] * 4)
    assert rates(schedule="constant", warmup=4) == [0.25, 0.5, 0.75, 1.0, *[1.0] * 6]


def test_lamb_is_its_algorithm():
    """Three steps in plain numpy."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((3, 4))
    parameter = nn.Parameter(torch.tensor(weight))
    optimizer = Lamb([parameter], lr=0.1, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.05)
    m = v = np.zeros((3, 4))
    for t in range(1, 4):
        g = rng.standard_normal((3, 4))
        parameter.grad = torch.tensor(g)
        optimizer.step()
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
        r = m / (1 - 0.8**t) / (np.sqrt(v / (1 - 0.9**t)) + 1e-6) + 0.05 * weight
        weight = weight - 0.1 * np.linalg.norm(weight) / np.linalg.norm(r) * r
        assert np.allclose(parameter.detach().numpy(), weight, rtol=1e-6)
    before = parameter.detach().clone()
    optimizer.found_inf = torch.tensor(1.0)
    parameter.grad = torch.full((3, 4), float("nan"), dtype=torch.float64)
    optimizer.step()
    assert torch.equal(parameter.detach(), before)
    assert all(torch.isfinite(value).all() for value in optimizer.state[parameter].values())


def test_average():
    model = nn.Linear(2, 1)
    average = Average(model, 0.9)
    wanted = model.weight.detach().clone()
    for step in range(100):
        with torch.no_grad():
            model.weight.add_(1.0)
        average.prepare(step)
        average.update(torch.tensor(float(step == 50)))  # a bad step counts for nothing
        decay = min(0.9, (1 + step) / (10 + step))
        wanted = wanted if step == 50 else decay * wanted + (1 - decay) * model.weight.detach()
    own = model.weight.detach().clone()
    with average.swapped():
        assert torch.allclose(model.weight, wanted)
    assert torch.equal(model.weight, own)


@pytest.mark.parametrize(("world", "accumulate"), [(1, 1), (1, 3), (2, 1), (2, 3)])
def test_processes_and_pieces_share_a_batch(world, accumulate):
    plans = [BatchPlan(50, 12, accumulate, world, rank, seed=5) for rank in range(world)]
    for step in (0, 3, 4, 11):
        rows = torch.cat([plan.index(step, piece) for piece in range(accumulate) for plan in plans])
        assert torch.equal(rows, order(5, step // 4, 50)[12 * (step % 4) : 12 * (step % 4) + 12])
    seen = torch.cat([BatchPlan(50, 10, seed=5).index(step, 0) for step in range(5)])
    assert sorted(seen.tolist()) == list(range(50))
    assert order(5, 0, 50).tolist() != order(5, 1, 50).tolist() != order(6, 1, 50).tolist()


def test_prefetching_gives_the_same_batches_and_errors():
    split = Arrays({"x": np.arange(40.0).reshape(20, 2)}, lambda rows: Batch(rows["x"], rows["x"]))
    indices = [torch.tensor([i, 19 - i]) for i in range(20)]
    one, two = (Feed(split, torch.device("cpu"), how) for how in ("always", "never"))
    assert [b.x.tolist() for b in one.batches(indices)] == [b.x.tolist() for b in two.batches(indices)]
    stream = two.batches(BatchPlan(20, 4).stream(0))  # endless
    assert len([next(stream) for _ in range(9)]) == 9
    stream.close()

    def broken(rows):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        next(Feed(Arrays(split.arrays, broken), torch.device("cpu"), "never").batches(indices))


def test_errors_are_scaled_to_the_units_of_the_data():
    class Scaled(Dataset):
        scale = (10.0,)

    split = Arrays({"x": np.ones((2, 1, 1), np.float32)}, lambda rows: Batch(rows["x"], rows["x"][:, 0] + 1))
    task = task_of(Scaled("a", Info("regression", 1, 1, None, 1), split, split, split))
    sums = task.add(nn.Flatten(), split.batch([0, 1]), 1.0)
    assert task.metrics(dict(zip(task.sums, sums.tolist()))) == {"loss": 1.0, "rmse": 10.0, "mae": 10.0}
    assert task.loss(nn.Flatten(), split.batch([0])) == 1.0
    with pytest.raises(ValueError, match=r"must return shape \(2, 1\), got \(2, 1, 1\)"):
        task.loss(nn.Identity(), split.batch([0, 1]))


def test_tokens_that_count_and_those_that_do_not():
    """By logits, or by a model that has losses of its own: below 0 and behind a length nothing counts."""

    class Own(nn.Module):
        def token_losses(self, x, y, lengths=None):
            return nn.functional.cross_entropy(x.mT, y, reduction="none")

    x = torch.randn(2, 4, 3)
    y, lengths = torch.tensor([[2, -1, 0, 1], [1, -3, 2, 0]]), torch.tensor([4, 1])
    nats = -x.log_softmax(-1)
    wanted = (nats[0, 0, 2] + nats[0, 2, 0] + nats[0, 3, 1] + nats[1, 0, 1]) / 4
    logits = nn.Module()
    logits.forward = lambda x, lengths=None: x
    for model in (logits, Own()):
        task = TASKS["masked"]
        torch.testing.assert_close(task.loss(model, Batch(x, y, lengths)), wanted)
        assert task.add(model, Batch(x, y, lengths), 1.0)[1] == 4
        assert task.loss(model, Batch(x, -1 - y.abs(), lengths)) == 0.0  # nothing at all


def test_what_is_better():
    accuracy, rmse = TASKS["classification"], TASKS["regression"]
    assert accuracy.better(0.5, None)
    assert accuracy.better(0.6, 0.5)
    assert not accuracy.better(0.5, 0.5)
    assert rmse.better(0.4, 0.5)
    assert not rmse.better(float("nan"), None)
    assert not rmse.better(float("inf"), None)


def test_importing_costs_nothing():
    """The names of statespan.train are there without Lightning, YAML and the rest."""
    program = (
        "import sys, statespan.train as t; heavy = {'lightning', 'yaml', 'safetensors', 'rich', 'matplotlib'};"
        "print(heavy & {m.partition('.')[0] for m in sys.modules}, 'fit' in t.__all__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set() True\n"
