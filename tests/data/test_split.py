"""Splits: each row once, the sizes that were asked for, the same for the same seed."""

import numpy as np
import pytest
import torch
from sklearn.model_selection import train_test_split

from statespan.data.split import as_sklearn, shuffled, split, stratified


def test_the_order_is_torchs():
    wanted = torch.randperm(100, generator=torch.Generator().manual_seed(3))
    assert shuffled(100, 3).tolist() == wanted.tolist()


def test_parts_have_each_row_once_and_their_sizes():
    parts = split(1009, (0.1, 0.25), seed=4)
    assert [len(part) for part in parts] == [1009 - 100 - 252, 100, 252]  # rounded down
    assert np.concatenate(parts).tolist() == shuffled(1009, 4).tolist()


def test_classes_are_shared_out_in_proportion():
    labels = np.repeat([0, 1, 2], [500, 300, 200])
    parts = stratified(labels, (0.15, 0.25), seed=0)
    assert [np.bincount(labels[part]).tolist() for part in parts] == [[300, 180, 120], [75, 45, 30], [125, 75, 50]]
    assert sorted(np.concatenate(parts).tolist()) == list(range(1000))
    assert all((np.diff(part) > 0).all() for part in parts)


@pytest.mark.parametrize(("n", "share", "held"), [(7, 0.25, 2), (5, 0.25, 1), (2, 0.2, 0), (3, 0.2, 1), (10, 0.25, 3)])
def test_a_share_is_rounded_to_the_nearest_row(n, share, held):
    train, valid = stratified(np.zeros(n, int), (share,), seed=0)
    assert (len(train), len(valid)) == (n - held, held)


def test_which_rows_is_chance_and_the_seeds():
    labels = np.arange(400) % 2
    first, again, other = (stratified(labels, (0.5,), seed)[1].tolist() for seed in (0, 0, 1))
    assert first == again != other
    gaps = np.diff(np.array(first)[labels[first] == 0])
    assert len(set(gaps.tolist())) > 3  # not every second one
    ends = [np.mean(part) for part in split(400, (0.5,), seed=0)]
    assert np.abs(np.array(ends) - 200).max() < 30  # nor the last ones


@pytest.mark.parametrize("shares", [(1.0,), (0.5, 0.5), (-0.1,), (0.6, 0.6), (float("nan"),)])
def test_shares_that_leave_nothing_are_refused(shares):
    for call in (lambda: split(10, shares, 0), lambda: stratified(np.zeros(10), shares, 0)):
        with pytest.raises(ValueError, match="shares must be at least 0 and less than 1 together"):
            call()


@pytest.mark.parametrize("counts", [(2, 3), (7, 7, 7), (40, 41, 42, 43, 44), (1, 1, 500, 13), (2130, 2140, 2131, 2129)])
@pytest.mark.parametrize(("share", "seed"), [(0.7, 0), (0.5, 1), (0.7, 17), (0.61, 3)])
def test_rows_of_scikit_learn(counts, share, seed):
    """Also in their order, with classes of equal and of unequal size in mixed rows."""
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)) * 3, np.array(counts) + 1))
    wanted = train_test_split(np.arange(len(labels)), train_size=share, random_state=seed, stratify=labels)
    assert [part.tolist() for part in as_sklearn(labels, share, seed)] == [part.tolist() for part in wanted]


@pytest.mark.parametrize(("labels", "share"), [([0, 0, 1], 0.7), ([0, 0, 1, 1], 0.25), ([0, 0, 1, 1], 0.9)])
def test_too_few_rows_of_a_class_are_refused_as_by_scikit_learn(labels, share):
    with pytest.raises(ValueError, match="class"):
        train_test_split(np.arange(len(labels)), train_size=share, random_state=0, stratify=labels)
    with pytest.raises(ValueError, match=f"share {share} of {len(labels)} rows must leave a row for each of the 2 cl"):
        as_sklearn(np.array(labels), share, 0)
