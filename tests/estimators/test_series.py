"""Every form that series come in is the same series."""

import numpy as np
import pytest

from statespan.estimators import from_long
from statespan.estimators.inputs.scaling import Scale
from statespan.estimators.inputs.series import as_panel
from tests.estimators.make import classifier, regressor, waves


def test_arrays_lists_and_frames_are_the_same_series():
    pd = pytest.importorskip("pandas")
    X = np.random.default_rng(0).normal(size=(3, 5, 2))
    wanted = as_panel(X)
    wide = pd.concat([pd.DataFrame(X[:, :, c]) for c in (0, 1)], axis=1, keys=["a", "b"])
    rows = pd.DataFrame(X.reshape(15, 2), columns=["a", "b"]).assign(
        who=np.repeat(["z", "y", "x"], 5), at=[*range(5)] * 3
    )
    shuffled = rows.sample(frac=1, random_state=0).sort_values("who", ascending=False, kind="stable")
    for form in (X.tolist(), list(X), tuple(X), wide, from_long(shuffled, "who", "at"), rows.set_index(["who", "at"])):
        panel = as_panel(form)
        np.testing.assert_array_equal(panel.values, wanted.values)
        assert panel.lengths.tolist() == [5, 5, 5]
    assert as_panel(rows.set_index(["who", "at"])).ids.tolist() == ["z", "y", "x"]
    np.testing.assert_array_equal(as_panel(pd.DataFrame(X[..., 0])).values, as_panel(X[..., 0]).values)


def test_answers_of_a_long_frame_are_found_by_name():
    pd = pytest.importorskip("pandas")
    X, y = waves(n=6, length=8)
    frame = pd.concat({f"s{i}": pd.DataFrame(x) for i, x in enumerate(X)})
    answers = pd.Series(y, index=[f"s{i}" for i in range(6)])
    turned = classifier().fit(frame, answers[::-1])
    assert np.array_equal(turned.predict_proba(frame), classifier().fit(X, y).predict_proba(X))
    assert turned.score(frame, answers[::-1]) == turned.score(X, y)


def test_unequal_lengths_are_padded_and_what_is_behind_an_end_has_no_influence():
    X, y = waves(n=6, length=12)
    short = [x[: 6 + i] for i, x in enumerate(X)]
    model = classifier(stride=4).fit(short, y)
    alone = np.concatenate([model.predict_proba([x]) for x in short])
    np.testing.assert_allclose(model.predict_proba(short), alone, atol=2e-6)


def test_standardisation_is_that_of_known_values():
    X = [[1.0, np.nan, 3.0], [5.0, 7.0]]
    panel = as_panel(X, missing="mask")
    scale = Scale.of(panel, "channel")
    known = np.array([1.0, 3.0, 5.0, 7.0])
    np.testing.assert_allclose([scale.mean[0], scale.std[0]], [known.mean(), known.std()])
    np.testing.assert_allclose(
        scale.apply(panel)[0, :, 0], [(1 - 4) / known.std(), 0, (3 - 4) / known.std()], rtol=1e-6
    )
    own = Scale.of(panel, "series").apply(panel)[..., 0]
    np.testing.assert_allclose(own, [[-1, 0, 1], [-1, 1, 0]])
    flat = as_panel(np.full((2, 3), 5.0))
    assert (Scale.of(flat, "channel").apply(flat) == 0).all()


def test_missing_values_tell_the_network_so():
    """The answer is which half is missing, the values say nothing: only the mask can tell."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 16)), np.arange(40) % 2
    X[y == 1, :8], X[y == 0, 8:] = np.nan, np.nan
    model = classifier(missing="mask", epochs=30, batch_size=8, d_model=8, learning_rate=0.02).fit(X, y)
    assert model.score(X, y) == 1.0
    assert model.network_.config.d_input == 2


def test_units_of_inputs_and_targets_do_not_matter():
    X, y = waves(n=12)
    plain, scaled = regressor().fit(X, y), regressor().fit(1e4 * X + 1e5, 1e3 * y - 7)
    np.testing.assert_allclose(scaled.predict(1e4 * X + 1e5), 1e3 * plain.predict(X) - 7, rtol=2e-3, atol=1)
    both = regressor().fit(X, np.stack([y, 2 * y], 1))
    assert both.predict(X).shape == (12, 2)
