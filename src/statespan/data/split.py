"""Seeded splits: pure functions of the number of rows (or their labels), the shares and the seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from statespan._check import check_int
from statespan.data.base import Array, Arrays, Batch


def shuffled(n: int, seed: int) -> Array:
    """The numbers 0 … n-1 shuffled by torch with this seed, which gives the splits of the reference.

    Example:
        >>> sorted(shuffled(5, seed=0).tolist())
        [0, 1, 2, 3, 4]
    """
    check_int("n", n, minimum=0)
    check_int("seed", seed, minimum=0)
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).numpy()


def split(n: int, shares: Sequence[float], seed: int) -> list[Array]:
    """Split n rows at random into a first part, which is the rest, and one part for each share, rounded down.

    Shares ``(0.1,)`` give a training and a validation part. Returns the row numbers of each part.

    Example:
        >>> [len(part) for part in split(1005, (0.1, 0.1), seed=42)]
        [805, 100, 100]
    """
    _check_shares(shares)
    counts = [int(n * share) for share in shares]
    return np.split(shuffled(n, seed), np.cumsum([n - sum(counts), *counts])[:-1])


def stratified(labels: Array, shares: Sequence[float], seed: int) -> list[Array]:
    """As :func:`split`, with the classes in the same proportions in every part, as nearly as whole rows allow.

    The labels (n,) are the class of each row. Shares are rounded to the nearest number of rows, which are in ascending
    order.

    Example:
        >>> labels = np.array([0, 0, 1, 1])
        >>> [labels[part].tolist() for part in stratified(labels, (0.5,), seed=0)]
        [[0, 1], [0, 1]]
    """
    _check_shares(shares)
    classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    rows = np.concatenate([np.zeros(0, np.int64), *(group[shuffled(len(group), seed)] for group in classes)])
    parts: list[Array] = []
    unshared = 1.0
    for share in reversed(shares):  # every n-th row, in the order of the classes
        count = np.floor(np.arange(len(rows) + 1) * (share / unshared) + 0.5 + 1e-9)
        chosen = np.diff(count) > 0
        parts.insert(0, np.sort(rows[chosen]))
        rows, unshared = rows[~chosen], unshared - share
    return [np.sort(rows), *parts]


def as_sklearn(labels: Array, share: float, seed: int) -> tuple[Array, Array]:
    """The row numbers that scikit-learn's ``train_test_split`` gives, which splits of other code are made with.

    They are those of ``train_test_split(rows, train_size=share, random_state=seed, stratify=labels)`` in their order,
    without scikit-learn. The labels (n,) are the class of each row. The first part has ``share`` of the rows, rounded
    down.

    Example:
        >>> first, second = as_sklearn(np.array([0, 0, 1, 1, 0, 0]), 0.5, seed=0)
        >>> sorted([*first.tolist(), *second.tolist()])
        [0, 1, 2, 3, 4, 5]
    """
    check_int("seed", seed, minimum=0)
    n, (classes, number, counts) = len(labels), np.unique(labels, return_inverse=True, return_counts=True)
    first = int(np.floor(share * n))
    if not len(classes) <= min(first, n - first) or counts.min() < 2:
        raise ValueError(
            f"share {share} of {n} rows must leave a row for each of the {len(classes)} classes in both parts, and "
            "each class must have two rows"
        )
    random = np.random.RandomState(seed)  # numpy keeps its numbers the same in all versions
    taken = _counts(counts, first, random)
    left = _counts(counts - taken, n - first, random)
    parts: tuple[list[Array], list[Array]] = ([], [])
    for i, (count, begin, more) in enumerate(zip(counts, taken, left)):
        rows = np.flatnonzero(number == i)[random.permutation(count)]
        parts[0].append(rows[:begin])
        parts[1].append(rows[begin : begin + more])
    one, other = (random.permutation(np.concatenate(part)) for part in parts)
    return one, other


def _counts(counts: Array, total: int, random: np.random.RandomState) -> Array:
    """How many of ``total`` rows each class gets: rounded down, then one more where the remainder is largest.

    Classes with the same remainder draw lots. The sums are in scikit-learn's order, because remainders are compared.
    """
    wanted = counts / counts.sum() * total
    whole = np.floor(wanted)
    remainder, lacking = wanted - whole, int(total - whole.sum())
    for value in np.unique(remainder)[::-1]:
        if lacking == 0:
            break
        equal = np.flatnonzero(remainder == value)
        chosen = random.choice(equal, size=min(len(equal), lacking), replace=False)
        whole[chosen] += 1
        lacking -= len(chosen)
    return whole.astype(np.int64)


def hold_out(
    train: Mapping[str, Array],
    test: Mapping[str, Array],
    prepare: Callable[[dict[str, Tensor]], Batch],
    *,
    valid: float,
    seed: int,
) -> tuple[Arrays, Arrays, Arrays]:
    """The splits of data with a test set: the share ``valid`` of the training rows becomes the validation set."""
    learned, held_out = split(len(next(iter(train.values()))), (valid,), seed)
    first, second = ({name: array[rows] for name, array in train.items()} for rows in (learned, held_out))
    return Arrays(first, prepare), Arrays(second, prepare), Arrays(test, prepare)


def _check_shares(shares: Sequence[float]) -> None:
    if not all(0 <= share < 1 for share in shares) or sum(shares) >= 1:
        raise ValueError(f"shares must be at least 0 and less than 1 together, got {tuple(shares)}")
