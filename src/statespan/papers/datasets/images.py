"""Handwritten digits pixel by pixel: sequential MNIST, permuted MNIST and scikit-learn's small digits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from statespan._check import check_int
from statespan.data.augment import Shift, Warp
from statespan.data.base import Arrays, Batch, Dataset, Info, Raw
from statespan.data.formats.idx import read_idx
from statespan.data.registry import register
from statespan.data.source import Source, found
from statespan.data.split import hold_out, stratified

SITE = "https://storage.googleapis.com/cvdf-datasets/mnist/"
MNIST = tuple(
    Source(name + ".gz", url=SITE + name + ".gz", sha256=digest, size=size, also=(name,))
    for name, size, digest in (
        ("train-images-idx3-ubyte", 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        ("train-labels-idx1-ubyte", 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        ("t10k-images-idx3-ubyte", 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        ("t10k-labels-idx1-ubyte", 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    )
)


@dataclass(frozen=True)
class Pixels:
    """Turns rows {"x": (B, L) or (B, L, D) bytes, "y": (B,)} into a batch with pixels ``(x/scale - mean)/std``."""

    scale: float
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __call__(self, rows: dict[str, Tensor]) -> Batch:
        """Prepare gathered rows."""
        x = rows["x"].float()
        x = x[..., None] if x.ndim == 2 else x
        return Batch((x / self.scale - x.new_tensor(self.mean)) / x.new_tensor(self.std), rows["y"].long())


def bit_reversal(n: int) -> np.ndarray:
    """The numbers 0 … n-1 in bit-reversed order.

    Example:
        >>> bit_reversal(8).tolist(), bit_reversal(6).tolist()
        ([0, 4, 2, 6, 1, 5, 3, 7], [0, 4, 2, 1, 5, 3])
    """
    bits = math.ceil(math.log2(n)) if n > 1 else 0
    numbers = np.arange(1 << bits)
    reverse = sum(((numbers >> bit) & 1) << (bits - 1 - bit) for bit in range(bits)) + 0 * numbers
    return reverse[reverse < n]


@dataclass(frozen=True, kw_only=True)
class LabelledImageOptions:
    """Options of labelled images.

    Args:
        augment: Shift the training images at random (CIFAR-10: by up to 4 pixels, and flip half of them; MNIST: by 2).
        valid: Share of the training images kept for validation; these are never augmented.
        seed: Seed of that split.
    """

    augment: bool = False
    valid: float = 0.1
    seed: int = 42


@dataclass(frozen=True, kw_only=True)
class MNISTOptions(LabelledImageOptions):
    """Options of MNIST, besides those of :class:`LabelledImageOptions`.

    Args:
        warp: Rotate, stretch, slant, move and bend the training images instead of shifting them.
    """

    warp: bool = False


def _mnist(name: str, summary: str, order: np.ndarray) -> None:
    sequence = tuple(order.tolist())

    def load(folder: Path, options: MNISTOptions) -> Dataset:
        train_x, train_y, test_x, test_y = map(read_idx, found(MNIST, folder))
        pairs = ((train_x, train_y), (test_x, test_y))
        for x, y in pairs:
            if x.shape[1:] != (28, 28) or y.shape != x.shape[:1] or y.max(initial=0) > 9:
                raise ValueError(
                    f"{folder} must hold MNIST's 28 x 28 images and labels 0 … 9, got {x.shape} and {y.shape}"
                )
        train, test = ({"x": x.reshape(-1, 784)[:, order], "y": y.copy()} for x, y in pairs)
        return Dataset(
            name,
            Info("classification", 784, 1, None, 10, tuple("0123456789")),
            *hold_out(train, test, Pixels(255.0), valid=options.valid, seed=options.seed),
            augment=Warp(sequence) if options.warp else Shift(sequence) if options.augment else None,
            raw=None if name == "smnist" else Raw(sequence),
        )

    register(name, summary, files=MNIST, folder="mnist", config=MNISTOptions)(load)


_mnist("smnist", "Sequential MNIST: 784 pixels in [0, 1], 10 classes", np.arange(784))
_mnist("pmnist", "Permuted MNIST: the pixels in bit-reversed order, 10 classes", bit_reversal(784))


@register("digits", "scikit-learn's digits: 64 pixels in [0, 1], 10 classes; comes with scikit-learn")
def digits(folder: Path, *, subsample: int = 1, seed: int = 0) -> Dataset:
    """The 1,797 images of 8 x 8 pixels that come with scikit-learn.

    Args:
        folder: Not used.
        subsample: Take every n-th pixel only.
        seed: Seed of the split: 72 % training, 8 % validation and 20 % test, the classes in equal proportions.
    """
    from sklearn.datasets import load_digits

    check_int("subsample", subsample, minimum=1)
    images, labels = load_digits(return_X_y=True)
    x, y = images.astype(np.uint8)[:, ::subsample], labels.astype(np.uint8)
    train, valid, test = (
        Arrays({"x": x[rows], "y": y[rows]}, Pixels(16.0)) for rows in stratified(y, (0.08, 0.2), seed)
    )
    info = Info("classification", x.shape[1], 1, None, 10, tuple("0123456789"))
    return Dataset("digits", info, train, valid, test)
