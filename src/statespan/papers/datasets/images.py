"""Images pixel by pixel: sequential and permuted MNIST, sequential and gray CIFAR-10, scikit-learn's small digits.

CIFAR-10 is read from ``cifar-10-batches-bin``: records of one label byte and 3 x 1024 bytes, first all red ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from statespan._check import check_int
from statespan._extras import require
from statespan.data.augment import Shift, Warp
from statespan.data.base import Array, Arrays, Batch, Dataset, Info, Raw
from statespan.data.formats.idx import read_idx
from statespan.data.registry import register_dataset
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
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
CIFAR = tuple(
    Source(
        f"cifar-10-batches-bin/{name}",
        url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        size=170052171,
        also=(name,),
    )
    for name in (*TRAIN, "test_batch.bin")
)


@dataclass(frozen=True)
class Pixels:
    """Turns rows {"x": (B, L) or (B, L, D) bytes, "y": (B,)} into a batch with pixels ``(x/scale - mean)/std``.

    Example:
        >>> rows = {"x": torch.tensor([[0, 255]], dtype=torch.uint8), "y": torch.tensor([7])}
        >>> Pixels(255.0, mean=(0.5,), std=(0.5,))(rows).x.flatten()
        tensor([-1.,  1.])
    """

    scale: float
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __call__(self, rows: dict[str, Tensor]) -> Batch:
        """Prepare gathered rows."""
        x = rows["x"].float()
        x = x[..., None] if x.ndim == 2 else x
        return Batch((x / self.scale - x.new_tensor(self.mean)) / x.new_tensor(self.std), rows["y"].long())


RGB = Pixels(255.0, (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261))
GRAY = Pixels(255.0, (122.6 / 255,), (61.0 / 255,))


def bit_reversal(n: int) -> Array:
    """The numbers 0 … n-1 in bit-reversed order.

    Example:
        >>> bit_reversal(8).tolist(), bit_reversal(6).tolist()
        ([0, 4, 2, 6, 1, 5, 3, 7], [0, 4, 2, 1, 5, 3])
    """
    bits = (n - 1).bit_length()
    reverse = np.array([int(f"{number:0{bits}b}"[::-1], 2) for number in range(1 << bits)])
    return reverse[reverse < n]


@dataclass(frozen=True, kw_only=True)
class LabelledImageOptions:
    """Options of labelled images.

    Args:
        augment: Shift the training images at random (CIFAR-10: by up to 4 pixels, and flip half of them; MNIST: by 2).
        valid: Share of the training images kept for validation; these are never augmented.
        seed: Seed of that split.

    Example:
        >>> LabelledImageOptions(augment=True).valid
        0.1
    """

    augment: bool = False
    valid: float = 0.1
    seed: int = 42


@dataclass(frozen=True, kw_only=True)
class MNISTOptions(LabelledImageOptions):
    """Options of MNIST, besides those of :class:`LabelledImageOptions`.

    Args:
        warp: Rotate, stretch, slant, move and bend the training images instead of shifting them.

    Example:
        >>> MNISTOptions(warp=True).augment
        False
    """

    warp: bool = False


def _mnist(name: str, summary: str, order: Array) -> None:
    sequence = tuple(order.tolist())

    @register_dataset(name, summary, files=MNIST, folder="mnist", config=MNISTOptions)
    def load(folder: Path, options: MNISTOptions) -> Dataset:
        train, test = ({"x": x[:, order], "y": y.copy()} for x, y in read_mnist(folder))
        return Dataset(
            name,
            Info("classification", 784, 1, None, 10, tuple("0123456789")),
            *hold_out(train, test, Pixels(255.0), valid=options.valid, seed=options.seed),
            augment=Warp(sequence) if options.warp else Shift(sequence) if options.augment else None,
            raw=None if name == "smnist" else Raw(sequence),
        )


_mnist("smnist", "Sequential MNIST: 784 pixels in [0, 1], 10 classes", np.arange(784))
_mnist("pmnist", "Permuted MNIST: the pixels in bit-reversed order, 10 classes", bit_reversal(784))


def read_mnist(folder: Path) -> list[tuple[Array, Array]]:
    """Images (N, 784) and labels (N,) of the training and of the test files."""
    train_x, train_y, test_x, test_y = map(read_idx, found(MNIST, folder))
    pairs = ((train_x, train_y), (test_x, test_y))
    for x, y in pairs:
        if x.shape[1:] != (28, 28) or y.shape != x.shape[:1] or y.max(initial=0) > 9:
            raise ValueError(f"{folder} must hold MNIST's 28 x 28 images and labels 0 … 9, got {x.shape} and {y.shape}")
    return [(x.reshape(-1, 784), y) for x, y in pairs]


def luma(rgb: Array) -> Array:
    """Convert (…, 3) bytes to gray with the ITU-R 601 weights, rounded to bytes.

    Example:
        >>> luma(np.array([[255, 255, 255], [255, 0, 0], [0, 255, 0], [0, 0, 255]], np.uint8)).tolist()
        [255, 76, 150, 29]
    """
    total = np.full(rgb.shape[:-1], 0x8000, np.uint32)
    for channel, weight in enumerate((19595, 38470, 7471)):  # 0.299, 0.587 and 0.114 of 2^16
        total += rgb[..., channel] * np.uint32(weight)
    return (total >> 16).astype(np.uint8)


def crop_and_flip(batch: Batch, generator: torch.Generator) -> Batch:
    """Shift each 32 x 32 image, x (B, 1024, D), by up to 4 pixels with mirrored edges, and flip half of them."""
    x, device = batch.x, batch.x.device
    shift = torch.randint(-4, 5, (2, len(x), 1), generator=generator, device=device)
    flip = torch.rand(len(x), 1, generator=generator, device=device) < 0.5
    at = torch.arange(32, device=device)
    row = _mirror(at + shift[0])
    column = _mirror(torch.where(flip, 31 - at, at) + shift[1])
    pixel = (32 * row[:, :, None] + column[:, None, :]).reshape(len(x), 1024, 1)
    return batch._replace(x=x.gather(1, pixel.expand_as(x)))


def _cifar(name: str, summary: str, convert: Callable[[Array], Array], prepare: Pixels) -> None:
    """Register CIFAR-10 row by row, its colours converted and then standardized."""

    @register_dataset(name, summary, files=CIFAR, folder="cifar10", config=LabelledImageOptions)
    def load(folder: Path, options: LabelledImageOptions) -> Dataset:
        train, test = ({"x": convert(x), "y": y} for x, y in read_cifar(folder))
        return Dataset(
            name,
            Info("classification", 1024, len(prepare.mean), None, 10, CLASSES),
            *hold_out(train, test, prepare, valid=options.valid, seed=options.seed),
            augment=crop_and_flip if options.augment else None,
        )


_cifar("scifar", "Sequential CIFAR-10: 1,024 pixels of three colours, 10 classes", lambda rgb: rgb, RGB)
_cifar("image", "LRA Image: CIFAR-10 in gray, 1,024 pixels, 10 classes", luma, GRAY)


def _mirror(i: Tensor) -> Tensor:
    """Positions outside 0 … 31 mirrored at the edge: -1 is 0 again and 32 is 31."""
    i = torch.where(i < 0, -1 - i, i)
    return torch.where(i > 31, 63 - i, i)


def read_cifar(folder: Path) -> list[tuple[Array, Array]]:
    """Images (N, 1024, 3) and labels (N,) of the training and of the test files."""
    parts = []
    for names in (TRAIN, ("test_batch.bin",)):
        records = []
        for path in found([source for source in CIFAR if source.path.endswith(names)], folder):
            data = np.fromfile(path, np.uint8)
            if data.size == 0 or data.size % 3073 or data[::3073].max() > 9:
                raise ValueError(f"{path} must hold records of 3073 bytes with labels 0 … 9, got {data.size} bytes")
            records.append(data.reshape(-1, 3073))
        all_records = np.concatenate(records)
        x = np.ascontiguousarray(all_records[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1))
        parts.append((x, all_records[:, 0].copy()))
    return parts


@register_dataset("digits", "scikit-learn's digits: 64 pixels in [0, 1], 10 classes; comes with scikit-learn")
def digits(folder: Path, *, subsample: int = 1, seed: int = 0) -> Dataset:
    """The 1,797 images of 8 x 8 pixels that come with scikit-learn.

    Args:
        folder: Not used.
        subsample: Take every n-th pixel only.
        seed: Seed of the split: 72 % training, 8 % validation and 20 % test, the classes in equal proportions.
    """
    require("the dataset digits needs", "data", "sklearn")
    from sklearn.datasets import load_digits

    check_int("subsample", subsample, minimum=1)
    images, labels = load_digits(return_X_y=True)
    x, y = images.astype(np.uint8)[:, ::subsample], labels.astype(np.uint8)
    train, valid, test = (
        Arrays({"x": x[rows], "y": y[rows]}, Pixels(16.0)) for rows in stratified(y, (0.08, 0.2), seed)
    )
    info = Info("classification", x.shape[1], 1, None, 10, tuple("0123456789"))
    return Dataset("digits", info, train, valid, test)
