"""Forecasts step by step: the past in one pass, then any number of steps into the future.

Shapes: B batch, P length of the past, M calendar features, K series.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from statespan._check import check_finite, check_tensor
from statespan.models import Forecaster
from statespan.nn.padding import Padding


def forecast(
    model: Forecaster,
    past: Tensor | None,
    steps: int,
    *,
    marks: Tensor | None,
    lengths: Tensor | Sequence[int] | None,
    dt_scale: float,
    callback: Callable[[int, Tensor], Any] | None,
) -> Tensor:
    """Forecast values (B, steps, K) after the past (B, P, d_input).

    The model's own forecast, one position at a time, so it need not end at the horizon it was trained for. Its inputs
    are masked, so nothing is fed back.
    """
    config, like = model.config, next(model.parameters())
    past = check_tensor("prompt", past, ("batch", "length", config.d_input), kind="float")
    batch, length, _ = past.shape
    if lengths is not None and config.d_marks:
        raise ValueError("lengths must be None with marks, which have fixed positions, got lengths")
    if marks is not None:
        marks = check_tensor("marks", marks, (batch, length + steps, config.d_marks), kind="float").to(like.device)
    past = past.to(like.device, like.dtype)
    padding = Padding.of(past, lengths)
    check_finite("prompt", past, None if padding is None else padding.mask)
    early = None if marks is None else marks[:, :length]
    _, state = model.prefill(past, marks=early, lengths=padding, dt_scale=dt_scale)
    step, masked, values = model.stepper(dt_scale, in_place=True), past.new_zeros(batch, config.d_input), []
    for i in range(steps):
        y, state = step(masked, state, None if marks is None else marks[:, length + i], future=True)
        values.append(y)
        if callback is not None and callback(i, y):
            break
    return torch.stack(values, 1)
