"""Splits by seed: pure functions of the number of rows (or their labels), the shares and the seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from statespan._check import check_int


def shuffled(n: int, seed: int) -> np.ndarray[Any, Any]:
    """The numbers 0 … n-1 in an order that depends on the seed alone: torch's, so the reference's splits are ours.

    Example:
        >>> sorted(shuffled(5, seed=0).tolist())
        [0, 1, 2, 3, 4]
    """
    check_int("n", n, minimum=0)
    check_int("seed", seed, minimum=0)
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).numpy()


def split(n: int, shares: Sequence[float], seed: int) -> list[np.ndarray[Any, Any]]:
    """Split n rows at random: the first part is what the given shares leave over.

    Args:
        n: Number of rows.
        shares: Share of each further part, each rounded down, so ``(0.1,)`` makes a training and a validation part.
        seed: The order's.

    Returns:
        Row numbers of each part; together they are all rows, each once.

    Example:
        >>> [len(part) for part in split(1005, (0.1, 0.1), seed=42)]
        [805, 100, 100]
    """
    _check_shares(shares)
    counts = [int(n * share) for share in shares]
    return np.split(shuffled(n, seed), np.cumsum([n - sum(counts), *counts])[:-1])


def stratified(labels: np.ndarray[Any, Any], shares: Sequence[float], seed: int) -> list[np.ndarray[Any, Any]]:
    """:func:`split` of each class by itself, so that every part has the classes in the same proportions.

    Args:
        labels: (n,) class of each row.
        shares: Share of each further part, rounded to the nearest number of rows of a class.
        seed: The order's.

    Returns:
        Row numbers of each part, in ascending order.

    Example:
        >>> [part.tolist() for part in stratified(np.array([0, 0, 1, 1]), (0.5,), seed=0)]  # one of each class
        [[0, 2], [1, 3]]
    """
    _check_shares(shares)
    parts: list[list[np.ndarray[Any, Any]]] = [[] for _ in range(len(shares) + 1)]
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        rows = rows[shuffled(len(rows), seed)]
        ends = np.cumsum([round(len(rows) * share) for share in reversed(shares)])[::-1]
        for part, some in zip(parts, np.split(rows, len(rows) - ends)):
            part.append(some)
    empty: list[np.ndarray[Any, Any]] = [np.zeros(0, dtype=np.int64)]
    return [np.sort(np.concatenate(part or empty)) for part in parts]


def _check_shares(shares: Sequence[float]) -> None:
    if not all(0 <= share < 1 for share in shares) or sum(shares) >= 1:
        raise ValueError(f"shares must be at least 0 and less than 1 together, got {tuple(shares)}")
