"""Means, spreads and the test, against scipy and by hand."""

from statistics import fmean

import numpy as np
import pytest
from scipy.stats import ttest_ind

from statespan.papers.runs.stats import holm, spread, welch


@pytest.mark.parametrize(("n", "m", "gap"), [(2, 2, 0.1), (2, 3, 3.0), (3, 3, 0.0), (5, 4, 1.0), (30, 2, 8.0)])
def test_welch_is_scipys(n, m, gap):
    random = np.random.default_rng(n * m)
    a, b = random.normal(size=n), gap + 3 * random.normal(size=m)
    wanted = ttest_ind(a, b, equal_var=False).pvalue
    assert abs(welch(list(a), list(b)) - wanted) < 1e-12
    assert welch(list(a), list(b)) == welch(list(b), list(a))


def test_where_there_is_no_test():
    assert welch([1.0], [2.0, 3.0]) is None
    assert welch([1.0, 1.0], [2.0, 2.0]) is None
    assert welch([1.0, 1.0], [2.0, 3.0]) == pytest.approx(2 * np.arctan2(1, 3) / np.pi, abs=1e-12)  # Cauchy, t = 3


def test_mean_spread_and_holm():
    values = [0.1, 0.4, 0.9]
    assert fmean(values) == pytest.approx(np.mean(values), abs=1e-15)
    assert spread(values) == pytest.approx(np.std(values, ddof=1), abs=1e-15)
    assert holm([0.03, 0.01, None, 0.5]) == [0.06, 0.03, None, 0.5]
    assert holm([0.9, 0.8]) == [1.0, 1.0]
