"""Standardization with the statistics of the training data, and back to the original units.

Shapes: K columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from statespan.data.base import Array, Info

ROUNDING = 4  # a constant's values may differ by this many relative rounding errors
EXTREME = 400  # powers of two; beyond, squares leave the range of float64


@dataclass(frozen=True)
class ScaledInfo(Info):
    """An :class:`Info` whose targets are standardised: original = standardised · target_std + target_mean.

    Example:
        >>> ScaledInfo("regression", 4000, 2, None, 1, target_mean=(89.0,), target_std=(13.0,)).scale
        (13.0,)
    """

    target_mean: tuple[float, ...] = ()  # (d_output,); empty if the targets are in their original units
    target_std: tuple[float, ...] = ()  # likewise
    columns: tuple[str, ...] = ()  # names of the d_output values, if they have any

    @property
    def scale(self) -> tuple[float, ...] | None:
        """The factor of reported errors; forecast errors stay standardized, as is customary."""
        return self.target_std if self.task == "regression" and self.target_std else None


def moments(values: Array, known: Array | None = None, axes: tuple[int, ...] | None = None) -> tuple[Array, Array]:
    """Mean and standard deviation over some axes, float64; the deviation of a constant is exactly 0.

    Both scale with the unit of the values. So does the test for a constant: its values differ by no more than the
    rounding error of the largest one, in their dtype. The values (…, K) are finite floats, of which only the ``known``
    ones count; without any, both results are 0. The axes are by default all but the last.

    Example:
        >>> moments(np.array([[0.0, 1e-30], [2.0, 3e-30]]))
        (array([1.e+00, 2.e-30]), array([1.e+00, 1.e-30]))
    """
    axes = tuple(range(values.ndim - 1)) if axes is None else axes
    where: Any = True if known is None else known
    low = values.min(axes, initial=np.inf, where=where).astype(np.float64)
    high = values.max(axes, initial=-np.inf, where=where).astype(np.float64)
    low, high = (np.where(low > high, 0.0, end) for end in (low, high))  # nothing is known
    exponent = np.frexp(np.maximum(np.abs(low), np.abs(high)))[1]
    if (np.abs(exponent) > EXTREME).any():  # by powers of two, which change no digit
        values = np.ldexp(values.astype(np.float64), -np.expand_dims(exponent, axes))
    else:
        exponent = np.zeros_like(exponent)
    low, high = np.ldexp(low, -exponent), np.ldexp(high, -exponent)
    mean, std = _mean_and_deviation(values, known, axes)
    constant = high - low <= ROUNDING * np.finfo(values.dtype).eps * np.maximum(np.abs(low), np.abs(high))
    return np.ldexp(mean, exponent), np.ldexp(np.where(constant, 0.0, std), exponent)


def magnitude(values: Array) -> Array:
    """The power of two above the largest magnitude of each column (…, K), whole numbers (K,).

    Example:
        >>> magnitude(np.array([[-3.0, 0.1], [1.0, 0.0]])).tolist()
        [2, -3]
    """
    return np.frexp(np.abs(values).max(0))[1]


def divisor(mean: Array, std: Array) -> Array:
    """The divisor of a standardization: the deviation; for a constant its magnitude, or 1 if that is 0.

    Example:
        >>> divisor(np.array([3.0, -5.0, 0.0]), np.array([2.0, 0.0, 0.0])).tolist()
        [2.0, 5.0, 1.0]
    """
    return np.where(std > 0, std, np.where(mean != 0, np.abs(mean), 1.0))


def statistics(values: Array, known: Array | None = None, axes: tuple[int, ...] | None = None) -> tuple[Array, Array]:
    """Mean and divisor: :func:`moments` and :func:`divisor`.

    Example:
        >>> statistics(np.array([[0.0, 5.0], [2.0, 5.0]]))
        (array([1., 5.]), array([1., 5.]))
    """
    mean, std = moments(values, known, axes)
    return mean, divisor(mean, std)


def standardize(values: Array, mean: Array, std: Array, name: str = "values") -> Array:
    """Standardize the columns of values (…, K): subtract the mean, divide by the standard deviation; float32.

    The values are finite, and ``name`` is what an error calls them. A result too large for float32 is a ValueError that
    says where.

    Example:
        >>> standardize(np.array([[0.0], [2.0]]), np.array([1.0]), np.array([0.5])).tolist()
        [[-2.0], [2.0]]
    """
    with np.errstate(over="ignore"):
        centred = values - mean
        centred /= std
        scaled = centred.astype(np.float32)
    if not np.isfinite(scaled).all():
        at = tuple(int(i[0]) for i in np.nonzero(~np.isfinite(scaled)))
        raise ValueError(
            f"{name}[{', '.join(map(str, at))}] must be within {np.finfo(np.float32).max:.0e} standard deviations of "
            f"the mean of the training data, got {values[at]:g}; check its unit"
        )
    return scaled


def _mean_and_deviation(values: Array, known: Array | None, axes: tuple[int, ...]) -> tuple[Array, Array]:
    if known is None:
        return values.mean(axes, dtype=np.float64), values.std(axes, dtype=np.float64)
    count = np.maximum(known.sum(axes), 1)
    mean = np.where(known, values, 0.0).sum(axes, dtype=np.float64) / count
    centred = np.where(known, values - np.expand_dims(mean, axes), 0.0)
    return mean, np.sqrt(np.square(centred).sum(axes, dtype=np.float64) / count)
