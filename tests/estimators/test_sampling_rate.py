"""Rates in hertz: given once to fit and again later, they are the step of the layers."""

import json

import numpy as np
import pytest

from statespan.estimators import S4Classifier, load
from tests.estimators.make import classifier, forecaster, regressor, waves

X, LABELS = waves()
Y = X[:, -1, 0]


@pytest.mark.parametrize("make", [classifier, regressor])
def test_a_rate_is_the_step_relative_to_training(make, tmp_path):
    model = make().fit(X, LABELS if make is classifier else Y, sampling_rate=100)
    answer = model.predict_proba if make is classifier else model.predict
    assert model.sampling_rate_ == 100.0
    assert np.array_equal(answer(X, sampling_rate=100), answer(X))
    half = answer(X[:, ::2], sampling_rate=50.0)
    assert np.array_equal(half, answer(X[:, ::2], dt_scale=2.0))
    assert not np.array_equal(half, answer(X[:, ::2]))  # the rate matters
    labels = LABELS if make is classifier else Y
    assert model.score(X[:, ::2], labels, sampling_rate=50) == model.score(X[:, ::2], labels, dt_scale=2.0)
    model.save(tmp_path)
    again = load(tmp_path)
    assert again.sampling_rate_ == 100.0
    assert np.array_equal(again.predict(X[:, ::2], sampling_rate=50), model.predict(X[:, ::2], dt_scale=2.0))


def test_rates_of_forecasts(tmp_path):
    series = np.sin(np.arange(300) / 7)
    model = forecaster().fit(series, sampling_rate=8)
    half = model.predict(series[::2], sampling_rate=4)
    assert np.array_equal(half, model.predict(series[::2], dt_scale=2.0))
    assert len(half) == model.horizon // 2
    assert np.array_equal(
        model.predict_quantiles(series[::2], sampling_rate=4), model.predict_quantiles(series[::2], dt_scale=2.0)
    )
    model.save(tmp_path)
    assert np.array_equal(load(tmp_path).predict(series[::2], sampling_rate=4), half)


@pytest.mark.parametrize("make", [classifier, regressor, forecaster])
def test_rates_that_mean_nothing(make):
    series = np.sin(np.arange(300) / 7) if make is forecaster else X
    answers = () if make is forecaster else (LABELS,) if make is classifier else (Y,)
    with pytest.raises(ValueError, match=r"sampling_rate must be a number > 0, got -1"):
        make().fit(series, *answers, sampling_rate=-1)
    model = make().fit(series, *answers)
    assert model.sampling_rate_ is None
    with pytest.raises(ValueError, match=r"sampling_rate must also be given to fit, got 50 only here; dt_scale"):
        model.predict(series, sampling_rate=50)
    model.fit(series, *answers, sampling_rate=100)
    with pytest.raises(ValueError, match=r"give dt_scale or sampling_rate, not both, got 1 and 50"):
        model.predict(series, sampling_rate=50, dt_scale=1.0)
    with pytest.raises(ValueError, match=r"sampling_rate must be a number > 0, got 0"):
        model.predict(series, sampling_rate=0)


def test_a_rate_and_times_exclude_each_other():
    times = np.cumsum(np.ones(X.shape[1]) + 0.1)
    with pytest.raises(ValueError, match="sampling_rate must be None if times are given, got 100"):
        classifier().fit(X, LABELS, times=times, sampling_rate=100)


def test_folders_from_before_rates_are_read(tmp_path):
    model = S4Classifier(d_model=4, n_layers=1, epochs=1, verbose=0).fit(X, LABELS)
    config, tensors = model._state()[0], {f"network.{k}": v for k, v in model.network_.state_dict().items()}
    stored = {"parameters": {}, "chosen": model.chosen_, "line": model.chosen_line_, **config}
    again = S4Classifier._from_stored(json.loads(json.dumps(stored, default=np.ndarray.tolist)), tensors, "cpu")
    assert again.sampling_rate_ is None
    assert np.array_equal(again.predict(X), model.predict(X))
