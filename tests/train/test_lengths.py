"""Batches of rows of similar length: the same rows, less padding, the same numbers, the same bits when continued."""

import random

import numpy as np
import pytest
import torch

from statespan.data.base import Arrays, Dataset, Info, Windows, trim
from statespan.data.tokens import documents, join, padded
from statespan.models import build
from statespan.train import ConfigError, evaluate, fit, read_recipe, recipes
from statespan.train import loop as loops
from statespan.train.order import SHAPES, BatchPlan, cut, order
from tests.train.make import assert_same
from tests.train.test_graph import stand_ins  # noqa: F401
from tests.train.test_resume import stop_at  # noqa: F401

LONGEST = 150  # three shapes


def split(n, seed):
    rng = np.random.default_rng(seed)
    pieces = [rng.integers(1, 8, length, dtype=np.uint8) for length in rng.integers(3, LONGEST + 1, n)]
    pieces[0] = rng.integers(1, 8, LONGEST, dtype=np.uint8)
    return documents(join(pieces, np.uint8), rng.integers(0, 3, n).astype(np.uint8), LONGEST)


def dataset():
    info = Info("classification", LONGEST, None, 8, 3)
    return Dataset("words", info, split(50, 1), split(9, 2), split(21, 3))


def recipe(**train):
    model = {"name": "classifier", "d_model": 4, "d_state": 4, "n_layers": 1, "layer": "s4d", "bidirectional": True}
    settings = {"epochs": 2, "batch": 6, "log_every": 3, "tensorboard": False, "group_lengths": True, **train}
    model |= {"norm": "batch", "dropout": 0.1, "pool": "mean"}
    return read_recipe({"name": "words", "data": {"name": "words"}, "model": model, "train": settings})


def run(folder, resume=False, **train):
    return fit(recipe(**train), folder, resume=resume, data=dataset(), progress=False, device="cpu")


@pytest.mark.parametrize(("world", "accumulate"), [(1, 1), (1, 3), (2, 1), (2, 3)])
def test_every_row_once_an_epoch_and_little_padding(world, accumulate):
    lengths = torch.randint(1, 1001, (5003,), generator=torch.Generator().manual_seed(0))
    lengths[17] = 1000
    plans = [BatchPlan(5003, 12, accumulate, world, rank, seed=5, lengths=lengths) for rank in range(world)]
    seen, padded, different = [], 0, set()
    for step in range(416, 832):  # the second epoch
        for piece in range(accumulate):
            for plan in plans:
                index, length = plan.index(step, piece), plan.length(step, piece)
                assert len(index) == 12 // (world * accumulate)
                assert length == cut(int(lengths[index].max()), 1000)
                seen += index.tolist()
                padded += length * len(index)
                different.add(length)
    assert len(set(seen)) == len(seen) == 4992
    assert set(seen) == set(order(5, 1, 5003)[:4992].tolist())  # the rows left over are those of any other plan
    assert padded < 1.2 * lengths[seen].sum()
    assert padded > 0.5 * 1.02 * 1000 * 4992  # the mean length: nothing is cut off
    assert different == set(plans[0].shapes())
    rows = torch.cat([plan.index(7, piece) for piece in range(accumulate) for plan in plans])
    assert torch.equal(rows, BatchPlan(5003, 12, seed=5, lengths=lengths).index(7, 0))
    again = BatchPlan(5003, 12, seed=5, lengths=lengths)
    assert not torch.equal(again.index(7, 0), again.index(7 + 416, 0))
    long, later = ([again.length(step + start, 0) for step in range(416)] for start in (0, 416))
    assert abs(np.corrcoef(long, np.arange(416))[0, 1]) < 0.15  # short and long ones in turn,
    assert abs(np.corrcoef(long, later)[0, 1]) < 0.15  # and in another turn in every epoch


@pytest.mark.parametrize("longest", [1, 63, 64, 65, 500, 512, 513, 2000, 2048, 4096, 16384])
def test_few_shapes_that_suffice(longest):
    made = [cut(length, longest) for length in range(1, longest + 1)]
    assert all(length <= shape <= longest for length, shape in enumerate(made, 1))
    assert len(set(made)) <= SHAPES
    assert all(cut(shape, longest) == shape for shape in made)  # no more than is needed
    assert all(shape == longest or shape % 64 == 0 for shape in made)


def test_a_batch_cut_to_its_needs_has_the_same_gradients():
    data = dataset()
    options = {**recipe().model, "dropout": 0.0}
    model = build(options.pop("name"), data.info, options).double().train()
    batch = data.train.batch(data.train.lengths.argsort()[:7].tolist())
    found = []
    for some in (batch, trim(batch, int(batch.lengths.max()))):
        model.zero_grad()
        score = model(some.x, lengths=some.lengths)
        score.square().sum().backward()
        found.append([score.detach(), *(p.grad.clone() for p in model.parameters())])
    assert batch.lengths.max() < LONGEST
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_the_numbers_of_an_evaluation_stay(tmp_path):
    run(tmp_path)
    for rows in (None, 5):
        plain, grouped = (
            evaluate(tmp_path, data=dataset(), overrides=[f"train.group_lengths={on}"], rows=rows, device="cpu")
            for on in ("false", "true")
        )
        assert plain["accuracy"] == grouped["accuracy"]
        assert grouped["loss"] == pytest.approx(plain["loss"], rel=1e-5)


@pytest.mark.parametrize("settings", [{}, {"accumulate": 2, "resident": "never", "ema": 0.8}])
def test_interrupted_runs_end_with_the_same_bits(settings, tmp_path, stop_at):  # noqa: F811
    def go(folder, resume=False):
        return run(folder, resume, **settings)

    whole = go(tmp_path / "whole")
    for step in sorted(random.Random(0).sample(range(16), 3)):
        stop_at.clear()
        stop_at.add(step)
        with pytest.raises(loops.Interrupted):
            go(tmp_path / "broken", resume=True)
    stop_at.clear()
    assert go(tmp_path / "broken", resume=True).test == whole.test
    assert_same(tmp_path / "broken", tmp_path / "whole")


def test_a_graph_for_each_shape_trains_as_the_plain_step(tmp_path, stand_ins):  # noqa: F811
    run(tmp_path / "plain")
    made = stand_ins()
    run(tmp_path / "graph")
    assert [shape[1] for shape in made[0].forwards] == [150, 128, 64]
    assert_same(tmp_path / "graph", tmp_path / "plain")


def test_data_of_one_length_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"train.group_lengths is true; it must be false for data whose rows all"):
        fit(recipes.read("digits-s4d", ["train.group_lengths=true"]), tmp_path, progress=False)


def test_a_row_of_two_documents_is_as_long_as_the_longer_one():
    pairs = {"lengths": np.array([[3, 9], [7, 2]], np.int32), "y": np.zeros(2)}
    windows = Windows({"tokens": np.zeros(20)}, starts=np.zeros((2, 2)), length=9, prepare=padded, each=pairs)
    assert windows.lengths.tolist() == [9, 7]
    assert Arrays({"x": np.zeros((2, 3))}, padded).lengths is None
