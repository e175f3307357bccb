"""One linear map from the context to the horizon, the same for all columns (Zeng et al., AAAI 2023).

Shapes: B windows, T context, H horizon, C columns.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from statespan._check import check_int


class NLinear(nn.Module):
    """A linear map of the context relative to its last row.

    Args:
        context: Rows T.
        horizon: Rows H.

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
    """One linear map of the trend, a moving average, and one of the remainder.

    Args:
        context: Rows T.
        horizon: Rows H.
        window: Rows of the moving average, odd.

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
        padded = torch.cat([known[..., :1].expand(-1, -1, side), known, known[..., -1:].expand(-1, -1, side)], -1)
        trend = nn.functional.avg_pool1d(padded, self.window, stride=1)
        return (self.trend(trend) + self.rest(known - trend)).mT


def _mean_map(context: int, horizon: int) -> nn.Linear:
    """A linear map initialised to the mean, as in the authors' code."""
    linear = nn.Linear(context, horizon)
    nn.init.constant_(linear.weight, 1.0 / context)
    nn.init.zeros_(linear.bias)
    return linear
