"""Standardisation of series: by channel with the training series' statistics, by each series' own, or not at all.

Shapes: n series, L length, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from statespan._check import check_choice
from statespan.data.scale import standardize, statistics
from statespan.estimators.inputs.series import Array, Panel
from statespan.estimators.store import numbers_in

STANDARDS = ("channel", "series", "none")


@dataclass(frozen=True)
class Scale:
    """How series are standardised.

    Example:
        >>> from statespan.estimators.inputs.series import as_panel
        >>> panel = as_panel([[1.0, 3.0], [5.0]])
        >>> scale = Scale.of(panel, "channel")
        >>> scale.mean.tolist(), scale.apply(panel)[:, :, 0].round(1).tolist()
        ([3.0], [[-1.2000000476837158, 0.0], [1.2000000476837158, 0.0]])
    """

    how: str  # "channel", "series" or "none"
    mean: Array  # (C,), of the known values of the training series
    std: Array  # (C,); the magnitude of a constant channel

    @classmethod
    def of(cls, panel: Panel, how: str) -> Scale:
        """The statistics of training series."""
        channels = panel.values.shape[2]
        if check_choice("standardize", how, STANDARDS) != "channel":
            return cls(how, np.zeros(channels), np.ones(channels))
        known = panel.known if panel.ragged or panel.missing is not None else None
        return cls(how, *statistics(panel.values, known))

    def apply(self, panel: Panel) -> Array:
        """The series (n, L, C) standardised, float32; 0 where there is no value."""
        known = panel.known if panel.ragged or panel.missing is not None else None
        mean, std = self.mean, self.std
        if self.how == "series":
            mean, std = (part[:, None] for part in statistics(panel.values, known, (1,)))  # (n, 1, C)
        values = panel.values if known is None else np.where(known, panel.values, mean)
        return standardize(values, mean, std, "X")

    @classmethod
    def from_dict(cls, stored: Any, channels: int) -> Scale:
        """The statistics of a saved estimator."""
        mean, std = (numbers_in(stored[name], f"the {name}", (channels,)) for name in ("mean", "std"))
        if not (std > 0).all():
            raise ValueError("the std of an estimator must be positive")
        return cls(check_choice("how", stored["how"], STANDARDS), mean, std)
