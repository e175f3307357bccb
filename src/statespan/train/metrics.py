"""Evaluation: every sample exactly once, in any number of processes, whatever the last batch has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from statespan.train.feed import Feed
from statespan.train.tasks import Task

if TYPE_CHECKING:
    from lightning.fabric import Fabric


@torch.no_grad()
def measure(
    fabric: Fabric,
    module: nn.Module,
    task: Task,
    feed: Feed,
    batch: int,
    rate: float = 1.0,
    poll: Callable[[], None] = lambda: None,
    rows: int | None = None,
) -> dict[str, float]:
    """The metrics of a model on a split.

    Args:
        fabric: Adds up over processes.
        module: The objective as Fabric wrapped it.
        task: Its task.
        feed: The split.
        batch: Samples a process takes at once.
        rate: Step of the data relative to that of training.
        poll: Called after each batch; may raise.
        rows: Only so many of the split, the first ones; all if not given.

    Returns:
        The metrics, or nothing for a split without samples.
    """
    n = len(feed.split) if rows is None else min(rows, len(feed.split))
    if n == 0:
        return {}
    rounds = -(-n // (batch * fabric.world_size))  # the same in all processes, which wait for each other
    starts = [(number * fabric.world_size + fabric.global_rank) * batch for number in range(rounds)]
    # a process that has nothing left in the last round takes the first sample and counts it 0 times
    indices = (torch.arange(s if s < n else 0, min(s + batch, n) if s < n else 1, device=feed.place) for s in starts)
    wide = torch.float32 if fabric.device.type == "mps" else torch.float64
    sums = torch.zeros(len(task.sums), dtype=wide, device=fabric.device)
    module.eval()
    try:
        for start, part in zip(starts, feed.batches(indices)):
            sums += module(*part, rate=rate).to(wide) * (start < n)
            poll()
    finally:
        module.train()
    if fabric.world_size > 1:
        total: Any = fabric.all_reduce(sums, reduce_op="sum")
        sums = total
    return task.metrics(dict(zip(task.sums, sums.tolist())))
