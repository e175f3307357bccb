"""Turns row numbers into batches on the device: gathered there for small data, else prefetched by a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import torch
from torch import Tensor

from statespan.data.base import Batch, Split

PREFETCH = 4  # batches
MEMORY_SHARE = 8  # data larger than 1 / MEMORY_SHARE of the device's memory stays off it


class Feed:
    """The batches of one split on one device.

    Example:
        >>> import numpy as np
        >>> from statespan.data.base import Arrays
        >>> split = Arrays({"x": np.arange(6.0)}, lambda rows: Batch(rows["x"], rows["x"]))
        >>> feed = Feed(split, torch.device("cpu"))
        >>> [batch.x.tolist() for batch in feed.batches([torch.tensor([5, 0]), torch.tensor([3])])]
        [[5.0, 0.0], [3.0]]
    """

    def __init__(self, split: Split, device: torch.device, resident: str = "auto") -> None:
        self.split, self.device = split, device
        size = sum(array.nbytes for array in split.arrays.values())
        self.resident = resident == "always" or (resident == "auto" and size <= _largest_resident(device))
        self.array_device = device if self.resident else torch.device("cpu")
        self.arrays = split.tensors(self.array_device)

    def batches(self, indices: Iterable[Tensor]) -> Iterator[Batch]:
        """The batch of each tensor of row numbers, in order."""
        if self.resident:
            for index in indices:
                yield self.split.take(self.arrays, index.to(self.array_device, non_blocking=True))
            return
        waiting = iter(indices)
        pool = ThreadPoolExecutor(1, thread_name_prefix="statespan-feed")
        try:
            futures = deque(pool.submit(self._prepare, index) for index in islice(waiting, PREFETCH))
            while futures:
                batch = futures.popleft().result()
                futures.extend(pool.submit(self._prepare, index) for index in islice(waiting, 1))
                yield moved(batch, self.device)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _prepare(self, index: Tensor) -> Batch:
        batch = self.split.take(self.arrays, index)
        return batch.map(Tensor.pin_memory) if self.device.type == "cuda" else batch


def moved(batch: Batch, device: torch.device) -> Batch:
    """Move the batch to a device, asynchronously from pinned memory."""
    return batch.map(lambda tensor: tensor.to(device, non_blocking=True))


def _largest_resident(device: torch.device) -> float:
    """The bytes that data may take on a device: a fixed share, so that its placement is the same in every run."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory / MEMORY_SHARE
    return float("inf") if device.type == "cpu" else 2**30
