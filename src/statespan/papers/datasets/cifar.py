"""CIFAR-10 pixel by pixel: sequential CIFAR, and the Long Range Arena's gray version.

Both read ``cifar-10-batches-bin``: records of one label byte and 3 x 1024 bytes, first all red ones.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from statespan.data.base import Array, Batch, Dataset, Info
from statespan.data.registry import register
from statespan.data.source import Source, found
from statespan.data.split import hold_out
from statespan.papers.datasets.images import LabelledImageOptions, Pixels

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
RGB = Pixels(255.0, (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261))
GRAY = Pixels(255.0, (122.6 / 255,), (61.0 / 255,))


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

    def load(folder: Path, options: LabelledImageOptions) -> Dataset:
        train, test = ({"x": convert(x), "y": y} for x, y in read_cifar(folder))
        return Dataset(
            name,
            Info("classification", 1024, len(prepare.mean), None, 10, CLASSES),
            *hold_out(train, test, prepare, valid=options.valid, seed=options.seed),
            augment=crop_and_flip if options.augment else None,
        )

    register(name, summary, files=CIFAR, folder="cifar10", config=LabelledImageOptions)(load)


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
        whole = np.concatenate(records)
        x = np.ascontiguousarray(whole[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1))
        parts.append((x, whole[:, 0].copy()))
    return parts
