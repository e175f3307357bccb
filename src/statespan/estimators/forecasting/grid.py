"""Rows of another rate on the grid of the training rows, and forecasts back from it, by linear interpolation.

Shapes: B windows, T rows, H horizon.
"""

from __future__ import annotations

import torch
from torch import Tensor


def to_grid(known: Tensor, rows: int, dt_scale: float = 1.0) -> Tensor:
    """The last ``rows`` rows (B, rows, …) of the training grid, of known ones (B, T, …) that are ``dt_scale`` apart.

    Both end with the same row; before the first known row it repeats.

    Example:
        >>> to_grid(torch.tensor([0.0, 2.0, 4.0]).view(1, 3, 1), 4, 2.0).flatten().tolist()
        [1.0, 2.0, 3.0, 4.0]
    """
    last = known.shape[1] - 1
    if dt_scale == 1.0 and known.shape[1] >= rows:
        return known[:, known.shape[1] - rows :]
    back = torch.arange(rows - 1, -1, -1, device=known.device, dtype=torch.float64) / dt_scale
    return _at(known, (last - back).clamp(min=0.0))


def from_grid(ahead: Tensor, start: Tensor, steps: int, dt_scale: float = 1.0) -> Tensor:
    """The forecast of the next ``steps`` rows (B, steps, …) from one on the training grid (B, H, …).

    ``start`` (B, 1, …) is the last known row, from which rows that come more often are interpolated.

    Example:
        >>> ahead = torch.tensor([2.0, 4.0, 6.0, 8.0]).view(1, 4, 1)
        >>> from_grid(ahead, torch.zeros(1, 1, 1), 2, 2.0).flatten().tolist()
        [4.0, 8.0]
        >>> from_grid(ahead, torch.zeros(1, 1, 1), 3, 0.5).flatten().tolist()
        [1.0, 2.0, 3.0]
    """
    if dt_scale == 1.0:
        return ahead[:, :steps]
    places = torch.arange(1, steps + 1, device=ahead.device, dtype=torch.float64) * dt_scale
    return _at(torch.cat([start, ahead], 1), places.clamp(max=ahead.shape[1]))


def _at(values: Tensor, places: Tensor) -> Tensor:
    """Values (B, T, …) at places between rows, (B, places, …)."""
    before = places.floor().long().clamp(max=values.shape[1] - 1)
    share = (places - before).to(values.dtype).view(-1, *[1] * (values.ndim - 2))
    return values[:, before] * (1 - share) + values[:, (before + 1).clamp(max=values.shape[1] - 1)] * share
