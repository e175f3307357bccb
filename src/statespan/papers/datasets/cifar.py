"""CIFAR-10 pixel by pixel: sequential CIFAR, the gray one of the Long Range Arena, and its density as tokens.

All three read ``cifar-10-batches-bin``: records of one label byte and 3 x 1024 bytes, first all red ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from statespan.data.base import Arrays, Batch, Dataset, Info
from statespan.data.registry import register
from statespan.data.source import Source
from statespan.data.split import split
from statespan.papers.datasets.images import Pixels

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


def luma(rgb: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Gray of (…, 3) bytes as ITU-R 601 weighs the colours, rounded, in bytes.

    Example:
        >>> luma(np.array([[255, 255, 255], [255, 0, 0], [0, 255, 0], [0, 0, 255]], np.uint8)).tolist()
        [255, 76, 150, 29]
    """
    total = np.full(rgb.shape[:-1], 0x8000, np.uint32)
    for channel, weight in enumerate((19595, 38470, 7471)):  # 0.299, 0.587 and 0.114 of 2^16
        total += rgb[..., channel] * np.uint32(weight)
    return (total >> 16).astype(np.uint8)


def crop_and_flip(batch: Batch, generator: torch.Generator) -> Batch:
    """Shift each image of 32 x 32 by up to 4 pixels, its edge mirrored into the gap, and flip every second one.

    Args:
        batch: With x of shape (B, 1024, D).
        generator: On the batch's device.
    """
    x, device = batch.x, batch.x.device
    shift = torch.randint(-4, 5, (2, len(x), 1), generator=generator, device=device)
    flip = torch.rand(len(x), 1, generator=generator, device=device) < 0.5
    at = torch.arange(32, device=device)
    row = _mirror(at + shift[0])
    column = _mirror(torch.where(flip, 31 - at, at) + shift[1])
    pixel = (32 * row[:, :, None] + column[:, None, :]).reshape(len(x), 1024, 1)
    return batch._replace(x=x.gather(1, pixel.expand_as(x)))


def tokens(rows: dict[str, Tensor]) -> Batch:
    """Bytes (B, 3072) to a batch: each byte is to be told from those before it.

    The byte v of channel c is the token 1 + v + 256·c of the input, 0 stands before the first one; the targets are the
    bytes themselves.
    """
    y = rows["x"].long()
    shifted = torch.zeros_like(y)
    shifted[:, 1:] = (y + 1 + 256 * (torch.arange(y.shape[1], device=y.device) % 3))[:, :-1]
    return Batch(shifted, y)


@register("scifar", "Sequential CIFAR-10: 1,024 pixels of three colours, 10 classes", files=CIFAR, folder="cifar10")
def scifar(folder: Path, *, augment: bool = False, valid: float = 0.1, seed: int = 42) -> Dataset:
    """CIFAR-10 row by row, the colours standardised.

    Args:
        folder: With cifar-10-batches-bin.
        augment: Shift and flip the training images.
        valid: Share of the training images kept for validation; it is never augmented.
        seed: Of that split.
    """
    (x, y), (test_x, test_y) = _read(folder)
    info = Info("classification", 1024, 3, None, 10, CLASSES)
    return _dataset("scifar", info, (x, y), (test_x, test_y), RGB, valid, seed, augment)


@register("image", "LRA Image: CIFAR-10 in gray, 1,024 pixels, 10 classes", files=CIFAR, folder="cifar10")
def image(folder: Path, *, augment: bool = False, valid: float = 0.1, seed: int = 42) -> Dataset:
    """CIFAR-10 in gray, row by row, standardised.

    Args:
        folder: With cifar-10-batches-bin.
        augment: Shift and flip the training images.
        valid: Share of the training images kept for validation; it is never augmented.
        seed: Of that split.
    """
    (x, y), (test_x, test_y) = _read(folder)
    info = Info("classification", 1024, 1, None, 10, CLASSES)
    return _dataset("image", info, (luma(x), y), (luma(test_x), test_y), GRAY, valid, seed, augment)


@register("cifar-density", "CIFAR-10 as 3,072 bytes to be told one by one", files=CIFAR, folder="cifar10")
def cifar_density(folder: Path, *, valid: float = 0.02, seed: int = 42) -> Dataset:
    """CIFAR-10 as tokens: pixel by pixel, red, green and blue of each.

    Args:
        folder: With cifar-10-batches-bin.
        valid: Share of the training images kept for validation.
        seed: Of that split.
    """
    (x, _), (test_x, _) = _read(folder)
    kept, held = split(len(x), (valid,), seed)
    x, test_x = x.reshape(-1, 3072), test_x.reshape(-1, 3072)
    train, held_out, test = (Arrays({"x": some}, tokens) for some in (x[kept], x[held], test_x))
    return Dataset("cifar-density", Info("density", 3072, None, 769, 256), train, held_out, test)


def _mirror(i: Tensor) -> Tensor:
    """Positions outside 0 … 31 mirrored at the edge: -1 is 0 again and 32 is 31."""
    i = torch.where(i < 0, -1 - i, i)
    return torch.where(i > 31, 63 - i, i)


def _read(folder: Path) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Images (N, 1024, 3) and labels (N,) of the training and of the test files."""
    parts = []
    for names in (TRAIN, ("test_batch.bin",)):
        records = []
        for path in (source.find(folder) for source in CIFAR if source.path.endswith(names)):
            assert path is not None  # the registry sees to it
            data = np.fromfile(path, np.uint8)
            if data.size == 0 or data.size % 3073 or data[::3073].max() > 9:
                raise ValueError(f"{path} must hold records of 3073 bytes with labels 0 … 9, got {data.size} bytes")
            records.append(data.reshape(-1, 3073))
        whole = np.concatenate(records)
        x = np.ascontiguousarray(whole[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1))
        parts.append((x, whole[:, 0].copy()))
    return parts


def _dataset(
    name: str,
    info: Info,
    train: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]],
    test: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]],
    prepare: Pixels,
    valid: float,
    seed: int,
    augment: bool,
) -> Dataset:
    kept, held = split(len(train[0]), (valid,), seed)
    parts = [(train[0][kept], train[1][kept]), (train[0][held], train[1][held]), test]
    first, second, third = (Arrays({"x": x, "y": y}, prepare) for x, y in parts)
    return Dataset(name, info, first, second, third, augment=crop_and_flip if augment else None)
