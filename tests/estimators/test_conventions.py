"""scikit-learn's own checks, as far as they apply to series, and its tools."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, TimeSeriesSplit, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import estimator_checks_generator

from statespan.estimators import S4Classifier, S4Forecaster, S4Regressor
from tests.estimators.make import classifier, forecaster, regressor, waves

OTHER_LENGTHS = "series of another length than in training are welcome"
NOT_FOR_SERIES = {
    "check_n_features_in_after_fitting": OTHER_LENGTHS,
    "check_classifiers_train": f"{OTHER_LENGTHS}; what it says about accuracy is tested beside",
    "check_regressors_train": "its ten features in no order are no series; accuracy is tested beside",
    "check_class_weight_classifiers": "needs more than the two epochs of this test; class weights are tested beside",
}


def checks(estimator):
    for made, check in estimator_checks_generator(estimator):
        name = check.func.__name__
        if name not in NOT_FOR_SERIES:
            yield pytest.param(made, check, id=f"{type(made).__name__}-{name}-{len(str(check.keywords))}")


@pytest.mark.parametrize(("estimator", "check"), [*checks(classifier()), *checks(regressor())])
def test_scikit_learns_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some checks warn on purpose
        try:
            check(estimator)
        except Exception as error:
            if type(error).__name__ != "SkipTest":
                raise


def test_in_a_pipeline_and_a_grid():
    X, y = waves()
    scaled = make_pipeline(FunctionTransformer(lambda X: 2 * X), classifier())
    grid = GridSearchCV(scaled, {"s4classifier__d_model": [2, 4]}, cv=2).fit(X[..., 0], y)
    assert grid.best_params_["s4classifier__d_model"] in (2, 4)
    assert grid.predict_proba(X[:3, :, 0]).shape == (3, 2)


def test_forecaster_in_cross_validation():
    series = np.sin(np.arange(200) / 5)[:, None]
    scores = cross_val_score(forecaster(), series, cv=TimeSeriesSplit(2, test_size=40))
    assert scores.shape == (2,)
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("make", [classifier, regressor, forecaster])
def test_clone_has_the_parameters_and_nothing_learnt(make):
    estimator = make(random_state=7)
    copy = clone(estimator)
    assert copy.get_params() == estimator.get_params()
    assert not hasattr(copy, "network_")


def test_same_seed_same_bits_and_the_callers_random_numbers_are_left_alone():
    import torch

    X, y = waves()
    before = torch.get_rng_state()
    first, second, other = (classifier(random_state=s).fit(X, y).predict_proba(X) for s in (3, 3, 4))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


def test_the_settings_are_those_of_the_signature():
    assert {"d_model", "class_weight", "stride", "random_state"} <= classifier().get_params().keys()
    assert "class_weight" not in regressor().get_params()
    assert S4Forecaster(7).horizon == 7  # the one setting that needs no name
    for kind in (S4Classifier, S4Regressor):
        with pytest.raises(TypeError, match="positional"):
            kind(16)
    with pytest.raises(TypeError, match="positional"):
        S4Forecaster(7, 16)
