"""Training in memory, by the loop of :mod:`statespan.train`.

The result is the same for the same data, settings and seed; the caller's random state does not change.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from statespan.train.config import Train
from statespan.train.device import one_process
from statespan.train.loop import Loop, Splits
from statespan.train.sinks import History, Memory
from statespan.train.tasks import Task

LEAST_STEPS = 25  # between two validations, where their number was given
VALID_BATCH = 64  # rows validated together, at least


def train_config(
    n: int,
    *,
    batch: int,
    epochs: int | None = None,
    steps: int | None = None,
    validations: int | None = None,
    lr: float = 0.004,
    weight_decay: float = 0.05,
    patience: int | None = None,
    compile: Literal["auto", "none"] = "auto",
    seed: int = 0,
    threads: int | None = None,
) -> Train:
    """How to train on n rows: AdamW with warm-up, cosine and clipping, the lesser of ``epochs`` and ``steps``.

    Without a number of ``validations`` there is one after each epoch. ``compile`` is "auto" to capture an update as a
    CUDA graph on a CUDA device, or "none".
    """
    batch = min(batch, n)
    per_epoch = n // batch
    total = min(size for size in (steps, None if epochs is None else epochs * per_epoch) if size is not None)
    every = per_epoch if validations is None else max(total // validations, min(LEAST_STEPS, total))
    return Train(
        steps=total,
        batch=batch,
        lr=lr,
        weight_decay=weight_decay,
        warmup=max(1, total // 10),
        clip=1.0,
        patience=patience,
        validate_every=every,
        log_every=every,
        valid_batch=max(VALID_BATCH, batch),
        seed=seed,
        compile=compile,
        threads=threads,
    )


def fit_network(
    model: nn.Module, data: Splits, train: Train, *, task: Task, device: torch.device, progress: bool = False
) -> History:
    """Train a model in place; with a validation split it ends with the weights that were best on it."""
    memory = Memory()
    with one_process(train, device) as process:
        loop = Loop(train, data, model, task=task, processes=process, sink=memory)
        with loop.few_threads():
            loop.run(progress)
            loop.load_best()
    model.eval()
    return memory.history
