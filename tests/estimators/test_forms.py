"""What looks like something else is not taken for it: masked arrays, channels that come first, a forecaster's y."""

import warnings

import numpy as np
import pytest

from statespan.estimators import load
from statespan.estimators.inputs.series import as_panel
from tests.estimators.make import classifier, forecaster, regressor, waves

X, Y = waves(12, 24, channels=3)
LONG = np.stack([np.sin(np.arange(80) / 4), np.arange(80.0) % 7], 1)
HOLES = np.random.default_rng(0).random(X.shape) < 0.1


def hidden(values, mask):
    """A masked array with nonsense under its mask."""
    return np.ma.array(np.where(mask, 1e300, values), mask=mask)


@pytest.mark.parametrize("make", [classifier, regressor])
def test_masked_values_are_missing_ones(make):
    masked, gaps = hidden(X, HOLES), np.where(HOLES, np.nan, X)
    wanted = make(missing="mask").fit(gaps, Y).predict(gaps)
    model = make(missing="mask").fit(masked, Y)
    assert np.array_equal(model.predict(masked), wanted)
    assert np.array_equal(model.predict(list(masked)), wanted)
    place = "series {}, sample {}, channel {}".format(*np.argwhere(HOLES)[0])
    for series in (masked, list(masked)):
        with pytest.raises(ValueError, match=f"got NaN in {place}; missing='mask'"):
            make().fit(series, Y)
    unmasked = np.ma.array(X, mask=False)
    assert np.array_equal(make().fit(unmasked, Y).predict(unmasked), make().fit(X, Y).predict(X))
    whole = np.ma.masked_equal(np.arange(24).reshape(2, 12), 5)
    assert as_panel(whole, missing="mask").missing.sum() == 1


def test_masked_rows_are_missing_ones():
    mask = np.zeros(LONG.shape, bool)
    mask[20:23, 1] = True
    masked, gaps = hidden(LONG, mask), np.where(mask, np.nan, LONG)
    wanted = forecaster(missing="mask").fit(gaps).predict()
    for series, first in ((masked, lambda found: found), ([masked], lambda found: found[0])):
        assert np.array_equal(first(forecaster(missing="mask").fit(series).predict()), wanted)
        with pytest.raises(ValueError, match="got NaN in row 20, column 1; missing='mask'"):
            forecaster().fit(series)


def test_masked_answers_and_times_are_refused():
    y = np.ma.array(Y, mask=np.arange(12) == 3)
    for make in (classifier, regressor):
        with pytest.raises(ValueError, match="y must have an answer for each series, got 1 masked; drop"):
            make().fit(X, y)
        with pytest.raises(ValueError, match="got 1 masked"):
            make().fit(X, Y).score(X, y)
    assert classifier().fit(X, np.ma.array(Y)).score(X, Y) >= 0
    with pytest.raises(ValueError, match="times must have one entry per sample, got masked"):
        classifier().fit(X, Y, times=np.ma.masked_equal(np.arange(24), 3))


@pytest.mark.parametrize("make", [classifier, regressor])
def test_channels_first_is_the_same_data_in_another_order(make, tmp_path):
    turned = X.swapaxes(1, 2)
    wanted = make().fit(X, Y).predict(X)
    model = make(channels_first=True).fit(turned, Y)
    assert model.n_channels_in_ == 3
    assert np.array_equal(model.predict(turned), wanted)
    assert np.array_equal(model.predict(list(turned)), wanted)
    assert model.score(turned, Y) == make().fit(X, Y).score(X, Y)
    model.save(tmp_path)
    assert load(tmp_path).channels_first is True
    assert np.array_equal(load(tmp_path).predict(turned), wanted)
    one = X[..., 0]  # series of one channel have no order
    assert np.array_equal(make(channels_first=True).fit(one, Y).predict(one), make().fit(one, Y).predict(one))
    with pytest.raises(TypeError, match="channels_first must be True or False, got int 1"):
        make(channels_first=1).fit(turned, Y)


def test_frames_have_names_for_their_order():
    pd = pytest.importorskip("pandas")
    wide = pd.concat([pd.DataFrame(X[:, :, c]) for c in range(3)], axis=1, keys=["a", "b", "c"])
    long = pd.concat({i: pd.DataFrame(x) for i, x in enumerate(X)})
    wanted = classifier().fit(X, Y).predict_proba(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for frame in (wide, long):
            assert np.array_equal(classifier(channels_first=True).fit(frame, Y).predict_proba(frame), wanted)
        classifier().fit(long.groupby(level=0).head(2), Y)  # two samples of three channels: the frame says so


def test_a_forecaster_reads_channels_first(tmp_path):
    wanted = forecaster().fit(LONG).predict()
    model = forecaster(channels_first=True).fit(LONG.T)
    assert np.array_equal(model.predict(), wanted)
    assert np.array_equal(model.predict(LONG.T), wanted)
    assert np.array_equal(model.predict([LONG.T])[0], wanted)
    assert np.array_equal(model.predict(LONG.T[None])[0], wanted)
    model.save(tmp_path)
    assert np.array_equal(load(tmp_path).predict(LONG.T), wanted)
    one = LONG[:, 0]
    assert np.array_equal(forecaster(channels_first=True).fit(one).predict(), forecaster().fit(one).predict())


WARNING = r"is read as .*12 series of 3 samples of 24 channels.*channels_first=True or give X.swapaxes\(1, 2\)"


def test_channels_that_seem_to_come_first_are_warned_of_once():
    turned = X.swapaxes(1, 2)
    for series in (turned, list(turned)):
        with pytest.warns(UserWarning, match=WARNING) as found:
            model = classifier().fit(series, Y)
        assert len(found) == 1
        assert found[0].filename == __file__
        model.predict(turned)  # warnings are errors here
    with pytest.warns(UserWarning, match="2 rows of 80 columns.*channels_first=True or swap the last two") as found:
        forecaster(1, context=1, validation_fraction=0.0).fit(LONG.T)
    assert len(found) == 1
    assert found[0].filename == __file__
    with pytest.raises(ValueError, match=r"3 channels, as in fit, got 24; X.swapaxes\(1, 2\) has as many"):
        classifier().fit(X, Y).predict(turned)


def test_a_forecaster_refuses_answers():
    for call in (forecaster().fit, forecaster().fit(LONG).score):
        with pytest.raises(ValueError, match=r"y must be None: .* got ndarray.*further columns of X with joint=True"):
            call(LONG, LONG[:, 0])
        call(LONG, None)


def test_missing_values_of_pandas_are_missing():
    pd = pytest.importorskip("pandas")
    gaps = np.where(HOLES[..., 0], np.nan, X[..., 0])
    wide = pd.DataFrame(X[..., 0]).astype("Float64").mask(HOLES[..., 0])
    wanted = classifier(missing="mask").fit(gaps, Y).predict_proba(gaps)
    assert np.array_equal(classifier(missing="mask").fit(wide, Y).predict_proba(wide), wanted)
    with pytest.raises(ValueError, match="got NaN in series"):
        classifier().fit(wide, Y)
    with pytest.raises(ValueError, match="y must have a class for each series, got a missing one"):
        classifier().fit(X, pd.Series([pd.NA, *"ababababab", "a"], dtype="string"))
