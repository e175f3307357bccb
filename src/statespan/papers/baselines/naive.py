"""The seasonal naive forecast, which every model has to beat: the last season repeated."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from statespan._check import check_int


class SeasonalNaive(nn.Module):
    """Forecasts the value of one season before, or of the latest season where it is known. No parameters.

    Args:
        context: Rows T that are known.
        horizon: Rows H to forecast.
        season: Rows of a season: 24 for hourly data with a daily rhythm.

    Example:
        >>> x = torch.arange(10.0).view(1, 10, 1)
        >>> SeasonalNaive(6, 4, season=3)(x).flatten().tolist()
        [3.0, 4.0, 5.0, 3.0]
    """

    def __init__(self, context: int, horizon: int, season: int) -> None:
        super().__init__()
        self.context = check_int("context", context, minimum=1)
        self.horizon = check_int("horizon", horizon, minimum=1)
        if check_int("season", season, minimum=1) > context:
            raise ValueError(f"season must be at most the context, {context}, got {season}")
        rows = context - season + torch.arange(horizon) % season
        self.register_buffer("rows", rows, persistent=False)

    def forward(self, x: Tensor, *, marks: Tensor | None = None) -> Tensor:
        """The forecast (B, H, C) of x (B, T + H, C)."""
        rows: Tensor = self.rows  # type: ignore[assignment]
        return x.index_select(1, rows)
