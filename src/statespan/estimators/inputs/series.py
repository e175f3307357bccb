"""Series of any form as one padded array: numpy, lists of unequal lengths, pandas wide and long.

Shapes: n series, L longest length, C channels.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from statespan.estimators.inputs.frames import is_frame, is_pandas, long_series, wide_series

Array: TypeAlias = "np.ndarray[Any, Any]"
FORMS = (
    "an array (n, length) or (n, length, channels), a list of arrays (length,) or (length, channels), "
    "or a pandas frame, wide or long"
)


@dataclass(frozen=True)
class Panel:
    """A padded batch of series.

    Example:
        >>> panel = Panel(values=np.zeros((3, 50, 1)), lengths=np.array([50, 40, 50]))
        >>> panel.ragged, len(panel.rows(np.array([0, 2])))
        (True, 2)
    """

    values: Array  # (n, L, C) floating, 0 behind each series' end and where a value is missing
    lengths: Array  # (n,) true lengths
    missing: Array | None = None  # (n, L, C) True where a value is missing; None if none is
    ids: Any = None  # names of the series of a long frame, in order; None otherwise

    def __len__(self) -> int:
        return len(self.values)

    @property
    def ragged(self) -> bool:
        """Whether the lengths differ."""
        return bool((self.lengths != self.values.shape[1]).any())

    @property
    def inside(self) -> Array:
        """(n, L) True up to each series' end."""
        return np.arange(self.values.shape[1]) < self.lengths[:, None]

    @property
    def known(self) -> Array:
        """(n, L, C) True where there is a value."""
        inside = np.broadcast_to(self.inside[..., None], self.values.shape)
        return inside if self.missing is None else inside & ~self.missing

    def rows(self, index: Array) -> Panel:
        """Select some of the series."""
        return Panel(self.values[index], self.lengths[index], None if self.missing is None else self.missing[index])


def as_panel(X: Any, *, missing: str = "error", channels_first: bool = False, warn: bool = False) -> Panel:
    """Series of any form in :data:`FORMS` as a :class:`Panel`.

    ``missing`` is "error" to refuse NaN and masked values, or "mask" to accept them. ``channels_first`` does not matter
    for frames; with ``warn``, arrays that look like that without it give a warning.

    Example:
        >>> panel = as_panel([[1.0, 2.0, 3.0], [4.0, 5.0]])
        >>> panel.values.shape, panel.lengths.tolist()
        ((2, 3, 1), [3, 2])
    """
    ids, framed = None, is_frame(X)
    channels_first = channels_first and not framed
    if framed:
        X, ids = long_series(X) if X.index.nlevels > 1 else (wide_series(X), None)
    elif is_pandas(X):
        raise TypeError(f"X must be {FORMS}, got a pandas {type(X).__name__}, which is one series; use [series] for it")
    if is_sparse(X):
        raise TypeError(f"X must be {FORMS}, got a sparse matrix; X.toarray() makes it dense")
    if isinstance(X, (str, bytes, dict)) or not (hasattr(X, "__array__") or isinstance(X, Iterable)):
        raise TypeError(f"X must be {FORMS}, got {type(X).__name__}")
    if hasattr(X, "__array__") and not isinstance(X, (list, tuple)):
        array = plain_array(X)
        listed = array.dtype == object and array.ndim == 1 and len(array)
        panel = _of_list(list(array), channels_first) if listed else _of_array(array, channels_first)
    else:
        panel = _of_list(list(X), channels_first)
    if warn and not framed and not channels_first:
        _warn_of_channels_first(panel)
    return _finished(panel, missing, ids)


def plain_array(X: Any) -> Array:
    """X as an array; masked entries become NaN.

    Example:
        >>> plain_array(np.ma.masked_equal([1, 2, 3], 2)).tolist()
        [1.0, nan, 3.0]
    """
    if not isinstance(X, np.ma.MaskedArray):
        return np.asarray(X)
    return np.where(np.ma.getmaskarray(X), np.nan, X.data) if np.ma.is_masked(X) else X.data


def _of_array(array: Array, channels_first: bool) -> Panel:
    if array.ndim not in (2, 3):
        hint = {0: "a single number", 1: "one series; X[None] makes it a set of one. Reshape your data"}
        raise ValueError(f"X must be {FORMS}, got {hint.get(array.ndim, f'{array.ndim} dimensions')}: {array.shape}")
    values = numbers(array, "X")
    values = values[..., None] if values.ndim == 2 else values.swapaxes(1, 2) if channels_first else values
    n, length, channels = values.shape
    if n == 0:
        raise ValueError(f"X must have at least one series, found array with 0 sample(s) (shape={array.shape})")
    if length == 0 or channels == 0:
        raise ValueError(
            f"X must have at least one sample in each series, found 0 feature(s) (shape={array.shape}) while a minimum "
            "of 1 is required."
        )
    return Panel(values, np.full(n, length))


