"""Evaluation: every sample exactly once, with any number of processes and any size of the last batch."""

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
    """The metrics of a model on a split.

    Args:
        processes: Add up their sums.
        module: The objective as ``processes`` set it up.
        task: Its task.
        feed: The split.
        batch: Samples a process takes at once.
        dt_scale: Step of the data relative to that of training.
        rows: Only the first ``rows`` of the split; all if not given.
        group_lengths: Take samples of similar length together, and no more padding than they need.
        poll: Called after each batch; may raise.

    Returns:
        The metrics, or nothing for a split without samples.
    """
    n = len(feed.split) if rows is None else min(rows, len(feed.split))
    if n == 0:
        return {}
    world, rank, device = processes.world_size, processes.global_rank, processes.device
    rounds = -(-n // (batch * world))  # the same in all processes, which wait for each other
    starts = [(number * world + rank) * batch for number in range(rounds)]
    lengths = feed.split.lengths if group_lengths else None
    ordered = torch.arange(n) if lengths is None else torch.from_numpy(lengths[:n]).argsort(stable=True)
    # a process that has nothing left in the last round takes the first sample and counts it 0 times
    indices = [ordered[start : start + batch] if start < n else ordered[:1] for start in starts]
    wide = torch.float32 if device.type == "mps" else torch.float64
    sums: Any = torch.zeros(len(task.sums), dtype=wide, device=device)
    module.eval()
    try:
        for start, index, part in zip(starts, indices, feed.batches(index.to(feed.place) for index in indices)):
            if lengths is not None:
                part = trim(part, cut(int(lengths[index].max()), int(lengths.max())))
            sums += module(*part, dt_scale=dt_scale).to(wide) * (start < n)
            poll()
    finally:
        module.train()
    if world > 1:
        sums = processes.all_reduce(sums, reduce_op="sum")
    return task.metrics(dict(zip(task.sums, sums.tolist())))
