"""Estimators for arrays, frames and CSV files: fit and predict, following scikit-learn's conventions.

They need scikit-learn and safetensors: ``pip install "statespan[timeseries]"``.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from statespan._extras import MissingPackageError, advice

if find_spec("sklearn") is None:
    raise MissingPackageError(f"the estimators need {advice(['sklearn'], 'timeseries')}", name="sklearn")

from statespan.data.formats.ts import read_ts
from statespan.estimators.classifier import S4Classifier
from statespan.estimators.forecaster import S4Forecaster
from statespan.estimators.inputs.frames import from_long
from statespan.estimators.regressor import S4Regressor
from statespan.models.pretrained import LoadError

__all__ = ["LoadError", "S4Classifier", "S4Forecaster", "S4Regressor", "from_long", "load", "read_ts"]

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (S4Classifier, S4Regressor, S4Forecaster)}


def load(folder: str | Path, *, device: str | None = None) -> Any:
    """Load an estimator of any kind; the arguments and errors are those of :meth:`S4Classifier.load`."""
    from statespan.estimators import store

    kind, config, tensors = store.load(folder)
    if kind not in _KINDS:
        raise LoadError(f"{folder} holds an estimator {kind!r}; known: {', '.join(_KINDS)}")
    return _KINDS[kind]._from_stored(config, tensors, device)
