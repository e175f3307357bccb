"""Bad inputs: each gets one clear line that names what is wrong, or the treatment that the documents promise."""

import numpy as np
import pytest

from statespan.estimators import from_long, load
from statespan.models.pretrained import LoadError
from tests.estimators.make import classifier, forecaster, regressor, waves
from tests.mistakes import assert_one_clear_line

X, Y = waves(8, 12, channels=2)
WAVE = np.sin(np.arange(60.0))


def with_value(value, array=X):
    bad = array.copy()
    bad[2, 3] = value
    return bad


def pandas():
    return pytest.importorskip("pandas")


def dated(rows=40, freq="h", **columns):
    pd = pandas()
    index = pd.date_range("2020-01-01", periods=rows, freq=freq)
    return pd.DataFrame({"a": np.arange(float(rows)), **columns}, index=index)


def long(times, names=None, values=None):
    pd = pandas()
    index = pd.MultiIndex.from_arrays([["s"] * len(times) if names is None else names, times])
    return pd.DataFrame({"v": np.arange(float(len(times))) if values is None else values}, index=index)


def fit(X=X, y=Y, **options):
    return classifier(**options).fit(X, y)


def shuffled(frame):
    return frame.iloc[::-1]


def doubled(frame):
    pd = pandas()
    return pd.concat([frame, frame.iloc[-1:]])


def gap(frame):
    return frame.drop(frame.index[5])


def mixed():
    pd = pandas()
    return pd.concat({"x": dated(), "y": dated(freq="D")})


