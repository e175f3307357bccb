"""Evaluation: every sample exactly once, in any number of processes, whatever the last batch has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from statespan.data.base import trim
from statespan.train.feed import Feed
from statespan.train.order import cut
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
    dt_scale: float = 1.0,
    poll: Callable[[], None] = lambda: None,
    rows: int | None = None,
    group_lengths: bool = False,
) -> dict[str, float]:
    """The metrics of a model on a split.

    Args:
        fabric: Adds up over processes.
        module: The objective as Fabric wrapped it.
        task: Its task.
        feed: The split.
        batch: Samples a process takes at once.
        dt_scale: Step of the data relative to that of training.
        poll: Called after each batch; may raise.
        rows: Only so many of the split, the first ones; all if not given.
        group_lengths: Take samples of similar length together, and no more padding than they need.

    Returns:
        The metrics, or nothing for a split without samples.
    """
    n = len(feed.split) if rows is None else min(rows, len(feed.split))
    if n == 0:
        return {}
    rounds = -(-n // (batch * fabric.world_size))  # the same in all processes, which wait for each other
    starts = [(number * fabric.world_size + fabric.global_rank) * batch for number in range(rounds)]
    lengths = feed.split.lengths if group_lengths else None
    taken = torch.arange(n) if lengths is None else torch.from_numpy(lengths[:n]).argsort(stable=True)
    # a process that has nothing left in the last round takes the first sample and counts it 0 times
    parts = [taken[s : s + batch] if s < n else taken[:1] for s in starts]
    wide = torch.float32 if fabric.device.type == "mps" else torch.float64
    sums = torch.zeros(len(task.sums), dtype=wide, device=fabric.device)
    module.eval()
    try:
        for start, index, part in zip(starts, parts, feed.batches(index.to(feed.place) for index in parts)):
            if lengths is not None:
                part = trim(part, cut(int(lengths[index].max()), int(lengths.max())))
            sums += module(*part, dt_scale=dt_scale).to(wide) * (start < n)
            poll()
    finally:
        module.train()
    if fabric.world_size > 1:
        total: Any = fabric.all_reduce(sums, reduce_op="sum")
        sums = total
    return task.metrics(dict(zip(task.sums, sums.tolist())))
