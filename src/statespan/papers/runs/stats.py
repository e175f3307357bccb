"""Means, spreads, and whether a difference could be chance."""

from __future__ import annotations

import math
from collections.abc import Sequence


def mean(values: Sequence[float]) -> float:
    """The mean."""
    return math.fsum(values) / len(values)


def spread(values: Sequence[float]) -> float | None:
    """The standard deviation of a sample (divided by n − 1); None for a single value.

    Example:
        >>> spread([1.0, 3.0]), spread([1.0])
        (1.4142135623730951, None)
    """
    if len(values) < 2:
        return None
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def welch(a: Sequence[float], b: Sequence[float]) -> float | None:
    """The two-sided p-value of Welch's t-test: how often means would differ so much if there were no difference.

    Args:
        a: Values of one kind.
        b: Values of the other; the spreads may differ.

    Returns:
        The p-value; None where it is not defined: fewer than two values of a kind, or no spread at all.

    Example:
        >>> round(welch([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]), 4)
        0.2209
    """
    if len(a) < 2 or len(b) < 2:
        return None
    parts = [(spread(values) or 0.0) ** 2 / len(values) for values in (a, b)]
    if sum(parts) == 0.0:
        return None
    t2 = (mean(a) - mean(b)) ** 2 / sum(parts)
    freedom = sum(parts) ** 2 / sum(part**2 / (len(values) - 1) for part, values in zip(parts, (a, b)))
    return _beta(freedom / (freedom + t2), freedom / 2, 0.5)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """p-values corrected for their number, by Holm's rule; those that are None stay so.

    Example:
        >>> holm([0.01, None, 0.04])
        [0.02, None, 0.04]
    """
    order = sorted((value, place) for place, value in enumerate(values) if value is not None)
    found: list[float | None] = [None] * len(values)
    largest = 0.0
    for rank, (value, place) in enumerate(order):
        largest = max(largest, min(1.0, value * (len(order) - rank)))
        found[place] = largest
    return found


def _beta(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function I_x(a, b), by its continued fraction."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly
        return 1.0 - _beta(1.0 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    tiny = 1e-300
    c, d = 1.0, 1.0 / _away(1.0 - (a + b) * x / (a + 1), tiny)
    total = d
    for m in range(1, 400):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / _away(1.0 + term * d, tiny)
            c = _away(1.0 + term / c, tiny)
            total *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return front * total / a


def _away(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny
