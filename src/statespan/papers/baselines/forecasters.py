"""The forecasters that are compared in the tables: S4, LSTM, linear maps, the seasonal naive forecast, and their mean.

Each is made for a context T and a horizon H, in rows, and called as ``model(x, marks=marks)`` with x (B, T + H, C), of
which only the first T rows are read. It returns the forecast (B, H, K).

Shapes: B windows, T context, H horizon, C columns, K forecast columns, M calendar features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from statespan._check import check_int
from statespan.estimators.horizon import Horizon, HorizonConfig

LSTM_DROPOUT = 0.1  # between its layers and before its linear map


class S4Baseline(nn.Module):
    """Masked sequence-to-sequence S4D (S4 paper, figure 5) on windows relative to their own level.

    The ``columns`` C are read and forecast one by one with the same weights, beside the first ``d_marks`` calendar
    features. ``centre`` is the level of a window: "last", "mean" or "none". ``options`` are fields of
    :class:`statespan.models.ForecasterConfig`.

    Example:
        >>> model = S4Baseline(48, 24, columns=3, d_marks=4, options={"d_model": 8, "n_layers": 1, "layer": "s4d"})
        >>> model(torch.randn(2, 72, 3), marks=torch.randn(2, 72, 4)).shape
        torch.Size([2, 24, 3])
    """

    def __init__(
        self,
        context: int,
        horizon: int,
        *,
        columns: int,
        d_marks: int,
        centre: str = "last",
        options: dict[str, Any],
    ) -> None:
        super().__init__()
        self.network = Horizon(HorizonConfig(columns, context, horizon, d_marks, 0, centre, False, False, options))

    def forward(self, x: Tensor, *, marks: Tensor | None = None) -> Tensor:
        """The forecast (B, H, C) of x (B, T + H, C)."""
        read = self.network.config.d_marks
        return self.network(x, marks=marks[..., :read] if read and marks is not None else None)[..., 0]


class LSTM(nn.Module):
    """Two LSTM layers over the context and its calendar; a linear map of the last hidden state gives the horizon.

    Example:
        >>> model = LSTM(48, 24, d_input=3, d_output=3, d_marks=4, d_model=16)
        >>> model(torch.randn(2, 72, 3), marks=torch.randn(2, 72, 4)).shape
        torch.Size([2, 24, 3])
    """

    def __init__(
        self, context: int, horizon: int, *, d_input: int, d_output: int, d_marks: int, d_model: int = 128
    ) -> None:
        super().__init__()
        self.context = check_int("context", context, minimum=1)
        self.horizon, self.d_output = check_int("horizon", horizon, minimum=1), d_output
        self.layers = nn.LSTM(d_input + d_marks, d_model, num_layers=2, batch_first=True, dropout=LSTM_DROPOUT)
        self.dropout = nn.Dropout(LSTM_DROPOUT)
        self.map = nn.Linear(d_model, horizon * d_output)

    def forward(self, x: Tensor, *, marks: Tensor | None = None) -> Tensor:
        """The forecast (B, H, K) of x (B, T + H, C)."""
        known = x[:, : self.context]
        if marks is not None:
            known = torch.cat([known, marks[:, : self.context]], -1)
        last = self.layers(known)[0][:, -1]
        return self.map(self.dropout(last)).unflatten(-1, (self.horizon, self.d_output))


class NLinear(nn.Module):
    """A linear map of the context relative to its last row, the same for all columns (Zeng et al., AAAI 2023).

    Example:
        >>> NLinear(48, 24)(torch.randn(2, 48 + 24, 3)).shape
        torch.Size([2, 24, 3])
    """

    def __init__(self, context: int, horizon: int) -> None:
        super().__init__()
        self.context = check_int("context", context, minimum=1)
        self.map = _mean_map(self.context, check_int("horizon", horizon, minimum=1))

    def forward(self, x: Tensor, *, marks: Tensor | None = None) -> Tensor:
        """The forecast (B, H, C) of x (B, T + H, C)."""
        known = x[:, : self.context]
        last = known[:, -1:]
        return self.map((known - last).mT).mT + last


class DLinear(nn.Module):
    """One linear map of the trend, a moving average, and one of the remainder (Zeng et al., AAAI 2023).

    Example:
        >>> DLinear(48, 24)(torch.randn(2, 48 + 24, 3)).shape
        torch.Size([2, 24, 3])
    """

    def __init__(self, context: int, horizon: int, *, window: int = 25) -> None:
        super().__init__()
        self.context = check_int("context", context, minimum=1)
        check_int("horizon", horizon, minimum=1)
        if check_int("window", window, minimum=1) % 2 == 0:
            raise ValueError(f"window must be odd, got {window}")
        self.window = window
        self.trend, self.rest = _mean_map(context, horizon), _mean_map(context, horizon)

    def forward(self, x: Tensor, *, marks: Tensor | None = None) -> Tensor:
        """The forecast (B, H, C) of x (B, T + H, C)."""
        known = x[:, : self.context].mT  # (B, C, T)
        side = self.window // 2
        padded = nn.functional.pad(known, (side, side), mode="replicate")
        trend = nn.functional.avg_pool1d(padded, self.window, stride=1)
        return (self.trend(trend) + self.rest(known - trend)).mT


def _mean_map(context: int, horizon: int) -> nn.Linear:
    """A linear map initialised to the mean, as in the authors' code."""
    linear = nn.Linear(context, horizon)
    nn.init.constant_(linear.weight, 1.0 / context)
    nn.init.zeros_(linear.bias)
    return linear


