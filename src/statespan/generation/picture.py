"""Generated values as a grid of images in one PNG file, written with zlib alone.

Shapes: R rows and C columns of images, H height, W width.
"""

from __future__ import annotations

import math
import struct
import zlib
from typing import Any

import numpy as np
from torch import Tensor

from statespan._check import check_int

GAP = 2
"""Pixels between images, before they are enlarged."""


def images(values: Tensor, levels: int, channels: int) -> np.ndarray[Any, Any]:
    """Square images (B, H, W, channels) of bytes, from values (B, H·W·channels) in 0 … levels − 1.

    Example:
        >>> import torch
        >>> images(torch.tensor([[0, 1, 2, 3]]), levels=4, channels=1)[0, ..., 0].tolist()
        [[0, 85], [170, 255]]
    """
    side = math.isqrt(values.shape[1] // channels)
    if side * side * channels != values.shape[1]:
        raise ValueError(f"values must be those of square images with {channels} channels, got {values.shape[1]} each")
    pixels = values.cpu().numpy().reshape(len(values), side, side, channels).astype(np.float64)
    return np.rint(pixels * 255 / max(1, levels - 1)).astype(np.uint8)


def grid(pictures: np.ndarray[Any, Any], columns: int, enlarge: int = 1) -> np.ndarray[Any, Any]:
    """Arrange pictures (B, H, W, channels) in a grid on gray, (…, …, channels)."""
    check_int("columns", columns, minimum=1)
    count, height, width, channels = pictures.shape
    rows = -(-count // columns)
    whole = np.full((rows * (height + GAP) + GAP, columns * (width + GAP) + GAP, channels), 128, np.uint8)
    for i, picture in enumerate(pictures):
        top, left = GAP + i // columns * (height + GAP), GAP + i % columns * (width + GAP)
        whole[top : top + height, left : left + width] = picture
    return whole.repeat(enlarge, 0).repeat(enlarge, 1)


def png(picture: np.ndarray[Any, Any]) -> bytes:
    r"""Encode a picture (H, W, 1 or 3) of bytes as PNG.

    Example:
        >>> png(np.zeros((2, 2, 1), np.uint8))[:4]
        b'\x89PNG'
    """
    height, width, channels = picture.shape
    if picture.dtype != np.uint8 or channels not in (1, 3):
        raise ValueError(f"picture must be bytes with 1 or 3 channels, got {picture.dtype} with {channels}")

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    lines = np.concatenate([np.zeros((height, 1), np.uint8), picture.reshape(height, -1)], 1)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body
