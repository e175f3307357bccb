"""Small estimators and small series for tests."""

import numpy as np

from statespan.estimators import S4Classifier, S4Forecaster, S4Regressor

TINY = {"d_model": 4, "n_layers": 1, "d_state": 2, "epochs": 1, "batch_size": 64, "verbose": 0}
TINY_FORECASTER = {"context": 16, "d_model": 4, "n_layers": 1, "d_state": 2, "steps": 3, "batch_size": 8, "verbose": 0}


def classifier(**options):
    return S4Classifier(**{**TINY, **options})


def regressor(**options):
    return S4Regressor(**{**TINY, **options})


def forecaster(horizon=4, **options):
    return S4Forecaster(horizon, **{**TINY_FORECASTER, **options})


def waves(n=24, length=40, channels=1, seed=0):
    """Sine waves of two frequencies at random phases (n, length, channels), and which frequency: 0 or 1."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    t = np.arange(length)[:, None] / length
    phase = rng.uniform(0, 2 * np.pi, (n, 1, channels))
    return np.sin(2 * np.pi * (3 + 2 * y[:, None, None]) * t + phase), y
