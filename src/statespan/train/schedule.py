"""Learning rates: what each base rate is multiplied by at a step.

All but "plateau" are pure functions of the step; "plateau" adds one number, kept in :class:`~.state.Progress`.
"""

from __future__ import annotations

import math

from statespan.train.config import Train


def rate(train: Train, step: int, total: int, steps_per_epoch: int) -> float:
    """The factor of the learning rates at an update.

    Args:
        train: The settings.
        step: Number of updates made before this one.
        total: Number of updates of the whole run.
        steps_per_epoch: Updates an epoch.

    Returns:
        A number in [0, 1]: linear warm-up times the schedule.

    Example:
        >>> train = Train(warmup=2, schedule="cosine")
        >>> [round(rate(train, step, 6, 3), 3) for step in range(6)]
        [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
    """
    if step < train.warmup:
        return (step + 1) / train.warmup
    if train.schedule == "cosine":
        end = train.decay_steps or total
        done = min(1.0, (step - train.warmup) / max(1, end - train.warmup))
        return train.min_lr + (1 - train.min_lr) * 0.5 * (1 + math.cos(math.pi * done))
    if train.schedule == "multistep":
        return float(train.factor ** sum(step // steps_per_epoch >= epoch for epoch in train.milestones))
    return 1.0
