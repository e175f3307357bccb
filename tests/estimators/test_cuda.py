"""The same code on a GPU."""

import numpy as np
import pytest
import torch

from statespan.estimators import load
from tests.estimators.make import classifier, forecaster, regressor, waves

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("stride", [1, 4])
@pytest.mark.parametrize("make", [classifier, regressor])
def test_fitted_on_a_gpu_it_predicts_the_same_on_the_cpu(make, stride, tmp_path):
    X, y = waves(32, 64)
    options = {"stride": stride, "d_model": 16, "d_state": 8, "epochs": 20, "batch_size": 8, "learning_rate": 0.01}
    model = make(device="cuda", **options).fit(X, y)
    assert model.score(X, y) > 0.8
    model.save(tmp_path)
    ask = "predict_proba" if make is classifier else "predict"
    here, there = (getattr(load(tmp_path, device=device), ask)(X) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(here, there, atol=2e-2)  # TF32 and chunks against the FFT
    ragged = [x[: 20 + i] for i, x in enumerate(X)]
    assert getattr(make(device="cuda", **options).fit(ragged, y), ask)(ragged).shape[0] == 32
    if stride == 1:
        timed = make(device="cuda", **{**options, "epochs": 1}).fit(X, y, times=np.arange(64))
        assert np.isfinite(getattr(timed, ask)(X, times=np.arange(64))).all()


def test_forecasts(tmp_path):
    y = np.sin(np.arange(400) / 4)
    model = forecaster(device="cuda", steps=60, d_model=16, d_state=8, learning_rate=0.02).fit(y)
    model.save(tmp_path)
    here, there = (load(tmp_path, device=device).predict() for device in ("cpu", "cuda"))
    np.testing.assert_allclose(here, there, atol=2e-2)
