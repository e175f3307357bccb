"""An LSTM that reads the context and forecasts the whole horizon at once.

Shapes: B windows, T context, H horizon, C columns read, K forecast, M calendar features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from statespan._check import check_int


class LSTM(nn.Module):
    """LSTM layers over the context and its calendar; a linear map of the last hidden state gives the horizon.

    Args:
        context: Rows T.
        horizon: Rows H.
        d_input: Columns C.
        d_output: Columns K.
        d_marks: Calendar features M.
        d_model: Hidden features.
        n_layers: Layers.
        dropout: Between the layers and before the map.

    Example:
        >>> model = LSTM(48, 24, d_input=3, d_output=3, d_marks=4, d_model=16)
        >>> model(torch.randn(2, 72, 3), marks=torch.randn(2, 72, 4)).shape
        torch.Size([2, 24, 3])
    """

    def __init__(
        self,
        context: int,
        horizon: int,
        *,
        d_input: int,
        d_output: int,
        d_marks: int = 0,
        d_model: int = 128,
        n_layers: int = 2,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.context = check_int("context", context, minimum=1)
        self.horizon, self.d_output = check_int("horizon", horizon, minimum=1), d_output
        self.layers = nn.LSTM(d_input + d_marks, d_model, n_layers, batch_first=True, dropout=dropout)
        self.dropout = nn.Dropout(dropout)
        self.map = nn.Linear(d_model, horizon * d_output)

    def forward(self, x: Tensor, *, marks: Tensor | None = None) -> Tensor:
        """The forecast (B, H, K) of x (B, T + H, C)."""
        known = x[:, : self.context]
        if marks is not None:
            known = torch.cat([known, marks[:, : self.context]], -1)
        last = self.layers(known)[0][:, -1]
        return self.map(self.dropout(last)).unflatten(-1, (self.horizon, self.d_output))
