"""Random augmentation of recorded signals: shift, stretch, scale, noise and crops.

Shapes: B batch, L positions, D signals, O targets.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from statespan.data.base import Batch


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
        x, whole = batch.x, batch.x.shape[1]
        lengths = torch.randint(self.least, whole + 1, (len(x),), generator=generator, device=x.device)
        first = (torch.rand(len(x), generator=generator, device=x.device) * (whole - lengths + 1)).long()
        position = torch.arange(whole, device=x.device)
        place = (first[:, None] + position).clamp(max=whole - 1)
        part = x.gather(1, place[..., None].expand(x.shape))
        return batch._replace(x=part * (position < lengths[:, None])[..., None], lengths=lengths)


@dataclass(frozen=True)
class Compose:
    """Several augmentations, one after the other."""

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