# (call, error, words of the message)
SERIES = {
    "NaN without a mask": (
        lambda: fit(with_value(np.nan)),
        ValueError,
        ["NaN", "series 2, sample 3", "missing='mask'"],
    ),
    "infinity": (lambda: fit(with_value(np.inf)), ValueError, ["infinity", "series 2, sample 3"]),
    "infinity with a mask": (lambda: fit(with_value(-np.inf), missing="mask"), ValueError, ["infinity", "series 2"]),
    "a series of NaN": (lambda: fit([[np.nan, np.nan], [1, 2]], [0, 1], missing="mask"), ValueError, ["only NaN", "0"]),
    "one series": (lambda: fit(X[0, :, 0]), ValueError, ["X", "one series", "(12,)"]),
    "a list of numbers": (lambda: fit([1.0, 2.0, 3.0]), ValueError, ["X", "list of numbers"]),
    "four dimensions": (lambda: fit(X[None]), ValueError, ["X", "4 dimensions"]),
    "a number": (lambda: fit(3.0), TypeError, ["X", "float"]),
    "text": (lambda: fit("data.csv"), TypeError, ["X", "str"]),
    "a dictionary": (lambda: fit({"a": [1]}), TypeError, ["X", "dict"]),
    "words": (lambda: fit([["a", "b"]] * 8), ValueError, ["X[0]", "numbers"]),
    "complex numbers": (lambda: fit(X + 1j), ValueError, ["Complex", "complex128"]),
    "dates as values": (
        lambda: regressor().fit(X, np.arange(8).astype("M8[s]")),
        TypeError,
        ["y must be numbers", "datetime64"],
    ),
    "dates as a past": (
        lambda: forecaster().fit(np.arange(60).astype("M8[s]")),
        TypeError,
        ["X must be numbers", "datetime64"],
    ),
    "no series": (lambda: fit(X[:0], Y[:0]), ValueError, ["at least one series", "0 sample"]),
    "an empty list": (lambda: fit([], []), ValueError, ["at least one series"]),
    "series without samples": (lambda: fit(X[:, :0]), ValueError, ["at least one sample", "(8, 0, 2)"]),
    "an empty series": (lambda: fit([[1.0, 2.0], []], [0, 1]), ValueError, ["X[1]", "empty series"]),
    "other channels": (lambda: fit([X[0], X[1, :, :1]], [0, 1]), ValueError, ["X[1]", "2 channels", "got 1"]),
    "three axes in a list": (lambda: fit([X, X], [0, 1]), ValueError, ["X[0]", "(length, channels)"]),
    "other channels in predict": (lambda: fit().predict(X[..., :1]), ValueError, ["2 channels, as in fit", "got 1"]),
    "one class": (lambda: fit(y=np.zeros(8)), ValueError, ["two classes", "only 1 class: 0.0"]),
    "one class of integers": (lambda: fit(y=np.zeros(8, int)), ValueError, ["only 1 class: 0"]),
    "too few answers": (lambda: fit(y=Y[:5]), ValueError, ["each of the 8 series", "got 5"]),
    "no answers": (lambda: fit(y=None), ValueError, ["y", "None"]),
    "answers in two columns": (lambda: fit(y=np.stack([Y, Y], 1)), ValueError, ["y", "(8,)", "(8, 2)"]),
    "a class that is missing": (lambda: fit(y=["a", None] * 4), ValueError, ["y", "missing"]),
    "a class that is NaN": (lambda: fit(y=np.where(Y, np.nan, 0.0)), ValueError, ["y", "NaN"]),
    "classes of two kinds": (lambda: fit(y=np.array(["a", 1] * 4, object)), TypeError, ["y", "int, str"]),
    "fractions as classes": (lambda: fit(y=np.linspace(0, 1, 8)), ValueError, ["0.142", "S4Regressor", "integers"]),
    "values that are text": (lambda: regressor().fit(X, ["a"] * 8), ValueError, ["y", "numbers"]),
    "values that are infinite": (lambda: regressor().fit(X, np.full(8, np.inf)), ValueError, ["y", "finite"]),
    "one series to learn values of": (lambda: regressor().fit(X[:1], [1.0]), ValueError, ["at least 2 series"]),
    "not fitted": (lambda: classifier().predict(X), None, ["not fitted"]),
    "dt_scale 0": (lambda: fit().predict(X, dt_scale=0.0), ValueError, ["dt_scale", "> 0"]),
    "dt_scale text": (lambda: fit().predict_proba(X, dt_scale="half"), TypeError, ["dt_scale", "'half'"]),
    "d_model 0": (lambda: fit(d_model=0), ValueError, ["d_model", ">= 1"]),
    "d_state odd": (lambda: fit(d_state=3), ValueError, ["d_state", "even"]),
    "epochs as text": (lambda: fit(epochs="10"), TypeError, ["epochs", "'10'"]),
    "dropout 1": (lambda: fit(dropout=1.0), ValueError, ["dropout", "< 1"]),
    "learning rate negative": (lambda: fit(learning_rate=-1.0), ValueError, ["learning_rate", "> 0"]),
    "everything held out": (lambda: fit(validation_fraction=0.99), ValueError, ["validation_fraction", "0.99"]),
    "a share above 1": (lambda: fit(validation_fraction=1.5), ValueError, ["validation_fraction", "< 1"]),
    "standardize": (lambda: fit(standardize="minmax"), ValueError, ["standardize", "'series'"]),
    "missing": (lambda: fit(missing="drop"), ValueError, ["missing", "'mask'"]),
    "device": (lambda: fit(device="tpu"), None, ["device is tpu", "allowed here: cpu"]),
    "class weight of no class": (lambda: fit(class_weight={5: 1.0}), ValueError, ["class_weight", "5"]),
    "class weight negative": (lambda: fit(class_weight={0: -1.0, 1: 1.0}), ValueError, ["class_weight", ">= 0"]),
    "class weight a number": (lambda: fit(class_weight=2.0), TypeError, ["class_weight", "2.0"]),
    "seed negative": (lambda: fit(random_state=-1), ValueError, ["random_state", "-1"]),
    "a folder without a model": (lambda: load("/no/such/folder"), LoadError, ["config.json", "cannot be read"]),
}
FORECASTS = {
    "horizon 0": (lambda: forecaster(0).fit(WAVE), ValueError, ["horizon", ">= 1", "0"]),
    "horizon negative": (lambda: forecaster(-3).fit(WAVE), ValueError, ["horizon", "-3"]),
    "horizon a fraction": (lambda: forecaster(1.5).fit(WAVE), TypeError, ["horizon", "1.5"]),
    "horizon 0 to predict": (lambda: forecaster().fit(WAVE).predict(horizon=0), ValueError, ["horizon", ">= 1", "0"]),
    "nothing to learn from": (
        lambda: forecaster(validation_fraction=0.5, holdback_fraction=0.5).fit(WAVE),
        ValueError,
        ["validation_fraction and holdback_fraction", "0.5"],
    ),
    "season": (lambda: forecaster(season=0).fit(WAVE), ValueError, ["season", ">= 1", "0"]),
    "layer": (lambda: forecaster(layer="s5").fit(WAVE), ValueError, ["layer", "'s4'", "'s5'"]),
    "no such covariate": (lambda: forecaster().fit(WAVE, future=[3]), ValueError, ["future", "3", "columns are 0"]),
    "only covariates": (lambda: forecaster().fit(WAVE, past=[0]), ValueError, ["leave a column to forecast"]),
    "too few rows": (
        lambda: forecaster(30).fit(WAVE[:40]),
        ValueError,
        ["context 16", "horizon 30", "32 rows", "the last 8 of 40"],
    ),
    "too short a past": (lambda: forecaster().fit(WAVE).predict(WAVE[:9]), ValueError, ["16 rows", "got 9"]),
    "one row": (lambda: forecaster().fit([1.0]), ValueError, ["at least 2 rows", "got 1"]),
    "NaN": (
        lambda: forecaster().fit(np.where(WAVE > 0.99, np.nan, WAVE)),
        ValueError,
        ["NaN", "row", "missing='mask'"],
    ),
    "only NaN": (lambda: forecaster(missing="mask").fit(np.full(60, np.nan)), ValueError, ["only NaN", "column 0"]),
    "infinite": (lambda: forecaster().fit(np.append(WAVE, np.inf)), ValueError, ["infinity", "row 60"]),
    "other columns": (lambda: forecaster().fit(WAVE).predict(np.zeros((60, 2))), ValueError, ["1 columns", "got 2"]),
    "three axes of text": (lambda: forecaster().fit([["a"], ["b"]]), ValueError, ["X[0]", "numbers"]),
    "quantile 1": (lambda: forecaster(quantiles=(0.5, 1.0)).fit(WAVE), ValueError, ["quantiles", "< 1"]),
    "quantiles a number": (lambda: forecaster(quantiles=0.5).fit(WAVE), TypeError, ["quantiles", "0.5"]),
    "quantiles twice": (lambda: forecaster(quantiles=(0.5, 0.5)).fit(WAVE), ValueError, ["quantiles", "different"]),
    "no quantiles": (lambda: forecaster(quantiles=()).fit(WAVE).predict_quantiles(), ValueError, ["quantiles=()"]),
    "centre": (lambda: forecaster(centre="median").fit(WAVE), ValueError, ["centre", "'last'"]),
}
FRAMES = {
    "unsorted times": (lambda: forecaster().fit(shuffled(dated())), ValueError, ["earlier than the row before"]),
    "a time twice": (lambda: forecaster().fit(doubled(dated())), ValueError, ["row 40 ", "repeats the time"]),
    "a gap": (lambda: forecaster().fit(gap(dated())), ValueError, ["row 5 ", "fill the gaps"]),
    "mixed frequencies": (lambda: forecaster().fit(mixed()), ValueError, ["one frequency", "'x'", "'y'"]),
    "times as text": (
        lambda: forecaster().fit(dated().set_axis([f"d{i}" for i in range(40)])), TypeError, ["dates", "to_datetime"],
    ),
    "a column of text": (lambda: forecaster().fit(dated(b="x")), TypeError, ["column 'b'"]),
    "renamed columns": (
        lambda: forecaster().fit(dated()).predict(dated().rename(columns={"a": "c"})), ValueError, ["['a']", "['c']"],
    ),
    "another frequency": (
        lambda: forecaster().fit(dated()).predict(dated(freq="2h")), ValueError, ["2 times as long", "dt_scale=2"],
    ),
    "dates missing in predict": (
        lambda: forecaster().fit(dated(80)).predict(np.zeros((40, 1))), ValueError, ["dates as its index"],
    ),
    "long: unsorted": (lambda: fit(long([2, 1]), [0]), ValueError, ["sorted by time", "'s'", "sort_index"]),
    "long: a time twice": (lambda: fit(long([1, 1]), [0]), ValueError, ["once", "'s'", "1"]),
    "long: y without a series": (
        lambda: fit(long([1, 1], ["s", "t"]), pandas().Series([0, 1], index=["s", "u"])), ValueError, ["'t'", "1 of 2"],
    ),
    "long: columns that are not there": (
        lambda: from_long(dated().reset_index(), "who", "index"), ValueError, ["'who'", "index, a"],
    ),
    "a Series as X": (lambda: fit(pandas().Series([1.0])), TypeError, ["Series", "[series]"]),
    "wide: a column twice": (
        lambda: fit(pandas().DataFrame(np.zeros((8, 2)), columns=["a", "a"])), ValueError, ["different columns", "'a'"],
    ),
}  # fmt: skip
CASES = {**SERIES, **FORECASTS, **FRAMES}


def test_there_are_enough():
    assert len(CASES) >= 60


@pytest.mark.parametrize("name", CASES)
def test_a_bad_input_gets_one_clear_line(name):
    call, error, words = CASES[name]
    if error is None:  # an error of scikit-learn or of training, which is a ValueError too
        with pytest.raises(ValueError, match=r"[\s\S]*".join(words)):
            call()
    else:
        assert_one_clear_line(call, error, words)


def test_treatments_that_the_documents_promise():
    constant = np.ones((8, 12))
    assert np.isfinite(fit(constant).predict_proba(constant)).all()  # a constant channel becomes 0
    one = fit([[1.0], [2.0], [3.0]] * 2, [0, 1, 0] * 2)  # series of one sample
    assert one.predict([[5.0]]).shape == (1,)
    assert fit().predict(X[:, :5]).shape == (8,)  # shorter than in training
    assert np.isfinite(forecaster().fit(np.ones(60)).predict()).all()
