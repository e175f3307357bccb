"""Forecasts of standardised rows: their mean, quantiles and sample paths, for any number of steps.

Shapes: B pasts, T rows, H steps, C columns, Q levels, M marks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from statespan.estimators.forecasting.blend import Blend
from statespan.estimators.forecasting.grid import from_grid
from statespan.estimators.forecasting.intervals import Errors, measured_scales, to_array
from statespan.estimators.horizon import Horizon
from statespan.estimators.inputs.series import Array

PATHS = 500  # from which quantiles beyond the trained horizon are taken


@dataclass(frozen=True)
class Judged:
    """A network with the weights of its parts and their errors on held-back windows; files of before have no errors.

    Example:
        >>> from statespan.estimators import S4Forecaster
        >>> small = {"context": 16, "d_model": 4, "n_layers": 1, "d_state": 2, "steps": 3, "verbose": 0}
        >>> y = np.sin(np.arange(120) / 4)
        >>> model = S4Forecaster(4, **small).fit(y[:100])
        >>> judged = Judged(model.network_, model.blend_, model.errors_, model.constant_)
        >>> judged.mean(torch.from_numpy(y[None, :16, None]).float(), 4, None).shape
        torch.Size([1, 4, 1])
    """

    network: Horizon
    blend: Blend
    errors: Errors | None
    constant: Array  # (C,) whether a column was constant in training

    def mean(self, known: Tensor, steps: int, marks: Tensor | None, dt_scale: float = 1.0) -> Tensor:
        """The mean (B, steps, C) of the rows after known ones (B, T, C or 2C); marks are (B, T + steps, M)."""
        found, _ = self._extended(known, steps, marks, dt_scale=dt_scale)
        return self._held(known, found)

    def quantiles(
        self, known: Tensor, steps: int, marks: Tensor | None, *, levels: tuple[float, ...], dt_scale: float = 1.0
    ) -> Array:
        """The quantiles (B, steps, C, Q) at sorted levels."""
        if steps > self._most(dt_scale) and self.errors is not None:
            rng = np.random.default_rng(0)
            parts = []
            for number in range(len(known)):
                one = None if marks is None else marks[number : number + 1]
                drawn = self.paths(known[number : number + 1], steps, one, count=PATHS, rng=rng, dt_scale=dt_scale)
                parts.append(np.moveaxis(np.quantile(drawn, levels, axis=0), 0, -1))
            return np.stack(parts)
        mean, added = self._extended(known, steps, marks, dt_scale=dt_scale)
        if self.errors is None:
            found = mean[..., None] + added[..., 1:] - added[..., :1]
        else:
            scale = self._scale(known, added)
            table = torch.from_numpy(self.errors.quantiles(levels))  # (Q, H, C or 1)
            grid = from_grid(table, table[:, :1], steps, dt_scale).permute(1, 2, 0)
            found = mean.cpu().double()[..., None] + torch.from_numpy(scale)[..., None] * grid
        return to_array(self._held(known, found.sort(-1).values))

    def paths(
        self,
        known: Tensor,
        steps: int,
        marks: Tensor | None,
        *,
        count: int,
        rng: np.random.Generator,
        dt_scale: float = 1.0,
    ) -> Array:
        """Sample paths (count, steps, C) after one past (1, T, C or 2C)."""
        if self.errors is None:
            raise ValueError("this forecaster was saved by an older version, without errors to draw from; fit again")
        marks = None if marks is None else marks.expand(count, -1, -1)
        past = known.expand(count, -1, -1)
        found, _ = self._extended(past, steps, marks, dt_scale=dt_scale, rng=rng)
        return to_array(self._held(past, found))

    def _extended(
        self,
        known: Tensor,
        steps: int,
        marks: Tensor | None,
        *,
        dt_scale: float,
        rng: np.random.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The mean, or a path with errors drawn at random, and what the network adds to the last rows.

        Beyond the trained horizon a forecast continues from itself.
        """
        columns, rows, most, parts = self.network.config.columns, known.shape[1], self._most(dt_scale), []
        added = known.new_zeros(0)
        for first in range(0, steps, most):
            ahead = min(most, steps - first)
            span = None if marks is None else marks[:, first : first + rows + ahead]
            found, added = self.blend.mean(self.network, known, ahead, span, dt_scale=dt_scale)
            if rng is not None and self.errors is not None:
                drawn = torch.from_numpy(self.errors.draw(len(known), rng))
                error = from_grid(drawn, torch.zeros_like(drawn[:, :1]), ahead, dt_scale)
                change = error.double() * torch.from_numpy(self._scale(known, added))
                found = found + change.to(found)
            parts.append(found)
            if first + ahead < steps:
                more = torch.cat([found, torch.ones_like(found)], -1) if known.shape[2] > columns else found
                known = torch.cat([known, more], 1)[:, -rows:]
        return torch.cat(parts, 1), added

    def _scale(self, known: Tensor, added: Tensor) -> Array:
        """The scale (B, 1 or steps, C) of the errors of these windows."""
        assert self.errors is not None
        values = known[..., : self.network.config.columns]
        scales = {"none": torch.ones_like(values[:, :1]), **measured_scales(values, added)}
        return self.errors.scale(to_array(scales[self.errors.kind]))

    def _most(self, dt_scale: float) -> int:
        return max(1, int(self.network.config.horizon / dt_scale))

    def _held(self, known: Tensor, found: Tensor) -> Tensor:
        """Forecasts (B, steps, C, …) with columns that were constant in fit held at the last of the known rows."""
        last = known[:, -1:, : len(self.constant)].to(found)
        shape = (1, 1, len(self.constant), *[1] * (found.ndim - 3))
        constant = torch.from_numpy(self.constant).to(found.device).view(shape)
        return torch.where(constant, last.view(*last.shape, *[1] * (found.ndim - 3)), found)
