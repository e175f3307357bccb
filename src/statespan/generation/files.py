"""States of streams in safetensors files, written atomically and checked before use."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from statespan._extras import require
from statespan._io import replace_file
from statespan.models.pretrained import LoadError, check_header

FORMAT = "statespan stream 1"


def write_state(path: Path, tensors: Sequence[Tensor], kind: str) -> None:
    """Write tensors in order, and their kind."""
    require("saving states needs", "train", "safetensors")
    from safetensors.torch import save

    named = {f"{i:05d}": tensor.detach().cpu().contiguous() for i, tensor in enumerate(tensors)}
    replace_file(path, save(named, {"format": FORMAT, "kind": kind, "digest": _digest(named)}))


def read_state(path: Path, like: Sequence[Tensor], kind: str) -> list[Tensor]:
    """Tensors of this kind, of the same shapes and dtypes as these, on the same devices, or a :class:`LoadError`."""
    require("reading states needs", "train", "safetensors")
    from safetensors import SafetensorError, safe_open

    try:
        with path.open("rb") as start:
            check_header(path, start.read(8))
        with safe_open(path, framework="pt") as file:
            about, names = file.metadata() or {}, sorted(file.keys())
            if about.get("format") != FORMAT:
                raise LoadError(f"{path} must hold states of streams ({FORMAT!r}), got {about.get('format')!r}")
            if about.get("kind") != kind:
                raise LoadError(f"{path} must hold states of this model, {kind}, got {about.get('kind')}")
            if names != [f"{i:05d}" for i in range(len(like))]:
                raise LoadError(f"{path} must hold {len(like)} tensors, those of this model's state, got {len(names)}")
            for name, wanted in zip(names, like):  # check before reading anything large
                shape = tuple(file.get_slice(name).get_shape())
                if shape != tuple(wanted.shape):
                    raise LoadError(f"{path}: tensor {name} must have shape {tuple(wanted.shape)}, got {shape}")
            tensors = {name: file.get_tensor(name) for name in names}
    except LoadError:
        raise
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        raise LoadError(f"{path} cannot be read as a safetensors file: {error}") from error
    for name, wanted in zip(names, like):
        if tensors[name].dtype != wanted.dtype:
            raise LoadError(f"{path}: tensor {name} must be {wanted.dtype}, got {tensors[name].dtype}")
    if about.get("digest") != _digest(tensors):
        raise LoadError(f"{path} is damaged: it differs from what was saved")
    if not all(bool(torch.isfinite(tensors[name]).all()) for name in names):
        raise LoadError(f"{path} must hold finite states, got NaN or infinity: begin with a new file")
    return [tensors[name].to(wanted.device) for name, wanted in zip(names, like)]


def _digest(named: dict[str, Tensor]) -> str:
    total = hashlib.sha256()
    for name in sorted(named):
        tensor = named[name]
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return total.hexdigest()
