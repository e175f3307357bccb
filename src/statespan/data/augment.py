"""Random augmentation: of images, shifts, elastic warps, rotations and mirroring; of signals, crops and variation.

Shapes: B batch, L positions, D signals, O targets.
"""

import math
from collections.abc import Callable
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
    """Shift each 28 x 28 image by a few pixels in both directions, black in the gap.

    Example:
        >>> shift = Shift(order=tuple(range(784)), most=2)
        >>> batch = Batch(torch.ones(4, 784, 1), torch.zeros(4))
        >>> shift(batch, torch.Generator().manual_seed(0)).x.shape
        torch.Size([4, 784, 1])
    """

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
    """Warp each 28 x 28 image by a random affine map and a smooth displacement field, black outside.

    Example:
        >>> warp = Warp(order=tuple(range(784)))
        >>> batch = Batch(torch.ones(4, 784, 1), torch.zeros(4))
        >>> warp(batch, torch.Generator().manual_seed(0)).x.shape
        torch.Size([4, 784, 1])
    """

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
    """Rotate each square image by a multiple of 90 degrees and maybe mirror it: 8 equally likely ways.

    Example:
        >>> batch = Batch(torch.arange(4.0).view(1, 4, 1), torch.zeros(1))
        >>> turned = Turn(size=2)(batch, torch.Generator().manual_seed(0))
        >>> sorted(turned.x.flatten().tolist())  # the same pixels in another order
        [0.0, 1.0, 2.0, 3.0]
    """

    size: int  # pixels along a side

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The batch, x of shape (B, size², channels), row by row."""
        image = batch.x.unflatten(1, (self.size, self.size))
        drawn = torch.rand(3, len(image), 1, 1, 1, generator=generator, device=image.device) < 0.5
        # mirrored or not in each of both directions and along the diagonal: that makes all 8
        for chosen, mirrored in zip(drawn, (lambda x: x.flip(1), lambda x: x.flip(2), lambda x: x.transpose(1, 2))):
            image = torch.where(chosen, mirrored(image), image)
        return batch._replace(x=image.flatten(1, 2))


@dataclass(frozen=True)
class Crop:
    """Crop each recording to a random length at a random place.

    Example:
        >>> batch = Batch(torch.arange(1.0, 7.0).reshape(1, 6, 1), torch.zeros(1, 1))
        >>> part = Crop(3)(batch, torch.Generator().manual_seed(0))
        >>> part.x.flatten().tolist(), part.lengths.tolist()
        ([4.0, 5.0, 6.0, 0.0, 0.0, 0.0], [3])
    """

    least: int  # length of the shortest crop; the longest is the whole recording

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Crop the batch, x of shape (B, L, D) with L at least ``least``; crops start at position 0, then zeros."""
        x, length = batch.x, batch.x.shape[1]
        lengths = torch.randint(self.least, length + 1, (len(x),), generator=generator, device=x.device)
        first = (torch.rand(len(x), generator=generator, device=x.device) * (length - lengths + 1)).long()
        position = torch.arange(length, device=x.device)
        place = (first[:, None] + position).clamp(max=length - 1)
        part = x.gather(1, place[..., None].expand(x.shape))
        return batch._replace(x=part * (position < lengths[:, None])[..., None], lengths=lengths)


@dataclass(frozen=True)
class Compose:
    """Several augmentations, one after the other.

    Example:
        >>> both = Compose((Turn(size=28), Warp(order=tuple(range(784)))))
        >>> batch = Batch(torch.ones(4, 784, 1), torch.zeros(4))
        >>> both(batch, torch.Generator().manual_seed(0)).x.shape
        torch.Size([4, 784, 1])
    """

    changes: tuple[Callable[[Batch, torch.Generator], Batch], ...]

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Apply all augmentations to the batch."""
        for change in self.changes:
            batch = change(batch, generator)
        return batch


@dataclass(frozen=True)
class Vary:
    """Shift, stretch and scale each recording at random, and add noise.

    Example:
        >>> batch = Batch(torch.arange(4.0).reshape(1, 4, 1), torch.zeros(1, 1))
        >>> Vary(move=1, around=True)(batch, torch.Generator().manual_seed(0)).x.flatten().tolist()
        [3.0, 0.0, 1.0, 2.0]
    """

    move: int = 0  # largest shift in positions
    around: bool = False  # shift cyclically; otherwise pad with zeros
    speed: float = 0.0  # largest logarithm of the change in speed
    gain: float = 0.0  # largest logarithm of the change in loudness of each signal
    noise: float = 0.0  # largest standard deviation of added white noise, relative to that of each signal
    rate: tuple[float, float] | None = None  # mean and std of targets that grow with the speed, such as a heart rate

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The batch, x of shape (B, L, D) and for ``rate`` y of shape (B, O)."""
        x, y = batch.x, batch.y

        def drawn(*shape: int) -> Tensor:  # in [-1, 1)
            return 2 * torch.rand(len(x), *shape, generator=generator, device=x.device) - 1

        move = torch.randint(-self.move, self.move + 1, (len(x), 1), generator=generator, device=x.device)
        faster = (self.speed * drawn(1)).exp()
        x = self._read(x, faster, move) * (self.gain * drawn(1, x.shape[2])).exp()
        noise = self.noise * drawn(1, 1).abs() * x.std(1, correction=0, keepdim=True)
        x = x + noise * torch.randn(x.shape, generator=generator, device=x.device)
        if self.rate is not None:
            mean, std = self.rate
            y = y * faster + mean / std * (faster - 1)  # of mean + std y, standardised again
        return batch._replace(x=x, y=y)

    def _read(self, x: Tensor, faster: Tensor, move: Tensor) -> Tensor:
        """Read position c + faster * (t - c) - move at t, with c the middle, by linear interpolation."""
        length = x.shape[1]
        middle = (length - 1) / 2
        place = middle + faster * (torch.arange(length, device=x.device) - middle) - move
        before = place.floor()
        share = (place - before)[..., None]
        index = before.long()
        return (1 - share) * self._at(x, index) + share * self._at(x, index + 1)

    def _at(self, x: Tensor, index: Tensor) -> Tensor:
        length = x.shape[1]
        if self.around:
            return x.gather(1, index.remainder(length)[..., None].expand(x.shape))
        inside = (index >= 0) & (index < length)
        return x.gather(1, index.clamp(0, length - 1)[..., None].expand(x.shape)) * inside[..., None]


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
