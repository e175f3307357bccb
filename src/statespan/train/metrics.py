"""Evaluation: every sample counts exactly once, in any number of processes, also in an incomplete last batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from statespan.data.base import trim
from statespan.train.device import Processes
from statespan.train.feed import Feed
from statespan.train.order import cut
from statespan.train.tasks import Task


@torch.no_grad()
def measure(
    processes: Processes,
    module: nn.Module,
    task: Task,
    feed: Feed,
    *,
    batch: int,
    dt_scale: float = 1.0,
    rows: int | None = None,
    group_lengths: bool = False,
    poll: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """The metrics of a model on a split or its first ``rows``; none for a split without samples.

    ``module`` is the objective as ``processes`` set it up, ``batch`` the number of samples a process takes at once.
    ``group_lengths`` saves padding by batching samples of similar length. ``poll`` is called after each batch and may
    raise.
    """
    n = len(feed.split) if rows is None else min(rows, len(feed.split))
    if n == 0:
        return {}
    world, rank, device = processes.world_size, processes.global_rank, processes.device
    rounds = -(-n // (batch * world))  # the same in all processes, which wait for each other
    starts = [(number * world + rank) * batch for number in range(rounds)]
    lengths = feed.split.lengths if group_lengths else None
    ordered = torch.arange(n) if lengths is None else torch.from_numpy(lengths[:n]).argsort(stable=True)
    # a process without samples in the last round takes the first one with weight 0
    indices = [ordered[start : start + batch] if start < n else ordered[:1] for start in starts]
    dtype = torch.float32 if device.type == "mps" else torch.float64
    sums: Any = torch.zeros(len(task.sums), dtype=dtype, device=device)
    module.eval()
    try:
        for start, index, part in zip(starts, indices, feed.batches(index.to(feed.array_device) for index in indices)):
            if lengths is not None:
                part = trim(part, cut(int(lengths[index].max()), int(lengths.max())))
            sums += module(*part, dt_scale=dt_scale).to(dtype) * (start < n)
            poll()
    finally:
        module.train()
    if world > 1:
        sums = processes.all_reduce(sums, reduce_op="sum")
    return task.metrics(dict(zip(task.sums, sums.tolist())))
