"""Random augmentation of images: shifts, elastic warps, rotations and mirroring."""

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from statespan.data.base import Batch

TURN = math.radians(12)  # these four are maxima
STRETCH = 0.12  # log of the scale of each axis
SLANT = 0.2  # columns per row
MOVE = 2.0  # pixels


@dataclass(frozen=True)
class Shift:
    """Shift each 28 x 28 image by a few pixels in both directions, black in the gap."""

    order: tuple[int, ...]  # pixel of the image at each position of the sequence
    most: int = 2  # largest shift in pixels

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The batch, x of shape (B, 784, 1)."""
        x, device = batch.x, batch.x.device
        order, place, _ = _pixels(self.order, device)
        shift = torch.randint(-self.most, self.most + 1, (2, len(x), 1), generator=generator, device=device)
        row, column = order // 28 + shift[0], order % 28 + shift[1]  # (B, 784): where each pixel comes from
        inside = (row >= 0) & (row < 28) & (column >= 0) & (column < 28)
        source = place[(28 * row + column).clamp(0, 783)]
        return batch._replace(x=x.gather(1, source[..., None]) * inside[..., None])


@dataclass(frozen=True)
class Warp:
    """Warp each 28 x 28 image by a random affine map and a smooth displacement field, black outside."""

    order: tuple[int, ...]  # pixel of the image at each position of the sequence
    bend: float = 0.8  # standard deviation of the displacements at the knots, in pixels
    knots: int = 6  # along each side

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The batch, x of shape (B, 784, 1)."""
        x = batch.x
        order, place, points = _pixels(self.order, x.device)
        drawn = 2 * torch.rand(len(x), 6, generator=generator, device=x.device) - 1
        source = points @ _affine(drawn[:, :4]).mT + MOVE * drawn[:, None, 4:]  # (B, 784, 2): columns and rows
        knots = self.bend * torch.randn(len(x), 2, self.knots, self.knots, generator=generator, device=x.device)
        field = functional.interpolate(knots, size=(28, 28), mode="bicubic", align_corners=True)
        source = source + field.flatten(2).mT[:, order]
        image = x[:, place, 0].unflatten(1, (1, 28, 28))
        warped = functional.grid_sample(image, (source / 13.5)[:, None], mode="bilinear", align_corners=True)
        return batch._replace(x=warped[:, 0, 0, :, None])


@dataclass(frozen=True)
class Turn:
    """Rotate each square image by a multiple of 90 degrees and maybe mirror it: 8 equally likely ways."""

    size: int  # pixels along a side

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The batch, x of shape (B, size², channels), row by row."""
        image = batch.x.unflatten(1, (self.size, self.size))
        drawn = torch.rand(3, len(image), 1, 1, 1, generator=generator, device=image.device) < 0.5
        # mirrored or not in each of both directions and along the diagonal: that makes all 8
        for chosen, mirrored in zip(drawn, (lambda x: x.flip(1), lambda x: x.flip(2), lambda x: x.transpose(1, 2))):
            image = torch.where(chosen, mirrored(image), image)
        return batch._replace(x=image.flatten(1, 2))


def _affine(drawn: Tensor) -> Tensor:
    """2 x 2 matrices from four numbers in [-1, 1] each: a shear, then a stretch, then a rotation."""
    cos, sin = (TURN * drawn[:, 0]).cos(), (TURN * drawn[:, 0]).sin()
    turn = torch.stack([cos, -sin, sin, cos], 1).unflatten(1, (2, 2))
    slant = torch.eye(2, device=drawn.device).repeat(len(drawn), 1, 1)
    slant[:, 0, 1] = SLANT * drawn[:, 3]
    return turn * (STRETCH * drawn[:, None, 1:3]).exp() @ slant


@cache
def _pixels(order: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The pixel at each position, the position of each pixel, and each position's (column, row) from the centre."""
    pixel = torch.tensor(order, device=device)
    return pixel, pixel.argsort(), torch.stack([pixel % 28, pixel // 28], 1) - 13.5
