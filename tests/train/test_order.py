"""Seeds and orders: functions of their arguments alone, the same for ever."""

import random

import numpy as np
import torch

from statespan.train.order import GROUP, BatchPlan, derive, grouped, order, seed_python, seed_torch


def test_derived_seeds_are_those_of_older_versions():
    """A run is continued with the numbers it was begun with."""
    assert derive(0, "dropout", 17) == 4570805890858319872
    assert 0 <= derive("a") < 2**63
    assert len({derive(*parts) for parts in ((1, 2), (12,), ("1", 2), (1, "2"), (2, 1), (1, 2, 0))}) == 6


def test_the_order_of_an_epoch_is_that_of_its_seed():
    wanted = torch.randperm(20, generator=torch.Generator().manual_seed(derive(5, "order", 3)))
    assert torch.equal(order(5, 3, 20), wanted)


def test_global_generators_are_seeded_with_the_whole_seed():
    seed = 2**40 + 2**31 + 5
    seed_python(seed)
    assert random.random() == random.Random(seed).random()
    assert np.random.random() == np.random.RandomState(2**31 + 5).random_sample()
    seed_torch(torch.device("cpu"), seed)
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(seed)))


def test_rows_are_sorted_within_their_group_alone():
    batch, n = 2, 2 * GROUP * 2 + 7  # two groups, a rest of three batches and a row
    lengths = torch.randint(1, 1000, (n,), generator=torch.Generator().manual_seed(0))
    rows = torch.randperm(n, generator=torch.Generator().manual_seed(1))
    found = grouped(rows, lengths, batch, seed=2)
    assert sorted(found.tolist()) == list(range(n))
    assert found[-1] == rows[-1]
    group_of = torch.empty(n, dtype=torch.int64)
    group_of[rows] = torch.arange(n) // (GROUP * batch)
    batches = found[: n - 1].view(-1, batch)
    assert (group_of[batches[:, 0]] == group_of[batches[:, 1]]).all()
    for group in (0, 1, 2):
        own = lengths[batches[group_of[batches[:, 0]] == group]]
        ordered = own[own[:, 0].argsort(stable=True)].flatten()
        assert (ordered.diff() >= 0).all()
    assert not torch.equal(found, grouped(rows, lengths, batch, seed=3))
    assert (group_of[batches[:, 0]].diff() < 0).any()  # and the batches of all are mixed


def test_a_plan_goes_on_for_ever_and_keeps_two_epochs():
    lengths = torch.arange(1, 11)
    plan = BatchPlan(10, 4, accumulate=2, lengths=lengths)
    stream = plan.stream(1)
    found = [next(stream).tolist() for _ in range(12)]
    assert found == [plan.index(step, piece).tolist() for step in range(1, 7) for piece in range(2)]
    assert list(plan._epochs) == [2, 3]
    fresh = BatchPlan(10, 4, accumulate=2, lengths=lengths)
    assert fresh.index(6, 1).tolist() == found[-1]
    seeded = [BatchPlan(10, 4, seed=seed, lengths=lengths) for seed in range(5)]
    assert {tuple(plan.index(0, 0).tolist()) for plan in seeded} != {tuple(found[0])}
