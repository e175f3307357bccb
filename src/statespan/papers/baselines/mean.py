"""The mean of several models' forecasts.

Shapes: B windows, T context, H horizon, C columns, M calendar features, K forecast columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from statespan._check import check_int


class Mean(nn.Module):
    """Forecasts the mean of the forecasts of its members, which are trained separately; for evaluation only.

    Where one member is far off after an unforeseen change, the others limit the error.

    Args:
        members: The models, at least one.
        contexts: How many rows each member reads, the last ones of a window.
        horizon: Rows H.

    Example:
        >>> from statespan.papers.tables.forecasting import SeasonalNaive
        >>> days, weeks = SeasonalNaive(24, 2, 24), SeasonalNaive(168, 2, 168)
        >>> both = Mean([days, weeks], [24, 168], 2).eval()
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
            raise RuntimeError("Mean is for evaluation, and is in training mode: train its members, then call eval()")
        forecasts = [
            member(x[:, -rows:], marks=None if marks is None else marks[:, -rows:])
            for member, rows in zip(self.members, self.rows)
        ]
        return torch.stack(forecasts).mean(0)
