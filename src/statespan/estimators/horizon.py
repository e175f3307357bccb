"""The forecasting network: S4 with a masked horizon, inside a reversible normalisation of each window.

A window is forecast relative to its own last known values (as NLinear does), or to its mean, so the network need not
know levels it never saw. Columns are forecast one by one with the same weights, or all together.

Shapes: B windows, T context, H horizon, C columns, M calendar features, Q quantiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from statespan._check import check_bool, check_choice, check_int
from statespan.models import Forecaster, ForecasterConfig
from statespan.models.config import parse

CENTRES = ("last", "mean", "none")


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
    d_marks: int  # calendar features M
    quantiles: int  # number Q of quantiles beside the mean
    centre: str  # "last", "mean" or "none": what is subtracted from a window
    joint: bool  # read and forecast all columns together; else one by one, with the same weights
    masked: bool  # whether it is told which values are missing
    options: dict[str, Any]  # the other fields of statespan.models.ForecasterConfig

    def __post_init__(self) -> None:
        for name, least in (("columns", 1), ("context", 1), ("horizon", 1), ("d_marks", 0), ("quantiles", 0)):
            check_int(name, getattr(self, name), minimum=least)
        check_choice("centre", self.centre, CENTRES)
        check_bool("joint", self.joint)
        check_bool("masked", self.masked)

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

    def __init__(self, config: HorizonConfig) -> None:
        super().__init__()
        self.config = config
        self.body = Forecaster(config.body_config())

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
        config = self.config
        batch, rows, columns = known.shape[0], known.shape[1], config.columns
        values = known[..., :columns]
        centre = self._centre(known)  # (B, 1, C)
        parts = [values - centre]
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
        return y + centre[..., None]

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
