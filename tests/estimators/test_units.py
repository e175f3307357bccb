"""The unit of series and answers does not matter: not what is learnt, and not whether it is finite."""

import numpy as np
import pytest

from statespan.estimators import S4Forecaster, load
from tests.estimators.make import classifier, forecaster, regressor, waves

X, Y = waves(12, 24, channels=2)
TARGET = np.random.default_rng(0).normal(5.0, 2.0, (12, 2))
LONG = 10 + np.sin(np.arange(120) / 4)[:, None] * [1.0, 3.0]
TWOS = (2.0**-100, 2.0**100)  # units that change no digit: 8e-31 and 1e30
UNITS = (*TWOS, 1e-30, 1e-13, 1e30)
HOLES = np.where(np.random.default_rng(1).random(X.shape) < 0.1, np.nan, X)


@pytest.fixture(scope="module")
def plain():
    return {
        "regressor": regressor().fit(X, TARGET),
        "classifier": classifier().fit(X, Y),
        "forecaster": forecaster().fit(LONG),
    }


@pytest.mark.parametrize("unit", UNITS)
def test_a_regressor_has_the_same_answers_in_any_unit(plain, unit):
    model = regressor().fit(unit * X, TARGET / unit)
    wanted, found = plain["regressor"].predict(X), model.predict(unit * X) * unit
    if unit in TWOS:
        assert np.array_equal(found, wanted)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)
    assert model.score(unit * X, TARGET / unit) == pytest.approx(plain["regressor"].score(X, TARGET), abs=1e-3)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("options", [{}, {"standardize": "series"}, {"missing": "mask"}])
def test_a_classifier_has_the_same_answers_in_any_unit(plain, unit, options):
    series = HOLES if options.get("missing") else X
    one = classifier(**options).fit(series, Y) if options else plain["classifier"]
    wanted = one.predict_proba(series)
    found = classifier(**options).fit(unit * series, Y).predict_proba(unit * series)
    if unit in TWOS:
        assert np.array_equal(found, wanted)
    np.testing.assert_allclose(found, wanted, atol=1e-3)


@pytest.mark.parametrize("unit", UNITS)
def test_a_forecaster_has_the_same_answers_in_any_unit(plain, unit, tmp_path):
    model = forecaster().fit(unit * LONG)
    for method in ("predict", "predict_quantiles"):
        wanted, found = getattr(plain["forecaster"], method)(), getattr(model, method)() / unit
        if unit in TWOS:
            assert np.array_equal(found, wanted)
        np.testing.assert_allclose(found, wanted, rtol=1e-3)
    assert model.evaluate(unit * LONG)["mse"] == pytest.approx(plain["forecaster"].evaluate(LONG)["mse"], rel=1e-3)
    model.save(tmp_path)
    assert np.array_equal(load(tmp_path).predict(), model.predict())


@pytest.mark.soak
def test_every_power_of_two_gives_the_same_bits(plain):
    for unit in (2.0**k for k in range(-100, 101, 5)):
        values = regressor().fit(unit * X, TARGET / unit).predict(unit * X) * unit
        assert np.array_equal(values, plain["regressor"].predict(X))
        odds = classifier().fit(unit * X, Y).predict_proba(unit * X)
        assert np.array_equal(odds, plain["classifier"].predict_proba(X))
        assert np.array_equal(forecaster().fit(unit * LONG).predict() / unit, plain["forecaster"].predict())


@pytest.mark.parametrize("unit", [1e-30, 1000.0, 1e300])
def test_constants_stay_what_they_are(unit, tmp_path):
    assert regressor().fit(X, np.full(12, 0.1 * unit)).predict(X) == pytest.approx(0.1 * unit, rel=1e-12)
    flat, ones = unit * np.full((12, 24), 0.3), np.ones((12, 24))
    found = classifier().fit(flat, Y).predict_proba(flat * 3)  # constant in fit, and then not the same
    np.testing.assert_allclose(found, classifier().fit(ones, Y).predict_proba(ones * 3), atol=1e-6)
    series = unit * np.stack([np.full(120, 0.1), LONG[:, 1]], 1)
    model = forecaster().fit(series)
    assert model.predict()[:, 0] == pytest.approx(0.1 * unit, rel=1e-12)
    assert model.predict_quantiles()[:, 0] == pytest.approx(np.full((4, 3), 0.1 * unit), rel=1e-12)
    moved = model.predict(series * [2.0, 1.0])
    assert moved[:, 0] == pytest.approx(0.2 * unit, rel=1e-6)  # another level than in fit is kept, too
    model.save(tmp_path)
    assert np.array_equal(S4Forecaster.load(tmp_path).predict(), model.predict())


