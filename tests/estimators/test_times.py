"""Samples at irregular times: the estimators know when they were taken."""

import numpy as np
import pytest

from statespan.estimators import load
from statespan.estimators.inputs.series import as_panel
from statespan.estimators.inputs.times import as_gaps
from tests.estimators.make import classifier, waves


def test_gaps_are_in_units_of_the_usual_step():
    panel = as_panel(np.zeros((2, 4)))
    gaps, step = as_gaps([0.0, 0.5, 1.0, 3.0], panel)
    assert step == 0.5
    assert gaps.tolist() == [[1, 1, 1, 4]] * 2
    dates = np.array(["2020-01-01T00:00", "2020-01-01T01:00", "2020-01-01T02:00", "2020-01-01T12:00"], "datetime64[m]")
    gaps, step = as_gaps(np.stack([dates, dates]), panel)
    assert step == 3600.0
    assert gaps[0].tolist() == [1, 1, 1, 10]


def test_equal_times_are_no_times():
    X, y = waves(8, 12)
    plain = classifier().fit(X, y)
    timed = classifier().fit(X, y, times=np.arange(12) * 0.25)
    timed.network_ = plain.network_  # trained alike but for rounding, which the first updates of Adam blow up
    np.testing.assert_allclose(timed.predict_proba(X, times=np.arange(12) * 0.25), plain.predict_proba(X), atol=1e-5)
    np.testing.assert_allclose(
        timed.predict_proba(X, times=np.arange(12) * 0.5), plain.predict_proba(X, dt_scale=2.0), atol=1e-5
    )


def test_a_large_cost_is_announced_before_training(capsys, monkeypatch):
    X, y = waves(8, 12)
    classifier(verbose=1).fit(X, y, times=np.arange(12))
    assert "irregular times" not in capsys.readouterr().err
    monkeypatch.setattr("statespan.models.irregular.LARGE_BYTES", 0.0)
    classifier(verbose=1).fit(X, y, times=np.arange(12))
    said = capsys.readouterr().err
    assert said.index("S4Classifier: 8 series") < said.index("irregular times: about 0.0 GB of memory and ")
    classifier(verbose=0).fit(X, y, times=np.arange(12))
    assert "irregular times" not in capsys.readouterr().err


def test_times_tell_waves_apart_that_look_alike(tmp_path):
    """The samples are the same for both classes; only when they were taken differs."""
    rng = np.random.default_rng(0)
    X = np.sin(2 * np.pi * np.arange(24) / 8 + rng.uniform(0, 6, (40, 1)))
    y = np.arange(40) % 2
    times = np.cumsum(rng.uniform(0.5, 1.5, (40, 24)) * (1 + 2 * y[:, None]), 1)
    model = classifier(d_model=16, d_state=8, epochs=10, batch_size=8, learning_rate=0.02).fit(X, y, times=times)
    assert model.score(X, y, times=times) > 0.9
    model.save(tmp_path)
    assert np.array_equal(load(tmp_path).predict_proba(X, times=times), model.predict_proba(X, times=times))


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ([0.0, 1.0, 0.5], "must not decrease, but those of series 0 do after sample 1"),
        ([0.0, 1.0], "series 0 has 3 samples"),
        ([[0.0, 1.0, 2.0]], "one entry for each of the 4 series, got 1"),
        ([0.0, 0.0, 0.0], "must have at least one gap above 0"),
        ([0.0, np.nan, 1.0], "must be finite"),
    ],
)
def test_mistakes(times, words):
    with pytest.raises(ValueError, match=words):
        classifier().fit(np.zeros((4, 3)), [0, 1, 0, 1], times=times)


def test_times_as_in_fit():
    X, y = waves(8, 12)
    timed = classifier().fit(X, y, times=np.arange(12))
    with pytest.raises(ValueError, match="which was with times, got X without"):
        timed.predict(X)
    with pytest.raises(ValueError, match="dt_scale must be 1"):
        timed.predict(X, times=np.arange(12), dt_scale=2.0)
    with pytest.raises(ValueError, match="stride must be 1"):
        classifier(stride=2).fit(X, y, times=np.arange(12))
