"""Statistics do not depend on the unit: values times a number have those times that number."""

import numpy as np
import pytest

from statespan.data.scale import ScaledInfo, divisor, moments, standardize, statistics

VALUES = np.random.default_rng(0).normal(3.0, 2.0, (50, 4))


@pytest.mark.parametrize("exponent", [-1000, -500, -100, -40, 0, 40, 100, 500, 1000])
def test_powers_of_two_change_no_digit(exponent):
    for known in (None, np.random.default_rng(1).random(VALUES.shape) < 0.7):
        mean, std = moments(VALUES, known)
        scaled = moments(np.ldexp(VALUES, exponent), known)
        assert np.array_equal(scaled[0], np.ldexp(mean, exponent))
        assert np.array_equal(scaled[1], np.ldexp(std, exponent))
    assert (std > 0).all()


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e-13, 1.0, 1e30, 1e300])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_constant_is_what_rounding_leaves_of_one_number_in_any_unit(scale, kind):
    if kind is np.float32 and not 1e-30 <= scale <= 1e30:
        scale = np.sqrt(np.sqrt(np.sqrt(scale)))  # float32 ends at 3e38
    eps = np.finfo(kind).eps
    ones = np.ones(200)
    ones[::7] += eps  # the next number
    ones[::9] -= eps / 2  # and the one before
    small = np.ones(200)
    small[::3] += 32 * eps
    mean, std = moments((np.stack([ones, small, -ones, 0 * ones], 1) * scale).astype(kind))
    assert std[0] == std[2] == std[3] == 0
    assert std[1] == pytest.approx(32 * eps * np.sqrt(2) / 3 * scale, rel=0.1)
    assert divisor(mean, std) == pytest.approx([scale, std[1], scale, 1.0], rel=1e-6)


def test_float64_resolves_what_float32_does_not():
    values = 1e7 + np.arange(4.0)[:, None]
    assert moments(values)[1] == pytest.approx(np.arange(4.0).std())
    assert moments(values.astype(np.float32))[1] == 0  # three steps of float32 there


def test_nothing_known_has_no_scale_and_no_level():
    mean, std = statistics(np.full((3, 2), 7.0), np.array([[False, True]] * 3))
    assert mean.tolist() == [0, 7]
    assert std.tolist() == [1, 7]


def test_what_float32_cannot_hold_is_refused_with_its_place():
    values = np.zeros((4, 2))
    values[3, 1] = 1e300
    with pytest.raises(ValueError, match=r"X\[3, 1\] must be within 3e\+38 standard deviations .*, got 1e\+300"):
        standardize(values, np.zeros(2), np.ones(2), "X")
    assert standardize(values, np.zeros(2), np.full(2, 1e300))[3, 1] == 1


def test_only_what_is_known_counts():
    known = np.random.default_rng(1).random(VALUES.shape) < 0.7
    mean, std = moments(np.where(known, VALUES, 1e6), known)
    columns = [VALUES[rows, i] for i, rows in enumerate(known.T)]
    assert mean == pytest.approx([column.mean() for column in columns], rel=1e-12)
    assert std == pytest.approx([column.std() for column in columns], rel=1e-12)


def test_constants_are_divided_by_their_magnitude_and_nothing_by_zero():
    values = np.array([[2.0, 0.0, -4.0], [2.0, 0.0, -4.0]])
    mean, std = statistics(values)
    assert std.tolist() == [2.0, 1.0, 4.0]
    assert standardize(values, mean, std).tolist() == [[0.0] * 3] * 2


def test_errors_of_forecasts_stay_standardised():
    of = {
        task: ScaledInfo(task, 9, 1, None, 1, target_mean=(3.0,), target_std=(2.0,))
        for task in ("regression", "forecast")
    }
    assert of["regression"].scale == (2.0,)
    assert of["forecast"].scale is None
    assert ScaledInfo("regression", 9, 1, None, 1).scale is None
