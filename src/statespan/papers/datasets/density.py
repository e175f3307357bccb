"""Images as tokens, predicted one at a time: MNIST, CIFAR-10 and scikit-learn's digits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from statespan._check import check_int
from statespan.data.base import Arrays, Batch, Dataset, Info
from statespan.data.registry import register_dataset
from statespan.data.split import hold_out
from statespan.papers.datasets.images import CIFAR, MNIST, digits, read_cifar, read_mnist


@dataclass(frozen=True)
class Shifted:
    """Turns rows {"x": (B, L) values} into a batch in which each value is predicted from those before it.

    The value v of channel c is the token 1 + v + values·c of the input, 0 stands before the first one; the targets are
    the values themselves.

    Example:
        >>> Shifted(4)({"x": torch.tensor([[3, 0, 2]])})
        Batch(x=tensor([[0, 4, 1]]), y=tensor([[3, 0, 2]]), lengths=None, marks=None, gaps=None)
    """

    values: int  # number of values
    channels: int = 1  # of a pixel, one after the other

    def __call__(self, rows: dict[str, Tensor]) -> Batch:
        """Prepare gathered rows."""
        y = rows["x"].long()
        tokens = 1 + y + self.values * (torch.arange(y.shape[1], device=y.device) % self.channels)
        return Batch(torch.nn.functional.pad(tokens[:, :-1], (1, 0)), y)


@register_dataset("mnist-density", "MNIST as 784 bytes, predicted one at a time", files=MNIST, folder="mnist")
def mnist_density(folder: Path, *, levels: int = 256, valid: float = 0.05, seed: int = 42) -> Dataset:
    """MNIST row by row, as tokens.

    Args:
        folder: With the four idx files.
        levels: Number of gray levels, 2 to 256; the bytes are divided into as many equal ranges.
        valid: Share of the training images kept for validation.
        seed: Seed of that split.
    """
    if check_int("levels", levels, minimum=2) > 256:
        raise ValueError(f"levels must be an integer from 2 to 256, got {levels}")
    train, test = ({"x": (x.astype(np.uint16) * levels // 256).astype(np.uint8)} for x, _ in read_mnist(folder))
    splits = hold_out(train, test, Shifted(levels), valid=valid, seed=seed)
    return Dataset("mnist-density", Info("density", 784, None, levels + 1, levels), *splits)


@register_dataset("cifar-density", "CIFAR-10 as 3,072 bytes, predicted one at a time", files=CIFAR, folder="cifar10")
def cifar_density(folder: Path, *, valid: float = 0.02, seed: int = 42) -> Dataset:
    """CIFAR-10 as tokens: pixel by pixel, red, green and blue of each.

    Args:
        folder: With cifar-10-batches-bin.
        valid: Share of the training images kept for validation.
        seed: Seed of that split.
    """
    train, test = ({"x": x.reshape(-1, 3072)} for x, _ in read_cifar(folder))
    splits = hold_out(train, test, Shifted(256, channels=3), valid=valid, seed=seed)
    return Dataset("cifar-density", Info("density", 3072, None, 769, 256), *splits)


@register_dataset(
    "digits-density", "scikit-learn's digits as 64 values of 17, predicted one at a time; comes with scikit-learn"
)
def digits_density(folder: Path, *, seed: int = 0) -> Dataset:
    """The 1,797 images of 8 x 8 pixels that come with scikit-learn, as tokens.

    Args:
        folder: Not used.
        seed: Seed of the split: 72 % training, 8 % validation and 20 % test, the classes in equal proportions.
    """
    labelled = digits(folder, seed=seed)
    parts = (labelled.train, labelled.valid, labelled.test)
    train, valid, test = (Arrays({"x": part.arrays["x"]}, Shifted(17)) for part in parts)
    return Dataset("digits-density", Info("density", 64, None, 18, 17), train, valid, test)
