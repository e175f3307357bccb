"""Targets in any form, as arrays."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import DataConversionWarning

from statespan.estimators.inputs.series import Array, is_sparse, numbers


def one_column(y: Any, n: int) -> Array:
    """Targets (n,), exactly one for each series."""
    labels = _array(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        message = "A column-vector y was passed when a 1d array was expected; y.ravel() makes one"
        warnings.warn(message, DataConversionWarning, stacklevel=4)
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise ValueError(f"y must have shape ({n},), one class for each series, got {labels.shape}")
    _check_count(labels, n)
    if labels.dtype == object:
        if any(value is None or type(value).__name__ == "NAType" or value != value for value in labels):
            raise ValueError("y must have a class for each series, got a missing one (None, NA or NaN)")
        kinds = {type(value) for value in labels}
        if any(issubclass(kind, str) for kind in kinds) and len(kinds) > 1:
            raise TypeError(f"y must be all text or all numbers, got {', '.join(sorted(k.__name__ for k in kinds))}")
        if kinds <= {str}:
            labels = labels.astype(str)
    elif labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError("y must have a class for each series, got NaN or infinity")
    return labels


def real_columns(y: Any, n: int) -> Array:
    """Targets (n,) or (n, K), finite numbers in float64, exactly one row for each series."""
    array = _array(y)
    if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[1] == 0):
        raise ValueError(f"y must have shape ({n},) or ({n}, values), got {array.shape}")
    _check_count(array, n)
    values = numbers(array, "y").astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError("y must be finite in float64, got NaN or infinity")
    return values


def _array(y: Any) -> Array:
    if y is None:
        raise ValueError("y must be given: requires y to be passed, but the target y is None")
    if is_sparse(y):
        raise TypeError("y must be a dense array, got a sparse matrix")
    if np.ma.is_masked(y):
        raise ValueError(
            f"y must have an answer for each series, got {np.ma.count_masked(y)} masked; drop those series"
        )
    try:
        return np.asarray(y)
    except ValueError:
        raise ValueError("y must have one answer for each series, got answers of unequal lengths") from None


def _check_count(answers: Array, n: int) -> None:
    if len(answers) != n:
        raise ValueError(
            f"y must have one answer for each of the {n} series, got {len(answers)} (inconsistent numbers)"
        )
