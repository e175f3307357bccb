"""A tiny dataset, tiny models and a recipe: a run of a fraction of a second."""

import json

import numpy as np
import torch
from torch import nn

from statespan.data.base import Arrays, Batch, Dataset, Info
from statespan.train import fit, read_recipe
from statespan.train.checkpoint import latest

CLASSES, LENGTH = 3, 5


def prepare(rows):
    return Batch(rows["x"].float() / 255, rows["y"].long())


def flip(batch, generator):
    """Augmentation: some rows backwards, and noise."""
    x = batch.x
    some = torch.rand(len(x), 1, 1, generator=generator, device=x.device) < 0.5
    noise = torch.randn(x.shape, generator=generator, device=x.device)
    return batch._replace(x=torch.where(some, x.flip(1), x) + 0.1 * noise)


def split(n, seed):
    random = np.random.default_rng(seed)
    x = random.integers(0, 255, (n, LENGTH, 2), dtype=np.uint8)
    return Arrays({"x": x, "y": (x[:, :, 0].sum(1) % CLASSES).astype(np.uint8)}, prepare)


def dataset(n=26, augment=None, valid=7, test=11):
    info = Info("classification", length=LENGTH, d_input=2, vocabulary=None, d_output=CLASSES)
    return Dataset("toy", info, split(n, 1), split(valid, 2), split(test, 3), augment)


class Toy(nn.Module):
    """A two-layer net on the flattened sequence, with dropout and BatchNorm buffers."""

    def __init__(self, info=None, dropout=0.0, norm=False):
        super().__init__()
        self.first = nn.Linear(2 * LENGTH, 6)
        self.norm = nn.BatchNorm1d(6) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.last(self.dropout(self.norm(self.first(x.flatten(1))).relu()))


def recipe(**train):
    settings = {"epochs": 3, "batch": 4, "log_every": 2, "save_every": 1000, "tensorboard": False, "warmup": 3, **train}
    return read_recipe({"name": "toy", "data": {"name": "toy"}, "model": {"name": "toy"}, "train": settings})


def run(folder, settings=None, *, resume=False, data=None, model=Toy):
    return fit(recipe(**(settings or {})), folder, resume=resume, data=data or dataset(), model=model, progress=False)


def state(folder):
    """Everything of a run that must not depend on interruptions, as bytes."""
    tensors, facts = latest(folder / "checkpoints")
    progress = {key: value for key, value in facts.progress.items() if key != "seconds"}
    found = {name: value.numpy().tobytes() for name, value in tensors.items()}
    return {**found, "progress": json.dumps(progress), "log": (folder / "log.csv").read_bytes()}


def assert_same(folder, other):
    mine, wanted = state(folder), state(other)
    different = [name for name in {**mine, **wanted} if mine.get(name) != wanted.get(name)]
    assert not different, different