def _of_list(series: list[Any], channels_first: bool) -> Panel:
    if not series:
        raise ValueError("X must have at least one series, found a list with 0 sample(s)")
    if all(isinstance(item, (int, float, np.number)) for item in series):
        raise ValueError(f"X must be {FORMS}, got a list of numbers: one series. Reshape your data: [X] is a set of it")
    arrays: list[Array] = []
    for number, item in enumerate(series):
        name = f"X[{number}]"
        array = numbers(item.to_numpy() if is_pandas(item) else plain_array(item), name)
        if array.ndim not in (1, 2):
            shape = "(channels, length)" if channels_first else "(length, channels)"
            raise ValueError(f"{name} must have shape (length,) or {shape}, got {array.shape}")
        array = array[:, None] if array.ndim == 1 else array.T if channels_first and not is_pandas(item) else array
        if array.shape[0] == 0 or array.shape[1] == 0:
            raise ValueError(f"{name} must have at least one sample, got an empty series of shape {array.shape}")
        if arrays and array.shape[1] != arrays[0].shape[1]:
            raise ValueError(f"{name} must have {arrays[0].shape[1]} channels, as X[0], got {array.shape[1]}")
        arrays.append(array)
    lengths = np.array([len(array) for array in arrays])
    kind = np.result_type(*{array.dtype for array in arrays})
    values = np.zeros((len(arrays), int(lengths.max()), arrays[0].shape[1]), kind)
    for row, array in zip(values, arrays):
        row[: len(array)] = array
    return Panel(values, lengths)


def _warn_of_channels_first(panel: Panel) -> None:
    channels = panel.values.shape[2]
    if channels > panel.lengths.max():
        samples = f"{panel.lengths.max()} sample{'s' * bool(panel.lengths.max() > 1)}"
        data = f"(n, length, channels): {len(panel)} series of {samples} of {channels} channels"
        warn_of_order(data, "give X.swapaxes(1, 2)")


def warn_of_order(data: str, remedy: str) -> None:
    """Warn that X may have its channels first, and say how it was read."""
    message = f"X is read as {data}. Where the channels come first, as in aeon and sktime, set channels_first=True or "
    warnings.warn(message + remedy, UserWarning, stacklevel=5)


def _finished(panel: Panel, missing: str, ids: Any) -> Panel:
    """The panel in float32 with missing values marked; rejects infinity."""
    values = panel.values
    if np.isinf(values).any():
        row, at, channel = np.argwhere(np.isinf(values))[0]
        raise ValueError(
            f"X must be finite in float64, got infinity (inf) in series {row}, sample {at}, channel {channel}"
        )
    is_missing = np.isnan(values)
    mask: Array | None = None
    if is_missing.any():
        if missing == "error":
            row, at, channel = np.argwhere(is_missing)[0]
            raise ValueError(
                f"X must have no missing values with missing='error', got NaN in series {row}, sample {at}, channel "
                f"{channel}; missing='mask' learns with them"
            )
        empty = (is_missing | ~panel.inside[..., None]).all((1, 2))
        if empty.any():
            raise ValueError(f"X must have at least one value in each series, got only NaN in series {empty.argmax()}")
        mask, values = is_missing, np.where(is_missing, values.dtype.type(0), values)
    return Panel(values, panel.lengths, mask, ids)


def numbers(array: Array, name: str) -> Array:
    """An array as float32 or float64; any other kind is rejected."""
    if array.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: {name} must be real, got {array.dtype}")
    if array.dtype == object or array.dtype.kind in "US":
        try:
            array = array.astype(np.float64)
        except (ValueError, TypeError, OverflowError) as error:
            kind = "text" if array.dtype.kind in "US" else "objects"
            problem = TypeError if isinstance(error, TypeError) else ValueError
            raise problem(
                f"{name} must be numbers; its argument must be a string or a number, got {kind}: {error}"
            ) from None
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be numbers, got {array.dtype}")
    with np.errstate(over="ignore"):  # what is too large for float64 becomes infinite, which is refused
        return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


def is_sparse(X: Any) -> bool:
    """Whether X is one of scipy's sparse matrices, which is recognised without importing scipy."""
    return hasattr(X, "toarray") and hasattr(X, "nnz")
