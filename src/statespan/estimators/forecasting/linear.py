"""The linear path: ridge regression from a window to each row of the horizon, as in NLinear but in closed form.

With an infinite penalty it repeats the centre of the window, which is its last row by default; the penalty of each step
is the best one on validation windows. Reference for the model: Zeng et al., "Are Transformers effective for time series
forecasting?" (2023).

Shapes: N windows of one column, F features, H horizon.
"""

from __future__ import annotations

import torch
from torch import Tensor

from statespan.estimators.forecasting.blend import smooth

PENALTIES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)  # relative to the mean square of the features
MOST = 24_000  # windows of one column to learn from


def ridge(x: Tensor, y: Tensor, valid_x: Tensor, valid_y: Tensor) -> Tensor:
    """The map (F, H) from features (N, F) to targets (N, H), in float64, with the best penalty of each step.

    NaN targets of the validation windows do not count; those to learn from have none.

    Example:
        >>> x = torch.randn(200, 3, dtype=torch.float64)
        >>> wanted = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]], dtype=torch.float64)
        >>> torch.testing.assert_close(ridge(x, x @ wanted, x, x @ wanted), wanted, atol=1e-4, rtol=1e-4)
    """
    x, y, valid_x, valid_y = (part.double() for part in (x, y, valid_x, valid_y))
    gram = x.mT @ x
    level = float(gram.diagonal().mean())
    zero = torch.zeros(x.shape[1], y.shape[1], dtype=torch.float64)
    if not level > 0:
        return zero
    values, vectors = torch.linalg.eigh(gram)
    turned = vectors.mT @ (x.mT @ y)
    maps = [zero, *(vectors @ (turned / (values.clamp(min=0) + level * p)[:, None]) for p in PENALTIES)]
    errors = torch.stack([_smooth((valid_y - valid_x @ weights).square().nanmean(0)) for weights in maps])
    best = errors.nan_to_num(torch.inf).argmin(0)  # of equal ones the first, which is to learn nothing
    return torch.stack(maps).gather(0, best.expand(1, *zero.shape)).squeeze(0)


def _smooth(errors: Tensor) -> Tensor:
    """The mean of each step and its neighbours (H,), so that chance does not choose."""
    return torch.from_numpy(smooth(errors.numpy()))
