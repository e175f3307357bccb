"""A package that adds a schedule of learning rates: the cosine, restarted several times.

Its pyproject.toml says

    [project.entry-points."statespan.schedules"]
    restarts = "restarts_schedule:restarts"

and then any recipe can use it:

    statespan train digits-s4d train.schedule=restarts "train.schedule_options={cycles: 3}"
"""

from __future__ import annotations

import math

from statespan.train import Train


def restarts(train: Train, step: int, total: int, steps_per_epoch: int, *, cycles: int = 2) -> float:
    """The factor of the learning rates in update ``step`` of ``total``, after the warm-up."""
    if cycles < 1:
        raise ValueError(f"cycles must be at least 1, got {cycles}")
    done = (step - train.warmup) / max(1, total - train.warmup)  # in [0, 1)
    return train.min_lr + (1 - train.min_lr) * 0.5 * (1 + math.cos(math.pi * (cycles * done % 1)))