class SeasonalNaive(nn.Module):
    """Forecasts the value of one season before, or of the latest season where it is known. No parameters.

    A ``season`` is in rows: 24 for hourly data with a daily rhythm.

    Example:
        >>> x = torch.arange(10.0).view(1, 10, 1)
        >>> SeasonalNaive(6, 4, season=3)(x).flatten().tolist()
        [3.0, 4.0, 5.0, 3.0]
    """

    rows: Tensor

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
        return x.index_select(1, self.rows)


class MeanForecaster(nn.Module):
    """Forecasts the mean of the forecasts of its members, which are trained separately; for evaluation only.

    Where one member is far off after an unforeseen change, the others limit the error. Each member has a context of its
    own and reads the last rows of a window.

    Example:
        >>> days, weeks = SeasonalNaive(24, 2, 24), SeasonalNaive(168, 2, 168)
        >>> both = MeanForecaster([days, weeks], [24, 168], 2).eval()
        >>> x = torch.arange(170.0)[None, :, None]
        >>> days(x[:, -26:])[0, :, 0], weeks(x)[0, :, 0], both(x)[0, :, 0]
        (tensor([144., 145.]), tensor([0., 1.]), tensor([72., 73.]))
    """

    def __init__(self, members: Sequence[nn.Module], contexts: Sequence[int], horizon: int) -> None:
        super().__init__()
        if not members or len(members) != len(contexts):
            raise ValueError(
                f"members must be at least one, and contexts as many, got {len(members)} members and "
                f"{len(contexts)} contexts"
            )
        self.members = nn.ModuleList(members)
        self.rows = [check_int("contexts", context, minimum=1) + horizon for context in contexts]

    def forward(self, x: Tensor, *, marks: Tensor | None = None) -> Tensor:
        """The forecast (B, H, K) of x (B, T + H, C), with T the longest context, and marks (B, T + H, M)."""
        if self.training:
            raise RuntimeError("MeanForecaster is in training mode: train its members, then call eval()")
        forecasts = [
            member(x[:, -rows:], marks=None if marks is None else marks[:, -rows:])
            for member, rows in zip(self.members, self.rows)
        ]
        return torch.stack(forecasts).mean(0)
