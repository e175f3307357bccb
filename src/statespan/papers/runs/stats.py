"""Spreads and significance tests."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev


def spread(values: Sequence[float]) -> float | None:
    """The standard deviation of a sample (divided by n − 1); None for a single value.

    Example:
        >>> spread([1.0, 3.0]), spread([1.0])
        (1.4142135623730951, None)
    """
    return stdev(values) if len(values) > 1 else None


def welch(a: Sequence[float], b: Sequence[float]) -> float | None:
    """The two-sided p-value of Welch's t-test; None with fewer than two values per group, or no spread at all.

    Example:
        >>> round(welch([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]), 4)
        0.2209
    """
    first, second = spread(a), spread(b)
    if first is None or second is None or first == second == 0.0:
        return None
    from scipy.stats import ttest_ind_from_stats  # takes a second to import

    return float(ttest_ind_from_stats(fmean(a), first, len(a), fmean(b), second, len(b), equal_var=False).pvalue)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """p-values with Holm's correction for multiple tests; None stays None.

    Example:
        >>> holm([0.01, None, 0.04])
        [0.02, None, 0.04]
    """
    ranked = sorted((value, index) for index, value in enumerate(values) if value is not None)
    corrected: list[float | None] = [None] * len(values)
    largest = 0.0
    for rank, (value, index) in enumerate(ranked):
        largest = max(largest, min(1.0, value * (len(ranked) - rank)))
        corrected[index] = largest
    return corrected
