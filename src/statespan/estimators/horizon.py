"""The forecasting network: S4 with a masked horizon beside a linear path, inside a normalisation of each window.

A window is forecast relative to its own last known values (as NLinear does), or to its mean, so the network need not
know levels it never saw. The linear path is given; the S4 corrects it and starts as no correction. Columns are forecast
one by one with the same weights, or all together.

Shapes: B windows, T context, H horizon, C columns, M marks (covariates and calendar), Q quantiles, F features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from statespan._check import check_bool, check_choice, check_int
from statespan.estimators.forecasting.grid import from_grid, to_grid
from statespan.models import Forecaster, ForecasterConfig
from statespan.models.config import parse

CENTRES = ("last", "mean", "none")
PAST_ROWS = 48  # of covariates known for the past only, that the linear path reads
FLOOR = 1e-6  # deviation of a window, at least


@dataclass(frozen=True)
class HorizonConfig:
    """The config of a forecasting network, as plain values.

    Example:
        >>> plain = {"d_marks": 0, "quantiles": 0, "centre": "last", "joint": False, "masked": False}
        >>> config = HorizonConfig(columns=2, context=48, horizon=12, **plain, options={"d_model": 8, "n_layers": 1})
        >>> config.body_config().horizon
        12
    """

    columns: int  # C
    context: int  # rows T that it reads
    horizon: int  # rows H that it forecasts
    d_marks: int  # marks M: covariates of the past, static ones, those of the future, then the calendar
    quantiles: int  # number Q of quantiles beside the mean
    centre: str  # "last", "mean" or "none": what is subtracted from a window
    joint: bool  # read and forecast all columns together; else one by one, with the same weights
    masked: bool  # whether it is told which values are missing
    options: dict[str, Any]  # the other fields of statespan.models.ForecasterConfig
    linear: bool = False  # whether there is a linear path
    scaled: bool = False  # whether a window is divided by its deviation, for series of different size
    past: int = 0  # marks that are known for the past only; they come first
    static: int = 0  # marks that are the same in all rows of a series; they come next

    def __post_init__(self) -> None:
        for name, least in (("columns", 1), ("context", 1), ("horizon", 1), ("d_marks", 0), ("quantiles", 0)):
            check_int(name, getattr(self, name), minimum=least)
        check_choice("centre", self.centre, CENTRES)
        for name in ("joint", "masked", "linear", "scaled"):
            check_bool(name, getattr(self, name))
        for name in ("past", "static"):
            check_int(name, getattr(self, name), minimum=0)
        if self.past + self.static > self.d_marks:
            raise ValueError(f"d_marks must be at least past + static, got {self.d_marks}")

    @property
    def features(self) -> int:
        """The number of features F of the linear path."""
        return self.context + min(self.context, PAST_ROWS) * self.past + self.static + 1

    def body_config(self) -> ForecasterConfig:
        """The config of the S4 inside."""
        width = self.columns if self.joint else 1
        sizes = {
            "d_input": width * (2 if self.masked else 1),
            "d_output": width * (1 + self.quantiles),
            "horizon": self.horizon,
            "d_marks": self.d_marks,
        }
        return parse(ForecasterConfig, {**self.options, **sizes})


class Horizon(nn.Module):
    """Forecasts the mean and quantiles of the rows that follow a window.

    Example:
        >>> options = {"d_model": 8, "n_layers": 1, "d_state": 8, "layer": "s4d"}
        >>> network = Horizon(HorizonConfig(3, 48, 24, 0, 2, "last", False, False, options))
        >>> network(torch.randn(5, 48 + 24, 3)).shape  # the mean and two quantiles
        torch.Size([5, 24, 3, 3])
    """

    straight: Tensor

    def __init__(self, config: HorizonConfig) -> None:
        super().__init__()
        self.config = config
        self.body = Forecaster(config.body_config())
        if config.linear:
            self.register_buffer("straight", torch.zeros(config.features, config.horizon))
            linear = self.body.linear
            if isinstance(linear, nn.Linear):  # no correction to begin with
                nn.init.zeros_(linear.weight)
                nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, *, marks: Tensor | None = None, dt_scale: float = 1.0) -> Tensor:
        """The forecast (B, H, C, 1 + Q) of windows: the mean, then the quantiles.

        Of x (B, T + H, C) the first T rows are read; with a mask it is (B, T + H, 2C), the last C columns 1.0 where a
        value is known. ``marks`` are (B, T + H, M).
        """
        steps = x.shape[1] - self.config.context
        return self.after(x[:, : self.config.context], steps, marks, dt_scale)

    def after(self, known: Tensor, steps: int, marks: Tensor | None, dt_scale: float = 1.0) -> Tensor:
        """The forecast of the ``steps`` rows after known ones, however many either are.

        ``known`` is (B, rows, C), or (B, rows, 2C) with a mask, and ``marks`` are (B, rows + steps, M) if given.
        """
        return self.base(known, steps, marks, dt_scale)[..., None] + self.correction(known, steps, marks, dt_scale)

    def base(self, known: Tensor, steps: int, marks: Tensor | None, dt_scale: float = 1.0) -> Tensor:
        """The forecast (B, steps, C) of the linear path; without one the centre of each window."""
        config, centre = self.config, self._centre(known)
        if not config.linear:
            return centre.expand(-1, steps, -1)
        inputs, scale = self.linear_inputs(known, marks, dt_scale)
        ahead = (inputs @ self.straight).mT * scale + centre  # (B, H, C)
        most = int(config.horizon / dt_scale)
        if steps > most:
            raise ValueError(f"steps must be at most {most}, got {steps}")
        return from_grid(ahead, known[:, -1:, : config.columns], steps, dt_scale)

    def linear_inputs(self, known: Tensor, marks: Tensor | None, dt_scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """The features (B, C, F) of the linear path, and the scale (B, 1, C) of its outputs."""
        config, rows = self.config, known.shape[1]
        values, scale = self._normalized(known)
        batch, columns = len(values), config.columns
        parts = [to_grid(values, config.context, dt_scale).mT]
        if marks is not None and config.past:
            past = to_grid(marks[:, :rows, : config.past], min(config.context, PAST_ROWS), dt_scale)
            parts.append(past.flatten(1)[:, None].expand(batch, columns, -1))
        if marks is not None and config.static:
            static = marks[:, 0, config.past : config.past + config.static]
            parts.append(static[:, None].expand(batch, columns, -1))
        return torch.cat([*parts, values.new_ones(batch, columns, 1)], -1), scale

    def correction(self, known: Tensor, steps: int, marks: Tensor | None, dt_scale: float = 1.0) -> Tensor:
        """What the S4 adds to the linear path: (B, steps, C, 1 + Q)."""
        config = self.config
        batch, rows, columns = known.shape[0], known.shape[1], config.columns
        values, scale = self._normalized(known)
        parts = [values]
        if config.masked:
            mask = known[..., columns:]
            parts = [parts[0] * mask, mask]
        if config.joint:
            x = torch.cat(parts, -1)
        else:  # (B, rows, C) to (B · C, rows, 1 or 2)
            x = torch.stack(parts, -1).transpose(1, 2).flatten(0, 1)
            marks = None if marks is None else marks.repeat_interleave(columns, 0)
        x = nn.functional.pad(x, (0, 0, 0, steps))
        if steps == config.horizon:
            y = self.body(x, marks=marks, dt_scale=dt_scale)
        else:
            past, future = (None, None) if marks is None else (marks[:, :rows], marks[:, rows:])
            _, state = self.body.prefill(x[:, :rows], marks=past, dt_scale=dt_scale)
            y, _ = self.body.prefill(x[:, rows:], state, marks=future, dt_scale=dt_scale, future=True)
        kinds = 1 + config.quantiles
        # (B, H, C · kinds) or (B · C, H, kinds) to (B, H, C, kinds)
        alone = not config.joint
        y = y.unflatten(0, (batch, columns)).transpose(1, 2) if alone else y.unflatten(-1, (columns, kinds))
        return y * scale[..., None]

    def _normalized(self, known: Tensor) -> tuple[Tensor, Tensor]:
        """Windows relative to their centre, in units of their deviation if they are scaled, and those units."""
        centre = self._centre(known)
        values = known[..., : self.config.columns] - centre
        if not self.config.scaled:
            return values, torch.ones_like(centre)
        scale = values.square().mean(1, keepdim=True).sqrt() + FLOOR
        return values / scale, scale

    def _centre(self, known: Tensor) -> Tensor:
        """The centre that is subtracted from each window, (B, 1, C)."""
        config, values = self.config, known[..., : self.config.columns]
        if config.centre == "none":
            return torch.zeros_like(values[:, :1])
        last = values[:, -1:]  # missing values repeat the last known one
        if config.centre == "last":
            return last
        if not config.masked:
            return values.mean(1, keepdim=True)
        mask = known[..., config.columns :]
        count = mask.sum(1, keepdim=True)
        return torch.where(count > 0, (values * mask).sum(1, keepdim=True) / count.clamp(min=1.0), last)