def test_r2_of_a_constant_far_from_the_training_data_is_zero():
    model = forecaster().fit(LONG[:, 0])
    assert model.evaluate(np.full(60, 1234.5678))["r2"] == 0.0


@pytest.mark.parametrize("kind", [np.float64, np.longdouble, object])
def test_numbers_near_the_end_of_float64_have_finite_answers(kind):
    large = (1e300 * X).astype(kind)
    assert np.isfinite(classifier().fit(large, Y).predict_proba(large)).all()
    model = regressor().fit(large, (1e300 * TARGET[:, 0]).astype(kind))
    assert np.isfinite(model.predict(large)).all()
    assert np.isfinite(model.score(large, 1e300 * TARGET[:, 0]))
    series = (1e300 * LONG).astype(kind)
    assert np.isfinite(forecaster().fit(series).predict()).all()
    whole = [10**300 + 10**299 * int(value * 1000) for value in LONG[:, 0]]
    assert np.isfinite(forecaster().fit(np.array(whole, object)).predict()).all()


def test_frames_near_the_end_of_float64_have_finite_answers():
    pd = pytest.importorskip("pandas")
    assert np.isfinite(forecaster().fit(pd.DataFrame(1e300 * LONG)).predict()).to_numpy().all()
    wide = pd.DataFrame(1e300 * X[..., 0])
    assert np.isfinite(regressor().fit(wide, pd.Series(1e300 * TARGET[:, 0])).predict(wide)).all()


OUTLIER = LONG.copy()
OUTLIER[-1, 0] = 1e300
TOO_FAR = {
    "not scaled": (lambda: classifier(standardize="none").fit(1e300 * X, Y), r"X\[0, 0, 0\].*check its unit"),
    "series of another unit": (lambda: classifier().fit(X, Y).predict(1e300 * X), r"X\[0, 0, 0\].*check its unit"),
    "series too far for the network": (
        lambda: regressor(stride=4).fit(X, TARGET).predict(1e37 * X), "of the magnitude that it had in fit.*series 0",
    ),
    "a past of another unit": (lambda: forecaster().fit(LONG).predict(1e300 * LONG), r"X\[0, 0\].*check its unit"),
    "a held-out row of another unit": (lambda: forecaster().fit(OUTLIER), r"X\[119, 0\].*got 1e\+300"),
    "more than float64": (lambda: classifier().fit(X.astype(np.longdouble) * np.longdouble("1e400"), Y), "finite in"),
    "whole numbers above float64": (lambda: classifier().fit([[10**400, 1]] * 12, Y), r"X\[0\] must be numbers"),
    "answers above float64": (lambda: regressor().fit(X, np.array([10**400] * 12, object)), "y must be numbers"),
    "long answers": (lambda: regressor().fit(X, TARGET.astype(np.longdouble) * np.longdouble("1e400")), "y must be"),
    "a past above float64": (lambda: forecaster().fit(np.array([10**400] * 60, object)), "X must be numbers"),
    "a long past": (lambda: forecaster().fit(LONG.astype(np.longdouble) * np.longdouble("1e400")), "X must be finite"),
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_FAR)
def test_what_no_network_can_read_is_refused(name):
    call, words = TOO_FAR[name]
    with pytest.raises(ValueError, match=words):
        call()


def test_unequal_lists_take_the_wider_dtype():
    mixed = [X[0].astype(np.float32), *(1e300 * X[1:])]
    assert np.isfinite(classifier().fit(mixed, Y).predict_proba(mixed)).all()
