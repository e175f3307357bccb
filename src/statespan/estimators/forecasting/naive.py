"""The simple forecasts that every other one must beat: the last value, the last season and the drift.

Shapes: B windows, T context, H horizon, C columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from statespan.estimators.inputs.series import Array

NAIVES = ("last value", "seasonal naive", "drift")
USUAL = {60: 60, 900: 96, 1800: 48, 3600: 24, 86400: 7}  # rows of an hour, a day or a week by the step in seconds
LEAST = 0.2  # autocorrelation at a season, at least
ROWS = 20_000  # of a series that are looked at


def naive_forecasts(known: Tensor, horizon: int, season: int) -> dict[str, Tensor]:
    """The simple forecasts (B, H, C) of windows (B, T, C), by name; the seasonal one only with a season of at most T.

    The drift goes on along the line from the first row of the window to its last.

    Example:
        >>> found = naive_forecasts(torch.arange(6.0).view(1, 6, 1), 3, 2)
        >>> {name: values.flatten().tolist() for name, values in found.items()}
        {'last value': [5.0, 5.0, 5.0], 'seasonal naive': [4.0, 5.0, 4.0], 'drift': [6.0, 7.0, 8.0]}
    """
    rows, last = known.shape[1], known[:, -1:]
    found = {"last value": last.expand(-1, horizon, -1)}
    if 1 < season <= rows:
        places = torch.arange(horizon, device=known.device) % season
        found["seasonal naive"] = known[:, rows - season + places]
    if rows > 1:
        slope = (last - known[:, :1]) / (rows - 1)
        found["drift"] = last + slope * torch.arange(1, horizon + 1, device=known.device, dtype=known.dtype)[:, None]
    return found


def find_season(values: Array, longest: int, step: Any = None, unit: str = "s") -> int:
    """The season of a series (T, C) in rows, at most ``longest``; 1 for none.

    It is the usual one for the step of the index, such as a day of hours. Without one it is the clearest peak of the
    autocorrelation of the differences, averaged over the columns.

    Example:
        >>> t = np.arange(400)
        >>> find_season(np.sin(2 * np.pi * t / 12)[:, None] + 0.05 * t[:, None], 100)
        12
        >>> find_season(np.random.default_rng(0).normal(size=(400, 1)).cumsum(0), 100)
        1
    """
    values = values[-ROWS:]
    longest = min(longest, len(values) // 3)
    if longest < 2:
        return 1
    usual = 12 if unit == "M" and step == 1 else 4 if unit == "M" and step == 3 else 5 if unit == "B" else 0
    usual = USUAL.get(step or 0, 0) if unit == "s" else usual
    if 1 < usual <= longest:
        return usual
    correlation = _autocorrelation(np.diff(values, axis=0), longest)
    peaks = [
        lag
        for lag in range(2, longest)
        if correlation[lag] >= max(correlation[lag - 1], correlation[lag + 1]) and correlation[lag] > LEAST
    ]
    if not peaks:
        return 1
    highest = max(correlation[lag] for lag in peaks)
    return next(lag for lag in peaks if correlation[lag] > 0.9 * highest)  # not a multiple of it


def _autocorrelation(values: Array, longest: int) -> Array:
    """The mean autocorrelation of columns (T, C) at the lags 0 … ``longest``."""
    known = ~np.isnan(values)
    centred = np.where(known, values - np.nanmean(np.where(known.any(0), values, 0.0), 0), 0.0)
    centred = centred / np.maximum(np.abs(centred).max(0), np.finfo(float).tiny)  # squares stay finite
    spectrum = np.fft.rfft(centred, 2 * len(values), axis=0)
    products = np.fft.irfft(np.abs(spectrum) ** 2, axis=0)[: longest + 1]
    variance = products[0]
    return np.where(variance > 0, products / np.where(variance > 0, variance, 1.0), 0.0).mean(1)
