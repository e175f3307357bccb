"""Named tensors from a state_dict or a file, without the containers that training scripts put around them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from statespan.models.pretrained import LoadError
from statespan.models.reference._files import plain, read_file

WRAPPERS = ("state_dict", "model_state_dict", "model", "net")  # keys that hold a state_dict, in the order of search
RATIO = 16  # most elements of all tensors per byte of their storage


class NotExpressibleError(LoadError):
    """The weights need something that no layer or model of statespan computes; the message names it.

    Example:
        >>> from statespan import LSSL, to_reference
        >>> try:
        ...     to_reference(LSSL(4, 4))
        ... except NotExpressibleError as error:
        ...     print(error)
        DenseParameters: the reference's SSMs are diagonal, or diagonal plus low-rank
    """


@dataclass(frozen=True)
class NamedTensors:
    """Named tensors, and the config that was stored with them.

    Example:
        >>> named = read_source({"state_dict": {"layer.D": torch.ones(1, 4)}}, prefix="layer.")
        >>> named.tensors
        {'D': tensor([[1., 1., 1., 1.]])}
    """

    tensors: dict[str, Tensor]
    config: dict[str, Any]


def read_source(source: Any, prefix: str) -> NamedTensors:
    """The tensors of a state_dict or a file.

    Args:
        source: A mapping from names to tensors, a container of such a mapping, or a file.
        prefix: Only names that begin with it are read; it is removed.
    """
    if isinstance(source, (str, os.PathLike)):
        source = read_file(Path(source))
    if not isinstance(source, Mapping):
        raise TypeError(f"source must be a state_dict or a file, got {type(source).__name__}")
    config = plain(source.get("hyper_parameters"))
    tensors = _unwrapped(source)
    for name, value in tensors.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise LoadError(f"source must map names to tensors, got {type(value).__name__} for {name!r}")
    named = {_without_wrappers(name): value.detach() for name, value in tensors.items()}
    named = {name: value for name, value in named.items() if name.startswith(prefix)}
    if prefix and not named:
        raise LoadError(f"source has no name that begins with prefix={prefix!r}")
    _check_dense(named)
    _check_memory(named)
    _check_values(named)
    named = {name[len(prefix) :]: value for name, value in named.items()}
    return NamedTensors(named, config if isinstance(config, dict) else {})


def _unwrapped(source: Mapping[Any, Any]) -> Mapping[Any, Any]:
    for _ in range(4):
        if any(isinstance(value, Tensor) for value in source.values()):
            return source
        inner = next((source[key] for key in WRAPPERS if isinstance(source.get(key), Mapping)), None)
        if inner is None:
            break
        source = inner
    raise LoadError(f"source must hold tensors, or a state_dict under one of the keys {', '.join(WRAPPERS)}")


def _without_wrappers(name: str) -> str:
    """A name without the prefixes of data parallelism and torch.compile."""
    parts = [part for part in name.split(".") if part != "_orig_mod"]
    return ".".join(parts[1:] if parts[:1] == ["module"] and len(parts) > 1 else parts)


def _check_dense(tensors: Mapping[str, Tensor]) -> None:
    """Reject tensors without values of their own, which torch can neither compare nor compute with here."""
    for name, tensor in tensors.items():
        kind = "on the meta device" if tensor.is_meta else ""
        if tensor.layout is not torch.strided or tensor.is_nested:
            kind = f"of layout {'nested' if tensor.is_nested else tensor.layout}"
        elif tensor.is_quantized:
            kind = f"quantized as {tensor.dtype}"
        if kind:
            raise LoadError(f"{name} must be a dense tensor with values, got one {kind}")


def _check_values(tensors: Mapping[str, Tensor]) -> None:
    """Reject NaN and infinity, which would pass into the layer or make C impossible to solve for."""
    for name, tensor in tensors.items():
        narrow = tensor.is_floating_point() and tensor.element_size() == 1  # float8 has no isfinite
        bad = int((~(tensor.float() if narrow else tensor).isfinite()).sum())
        if bad:
            raise LoadError(f"{name} must be finite, got {bad} of {tensor.numel()} values that are NaN or infinite")


def _check_memory(tensors: Mapping[str, Tensor]) -> None:
    """Reject tensors that repeat a few stored numbers many times: a tiny file could ask for a lot of memory."""
    held = sum(tensor.numel() for tensor in tensors.values())
    stored = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors.values()}
    if held > RATIO * max(sum(stored.values()), 1 << 16):
        raise LoadError(f"source has tensors with {held} elements that share {sum(stored.values())} bytes")
