"""How much of the linear path and of the S4 a forecast has, beside the best simple forecast: weights of each step.

They are chosen on held-back windows, which are used for nothing else but intervals. A weight is 0 unless the gain is
clear, so with nothing to learn the forecast is the best simple one.

Shapes: N windows, H horizon, C columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from statespan.estimators.forecasting.grid import from_grid, to_grid
from statespan.estimators.forecasting.naive import NAIVES, naive_forecasts
from statespan.estimators.horizon import Horizon
from statespan.estimators.inputs.series import Array

MOST_BLOCKS = 20  # stretches of time that a gain is compared over


@dataclass(frozen=True)
class Blend:
    """Weights of each step (H,): naive + model · (linear path + correction · S4 - naive).

    ``choice`` is the simple forecast of each step, a position in NAIVES.

    Example:
        >>> Blend.whole(2).model
        (1.0, 1.0)
    """

    season: int
    choice: tuple[int, ...]
    correction: tuple[float, ...]
    model: tuple[float, ...]

    @classmethod
    def whole(cls, horizon: int) -> Blend:
        """The blend that trusts the model alone."""
        return cls(1, (0,) * horizon, (1.0,) * horizon, (1.0,) * horizon)

    def naive(self, known: Tensor, steps: int, dt_scale: float, context: int) -> Tensor:
        """The simple forecast (B, steps, C) of rows (B, T, C) that is chosen for each step."""
        rows = to_grid(known, context, dt_scale)
        found = naive_forecasts(rows, len(self.choice), self.season)
        table = torch.stack([found.get(name, found["last value"]) for name in NAIVES])  # (3, B, H, C)
        steps_of_grid = torch.arange(len(self.choice), device=known.device)
        choice = torch.tensor(self.choice, device=known.device)
        return from_grid(table[choice, :, steps_of_grid].transpose(0, 1), known[:, -1:], steps, dt_scale)

    def mean(
        self, network: Horizon, known: Tensor, steps: int, marks: Tensor | None, *, dt_scale: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """The forecast (B, steps, C), and what the S4 adds (B, steps, C, 1 + Q) where it has a weight."""
        values = known[..., : network.config.columns]
        naive = self.naive(values, steps, dt_scale, network.config.context)
        added = naive.new_zeros(*naive.shape, 1 + network.config.quantiles)
        if not any(self.model):
            return naive, added
        base = network.base(known, steps, marks, dt_scale)
        if any(self.correction):
            added = network.correction(known, steps, marks, dt_scale)
        share, trust = (self._weights(part, naive, steps, dt_scale) for part in (self.correction, self.model))
        return naive + trust * (base + share * added[..., 0] - naive), added

    def _weights(self, weights: tuple[float, ...], like: Tensor, steps: int, dt_scale: float) -> Tensor:
        row = torch.tensor(weights, dtype=like.dtype, device=like.device)[None, :, None]
        return from_grid(row, row[:, :1], steps, dt_scale)


def choose_naive(truth: Array, found: dict[str, Array], blocks: int) -> tuple[int, ...]:
    """The simple forecast of each step, as a position in NAIVES: another than the last value if it is clearly better.

    The truth and the forecasts are (N, H, C) in the order of time, NaN where unknown.
    """
    errors = {name: known_mean((truth - values) ** 2, -1) for name, values in found.items()}  # (N, H)
    best, choice = errors["last value"], np.zeros(truth.shape[1], int)
    for number, name in enumerate(NAIVES):
        if number and name in errors:
            better = confidence(best - errors[name], blocks) > 0
            choice = np.where(better, number, choice)
            best = np.where(better, errors[name], best)
    return tuple(choice.tolist())


def gain_weights(error: Array, change: Array, blocks: int, last: int) -> Array:
    """The weights (H,) in [0, 1] of a change (N, H, C) of a forecast with this error, 0 where it is no clear gain.

    It must also be one over the ``last`` windows alone, which nothing else was chosen on.

    Example:
        >>> error = np.random.default_rng(0).normal(size=(400, 1, 1))
        >>> noise = np.random.default_rng(1).normal(size=(400, 1, 1))
        >>> gain_weights(error, error, 20, 200).tolist(), gain_weights(error, noise, 20, 200).tolist()
        ([1.0], [0.0])
    """
    known = ~np.isnan(error)
    product = smooth(np.where(known, error * change, 0.0).sum(-1))  # (N, H)
    square = smooth(np.where(known, change**2, 0.0).sum(-1))
    least = np.finfo(np.float64).tiny
    weights = np.clip(product.sum(0) / np.maximum(square.sum(0), least), 0.0, 1.0)
    gain = 2 * weights * product - weights**2 * square
    later = max(2, blocks * last // max(1, len(error)))
    return weights * np.minimum(confidence(gain, blocks), confidence(gain[-last:], later))


def confidence(gain: Array, blocks: int) -> Array:
    """From 0 to 1 by step (H,): by how many standard errors over blocks of time gains (N, H) exceed chance.

    Example:
        >>> confidence(np.ones((40, 1)), 4).tolist(), confidence(np.tile([[1.0], [-1.0]], (20, 1)), 8).tolist()
        ([1.0], [0.0])
    """
    blocks = max(2, min(blocks, MOST_BLOCKS, len(gain)))
    if len(gain) < 2:
        return np.zeros(gain.shape[1])
    means = np.stack([known_mean(part, 0) for part in np.array_split(gain, blocks)])
    mean, error = means.mean(0), means.std(0, ddof=1) / blocks**0.5
    chance = 1.5 + 2 / (blocks - 1)  # few blocks tell little about their spread
    ratio = mean / np.maximum(error, np.finfo(np.float64).tiny)
    return np.where(mean > 0, np.clip(ratio - chance, 0.0, 1.0), 0.0)


def known_mean(values: Array, axis: int) -> Array:
    """The mean of what is not NaN, 0 where there is nothing.

    Example:
        >>> known_mean(np.array([[1.0, np.nan], [np.nan, np.nan]]), 1).tolist()
        [1.0, 0.0]
    """
    known = ~np.isnan(values)
    return np.asarray(np.where(known, values, 0.0).sum(axis) / np.maximum(known.sum(axis), 1))


def smooth(values: Array) -> Array:
    """The mean over each step and its neighbours, of which early steps have fewer: (…, H).

    Example:
        >>> smooth(np.array([1.0, 2.0, 9.0])).tolist()
        [1.0, 2.0, 9.0]
    """
    steps = values.shape[-1]
    place = np.arange(steps)
    reach = np.minimum(steps // 16, place // 4)
    first, end = place - reach, np.minimum(place + reach + 1, steps)
    sums = np.cumsum(np.concatenate([np.zeros_like(values[..., :1]), values], -1), -1)
    return np.asarray((sums[..., end] - sums[..., first]) / (end - first))


def in_one_line(found: dict[str, float], blend: Blend, count: int, *, has_effect: bool = False) -> str:
    """The comparison in words: errors of the forecast and of the simple ones on held-back windows."""
    names = {"seasonal naive": f"seasonal naive ({blend.season} rows)"}
    others = ", ".join(f"{names.get(name, name)} {value:.4g}" for name, value in found.items() if name != "forecast")
    weight = float(np.mean(blend.model))
    share = float(np.mean(np.array(blend.correction) * np.array(blend.model)))
    used = " and ".join(names.get(NAIVES[number], NAIVES[number]) for number in sorted(set(blend.choice)))
    rest = " of what covariates leave" if has_effect else ""
    return (
        f"on {count} held-back windows: mean absolute error {found['forecast']:.4g} in units of the data ({others}); "
        f"weight of the model {weight:.2f}, of the S4 in it {share:.2f}, of the {used}{rest} {1 - weight:.2f}"
    )


def plain_blend(blend: Blend) -> dict[str, Any]:
    """The blend as plain values."""
    return {name: list(part) if isinstance(part, tuple) else part for name, part in vars(blend).items()}


def blend_of(stored: Any, horizon: int) -> Blend:
    """The inverse of :func:`plain_blend`, checked."""
    blend = Blend(int(stored["season"]), *(tuple(stored[name]) for name in ("choice", "correction", "model")))
    if {len(blend.choice), len(blend.correction), len(blend.model)} != {horizon} or blend.season < 1:
        raise ValueError("its blend does not match its horizon")
    if not all(number in range(len(NAIVES)) for number in blend.choice):
        raise ValueError("its blend names no simple forecast")
    if not all(0.0 <= float(weight) <= 1.0 for weight in (*blend.correction, *blend.model)):
        raise ValueError("the weights of its blend must be between 0 and 1")
    return blend
