"""Saves fitted estimators in folders: weights as safetensors, everything else as JSON, with digests of both.

Nothing in such a folder can run code. What is read is checked before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from statespan.models.pretrained import LoadError, StoredModel, build_module, check_tensors, read, write

PREFIX = "estimator-"


def save(
    folder: str | Path,
    kind: str,
    config: dict[str, Any],
    *,
    network: nn.Module,
    arrays: Mapping[str, np.ndarray[Any, Any]],
) -> None:
    """Save a fitted estimator atomically: at any moment the folder holds either the old or the new one."""
    tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    tensors |= {f"array.{name}": torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}
    write(folder, StoredModel(PREFIX + kind, plain(config), torch.float32, tensors))


def load(folder: str | Path) -> tuple[str, dict[str, Any], dict[str, torch.Tensor]]:
    """The kind of estimator in a folder, its config and its tensors."""
    stored = read(folder)
    if not stored.name.startswith(PREFIX):
        raise LoadError(
            f"{folder} holds the model {stored.name!r}, not an estimator; statespan.models.from_pretrained loads it"
        )
    return stored.name.removeprefix(PREFIX), stored.config, stored.tensors


def build(kind: Callable[[Any], nn.Module], config: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The network of a config, with these weights.

    The config has ``options``, with ``n_layers``, and ``body_config()``. A misfit is noticed before time is spent on
    building the network.
    """
    weights = {name.removeprefix("network."): t for name, t in tensors.items() if name.startswith("network.")}
    body = config.body_config()
    if body.least_weights() > sum(tensor.numel() for tensor in weights.values()):
        raise LoadError("the network of the estimator does not match its weights")

    def make(n_layers: int) -> nn.Module:
        return kind(replace(config, options={**config.options, "n_layers": n_layers}))

    network = build_module(make, body.n_layers, len(weights))
    check_tensors(weights, network.state_dict())
    network.load_state_dict(weights, assign=True)
    return network.eval()


def array(tensors: Mapping[str, torch.Tensor], name: str, dtype: torch.dtype, dims: int) -> np.ndarray[Any, Any]:
    """Data that was saved beside the weights."""
    tensor = tensors.get(f"array.{name}")
    if tensor is None or tensor.dtype != dtype or tensor.ndim != dims:
        raise LoadError(f"the estimator must have {name} of {dims} dimensions in {dtype}, got {tensor}")
    return tensor.numpy()


def plain(value: Any) -> Any:
    """Convert to plain JSON values; arrays become lists, dictionaries with other keys than text lists of pairs."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: plain(item) for key, item in value.items()}
        return {"pairs": [[plain(key), plain(item)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"only plain values can be saved, got {type(value).__name__} {value!r}")


def labels_out(labels: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Class labels with their dtype."""
    kind = "O" if labels.dtype == object else labels.dtype.str
    return {"dtype": kind, "values": plain(labels)}


def labels_in(stored: Any) -> np.ndarray[Any, Any]:
    """The inverse of :func:`labels_out`."""
    try:
        kind, values = stored["dtype"], stored["values"]
        if not (isinstance(kind, str) and isinstance(values, list) and len(values) > 1):
            raise ValueError("not labels")
        if not all(isinstance(value, (bool, int, float, str)) for value in values):
            raise ValueError("labels must be plain")
        if np.dtype(kind).kind not in "biufUO":
            raise ValueError(f"dtype {kind!r}")
        return np.array(values, dtype=np.dtype(kind))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise LoadError(f"the class labels of the estimator cannot be read: {error}") from None


def numbers_in(stored: Any, what: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Stored finite numbers of this shape as float64."""
    try:
        numbers = np.array(stored, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise LoadError(f"{what} of the estimator cannot be read: {error}") from None
    if numbers.shape != shape or not np.isfinite(numbers).all():
        raise LoadError(f"{what} of the estimator must be finite numbers of shape {shape}, got shape {numbers.shape}")
    return numbers


def parameters_in(stored: Any) -> dict[str, Any]:
    """The parameters of an estimator: pairs become a dictionary again, lists tuples."""
    if not isinstance(stored, dict):
        raise LoadError("the parameters of the estimator cannot be read")
    return {name: _parameter(value) for name, value in stored.items()}


def _parameter(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"pairs"}:
        return {key: item for key, item in value["pairs"]}
    return tuple(value) if isinstance(value, list) else value
