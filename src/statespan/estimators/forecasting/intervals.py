"""Intervals and sample paths from the errors of forecasts of held-back windows (split conformal prediction).

Each step of the horizon has its own errors, so an interval is as wide as the errors of that step were. They may be
relative to a scale of each window: its volatility, its deviation, or the spread of the network's quantiles.

Shapes: N windows held back, B windows, H horizon, C columns, Q levels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from statespan.estimators.forecasting.blend import smooth
from statespan.estimators.inputs.series import Array

KINDS = ("deviation", "volatility", "spread", "none")
NEARLY = 1.025  # a loss that is this many times the least is nearly as good
BLOCKS = 8  # of time
ENOUGH = 100  # windows for which columns have their own errors
MOST = 2_000_000  # errors that are kept
WINDOWS = 1200  # windows whose errors are kept, at most


@dataclass(frozen=True)
class Errors:
    """Errors of forecasts (N, H, C) relative to the scale of their window, in the order of time.

    Example:
        >>> errors = Errors("none", 0.5, np.zeros(1), np.zeros((3, 2, 1), np.float32))
        >>> errors.values.shape
        (3, 2, 1)
    """

    kind: str
    power: float
    floor: Array  # (C,) added to the scale
    values: Array  # (N, H, C) float32, NaN where unknown

    @classmethod
    def of(cls, error: Array, scales: dict[str, Array]) -> Errors:
        """The errors (N, H, C) relative to the best scale, of (N, H or 1, C) each.

        A scale is judged by the pinball loss on blocks of time that it was not calibrated on. Of scales that are nearly
        as good, the first follows the present most.
        """
        scales = {**scales, "none": np.ones_like(error[:, :1])}
        losses = {}
        for kind, power in ((kind, power) for power in (1.0, 0.5) for kind in KINDS if kind in scales):
            if kind == "none" and power == 1.0:
                continue
            losses[kind, power] = cls._relative(error, scales[kind], kind, power)._unseen_loss(error, scales[kind])
        least = min(losses.values())
        kind, power = next(choice for choice, loss in losses.items() if loss <= NEARLY * least)
        return cls._relative(error, scales[kind], kind, power)

    @classmethod
    def _relative(cls, error: Array, measured: Array, kind: str, power: float) -> Errors:
        usual = np.median(measured, (0, 1))
        one = cls(kind, power, 0.1 * np.where(usual > 0, usual, 1.0), error.astype(np.float32))
        return replace(one, values=(error / one.scale(measured)).astype(np.float32))

    def scale(self, measured: Array) -> Array:
        """The divisor of errors of windows whose scale is measured (…, H or 1, C)."""
        if self.kind == "none":
            return np.ones_like(measured)
        return np.asarray((measured + self.floor) ** self.power)

    def quantiles(self, levels: tuple[float, ...]) -> Array:
        """The quantiles (Q, H, C) of the relative errors."""
        values = self.values
        if len(values) < ENOUGH:  # columns share theirs
            values = values.transpose(0, 2, 1).reshape(-1, values.shape[1], 1)
        # the k-th of n sorted errors is exceeded with a chance of k / (n + 1), for a new one of their kind
        values = np.where(np.isnan(values).all(0), 0.0, values)  # a step without any error
        found = np.nanquantile(values.astype(np.float64), levels, axis=0, method="weibull")
        return smooth(found.transpose(0, 2, 1)).transpose(0, 2, 1)

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Relative errors (count, H, C) of windows drawn at random, whole: steps and columns stay together."""
        complete = self.values[~np.isnan(self.values).any((1, 2))]
        table = complete if len(complete) else np.nan_to_num(self.values)
        return table[rng.integers(len(table), size=count)]

    def kept(self) -> Errors:
        """Errors of evenly spread windows only, so that they stay small."""
        n, horizon, columns = self.values.shape
        most = max(2, min(WINDOWS, MOST // max(1, horizon * columns)))
        return self if n <= most else replace(self, values=self.values[np.linspace(0, n - 1, most).round().astype(int)])

    def after(self, error: Array, measured: Array) -> Errors:
        """With new errors (N, H, C) instead of as many of the oldest."""
        new = (error / self.scale(measured)).astype(np.float32)
        return replace(self, values=np.concatenate([self.values, new])[-len(self.values) :])

    def _unseen_loss(self, error: Array, measured: Array) -> float:
        """The pinball loss of outer quantiles on each block of time with the errors of the other blocks."""
        levels, loss, scale = (0.025, 0.1, 0.9, 0.975), 0.0, self.scale(measured)
        for block in np.array_split(np.arange(len(error)), min(BLOCKS, len(error))):
            rest = np.delete(self.values, block, 0) if len(block) < len(error) else self.values
            for level, part in zip(levels, replace(self, values=rest).quantiles(levels)):
                over = error[block] - part * scale[block]
                loss += float(np.nansum(np.maximum(level * over, (level - 1) * over)))
        return loss


def measured_scales(known: Tensor, added: Tensor) -> dict[str, Tensor]:
    """The scales of windows (B, T, C): the volatility and deviation (B, 1, C), and the spread (B, H, C) of quantiles.

    ``added`` (B, H, C, 1 + Q) is what the network gives.
    """
    steps = known.diff(dim=1) if known.shape[1] > 1 else known
    found = {
        "volatility": steps.square().mean(1, keepdim=True).sqrt(),
        "deviation": known.std(1, keepdim=True, correction=0),
    }
    if added.shape[-1] > 2:
        found["spread"] = (added[..., 1:].amax(-1) - added[..., 1:].amin(-1)).clamp(min=0.0)
    return found


def coverage(truth: Array, low: Array, high: Array) -> float:
    """The share of known values that lie in their interval.

    Example:
        >>> coverage(np.array([0.0, 1.0, np.nan, 5.0]), np.zeros(4), np.full(4, 2.0))
        0.6666666666666666
    """
    known = ~np.isnan(truth)
    return float(((truth >= low) & (truth <= high))[known].mean()) if known.any() else float("nan")


def errors_of(stored: Any, values: Array, shape: tuple[int, int]) -> Errors:
    """Stored errors, checked: ``shape`` is that of a window, (H, C)."""
    floor = np.array(stored["floor"], dtype=np.float64)
    if values.shape[1:] != shape or floor.shape != shape[1:] or stored["kind"] not in KINDS:
        raise ValueError("its errors do not match its horizon and columns")
    return Errors(stored["kind"], float(stored["power"]), floor, values)


def to_array(tensor: Tensor) -> Array:
    """A tensor as a float64 array."""
    return np.asarray(tensor.detach().to("cpu", torch.float64).numpy())
