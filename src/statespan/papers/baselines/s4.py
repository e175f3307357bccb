"""The S4 of the harness: the estimators' network without quantiles.

Shapes: B windows, T context, H horizon, C columns, M calendar features.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from statespan.estimators.horizon import Horizon, HorizonConfig


class S4(nn.Module):
    """Masked sequence-to-sequence S4D (S4 paper, figure 5) on windows relative to their own level.

    Args:
        context: Rows T.
        horizon: Rows H.
        columns: Columns C, read and forecast one by one with the same weights.
        d_marks: How many of the calendar features to read, the first ones; 0 for none.
        centre: "last", "mean" or "none": the reference level of each window.
        options: Fields of :class:`statespan.models.ForecasterConfig`.

    Example:
        >>> import torch
        >>> model = S4(48, 24, columns=3, d_marks=4, options={"d_model": 8, "n_layers": 1, "layer": "s4d"})
        >>> model(torch.randn(2, 72, 3), marks=torch.randn(2, 72, 4)).shape
        torch.Size([2, 24, 3])
    """

    def __init__(
        self,
        context: int,
        horizon: int,
        *,
        columns: int,
        d_marks: int = 0,
        centre: str = "last",
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.network = Horizon(
            HorizonConfig(columns, context, horizon, d_marks, 0, centre, False, False, options or {})
        )

    def forward(self, x: Tensor, *, marks: Tensor | None = None) -> Tensor:
        """The forecast (B, H, C) of x (B, T + H, C)."""
        read = self.network.config.d_marks
        return self.network(x, marks=marks[..., :read] if read and marks is not None else None)[..., 0]
