"""Standardisation with the statistics of the training data, and the way back to the original units.

Shapes: K columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from statespan.data.base import Info


@dataclass(frozen=True)
class ScaledInfo(Info):
    """An :class:`Info` whose targets are standardised: original = standardised · target_std + target_mean.

    Args:
        target_mean: One number for each of the d_output values; empty where the targets are in their own units.
        target_std: The same.
        columns: Names of the d_output values, where they have some.

    Example:
        >>> ScaledInfo("regression", 4000, 2, None, 1, target_mean=(89.0,), target_std=(13.0,)).scale
        (13.0,)
    """

    target_mean: tuple[float, ...] = ()
    target_std: tuple[float, ...] = ()
    columns: tuple[str, ...] = ()

    @property
    def scale(self) -> tuple[float, ...] | None:
        """What reported errors are multiplied with; those of forecasts stay standardised, as everyone compares them."""
        return self.target_std if self.task == "regression" and self.target_std else None


def statistics(values: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Mean and standard deviation (K,) of the columns of values (…, K), float64; that of a constant column is 1.

    Example:
        >>> statistics(np.array([[0.0, 5.0], [2.0, 5.0]]))
        (array([1., 5.]), array([1., 1.]))
    """
    axes = tuple(range(values.ndim - 1))
    mean = values.mean(axes, dtype=np.float64)
    std = values.std(axes, dtype=np.float64)
    # the spread that rounding leaves in a constant column is no spread
    return mean, np.where(std > 1e-12 * np.maximum(1.0, np.abs(mean)), std, 1.0)


def standardize(
    values: np.ndarray[Any, Any], mean: np.ndarray[Any, Any], std: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """The columns of values (…, K) minus their mean over their standard deviation, float32.

    Example:
        >>> standardize(np.array([[0.0], [2.0]]), np.array([1.0]), np.array([0.5])).tolist()
        [[-2.0], [2.0]]
    """
    return ((values - mean) / std).astype(np.float32)
