"""Saves models in folders: ``config.json`` and the weights it names, as safetensors.

What its inputs and answers are, if known, is in ``inputs.json``: the scaling, class names and units.

The name of the weights' file contains its digest, so a new one never overwrites an old one. Renaming ``config.json``
switches the folder from the old model to the new one atomically.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from statespan import _io as io
from statespan._extras import require
from statespan._version import __version__

FORMAT = 1
CONFIG, INPUTS = "config.json", "inputs.json"
WEIGHTS = re.compile(r"model-[0-9a-f]{16}\.safetensors")
LARGEST_CONFIG = 1 << 20  # bytes
LARGEST_INPUTS = 1 << 24  # bytes: a model may read a million positions in an order of its own
LARGEST_HEADER = 1 << 18  # bytes of a safetensors header: about 2,500 tensors
FEW_LAYERS = 16  # built quickly, whatever their size
_KEYS: dict[str, type] = {"format": int, "statespan": str, "model": str, "dtype": str, "config": dict, "weights": dict}
_WEIGHT_KEYS: dict[str, type] = {"file": str, "bytes": int, "sha256": str}
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


class LoadError(ValueError):
    """A folder does not hold a loadable model, or its content was changed after saving.

    Example:
        >>> from statespan.models import Classifier
        >>> try:
        ...     Classifier.from_pretrained("/no/such/folder")
        ... except LoadError as error:
        ...     print(error)
        /no/such/folder/config.json cannot be read: No such file or directory
    """


@dataclass(frozen=True)
class StoredModel:
    """The content of a folder: the model's name, config, dtype, weights by name, and description of its inputs.

    Example:
        >>> import tempfile
        >>> from statespan.models import Classifier, ClassifierConfig
        >>> model = Classifier(ClassifierConfig(d_input=1, d_output=10, d_model=8, d_state=4, n_layers=1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save_pretrained(folder)
        ...     stored = read(folder)
        >>> stored.name, stored.dtype, stored.config["d_output"]
        ('classifier', torch.float32, 10)
    """

    name: str
    config: dict[str, Any]
    dtype: torch.dtype
    tensors: dict[str, Tensor]
    inputs: dict[str, Any] | None = None


def write(folder: str | Path, stored: StoredModel) -> None:
    """Save a model atomically: at any moment the folder holds either the old or the new one.

    The folder is created if it does not exist. A CheckpointError means that existing files are unchanged.
    """
    require("saving a model needs", "train", "safetensors")
    from safetensors.torch import save

    folder = Path(folder)
    io.make_folder(folder)
    weights = save({name: tensor.detach().cpu().contiguous() for name, tensor in stored.tensors.items()})
    check_header(folder, weights[:8])
    digest = hashlib.sha256(weights).hexdigest()
    file = f"model-{digest[:16]}.safetensors"
    content: dict[str, Any] = {
        "format": FORMAT,
        "statespan": __version__,
        "model": stored.name,
        "dtype": str(stored.dtype).removeprefix("torch."),
        "config": stored.config,
        "weights": {"file": file, "bytes": len(weights), "sha256": digest},
    }
    text = json.dumps({**content, "digest": _digest(content)}, indent=2, allow_nan=False) + "\n"
    inputs = None if stored.inputs is None else (json.dumps(stored.inputs, allow_nan=False) + "\n").encode()
    path = folder / INPUTS
    if path.is_file() and path.read_bytes() != inputs:
        path.unlink()  # first, so that no model ever lies beside the inputs of another one
    io.replace_file(folder / file, weights)
    io.replace_file(folder / CONFIG, text.encode())
    if inputs is not None:
        io.replace_file(path, inputs)
    io.sweep(folder)
    for path in folder.iterdir():
        if path.name != file and WEIGHTS.fullmatch(path.name):
            path.unlink(missing_ok=True)


def read(folder: str | Path) -> StoredModel:
    """Read what :func:`write` saved, bit for bit, or raise :class:`LoadError`."""
    require("loading a model needs", "train", "safetensors")
    from safetensors import SafetensorError
    from safetensors.torch import load

    folder = Path(folder)
    content = read_config(folder / CONFIG)
    entry = content["weights"]
    path = folder / entry["file"]
    weights = _read_file(path, entry["bytes"])
    if len(weights) != entry["bytes"] or hashlib.sha256(weights).hexdigest() != entry["sha256"]:
        raise LoadError(f"{path} is damaged: it is not what {CONFIG} says was saved")
    check_header(path, weights[:8])
    try:
        tensors = load(weights)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise LoadError(f"{path} is not a safetensors file: {error}") from error
    return StoredModel(content["model"], content["config"], _DTYPES[content["dtype"]], tensors, _read_inputs(folder))


def read_name(folder: Path) -> str:
    """The name of the model in a folder."""
    return read_config(folder / CONFIG)["model"]


def check_header(path: Path, first: bytes) -> None:
    """Reject a safetensors file, given its first 8 bytes, if its header exceeds the limit."""
    length = int.from_bytes(first, "little")
    if len(first) != 8 or length > LARGEST_HEADER:
        raise LoadError(f"{path}: the safetensors header must have at most {LARGEST_HEADER} bytes, got {length}")


def build_module(make: Callable[[int], nn.Module], n_layers: int, tensors: int) -> Any:
    """Build a module on the meta device; raise LoadError if it would not have as many tensors as were saved.

    ``make`` builds it with a given number of layers. The expected number of tensors is computed from modules of one and
    two layers, because building thousands of layers takes minutes.
    """
    with torch.device("meta"):
        if n_layers > FEW_LAYERS:
            with_one, with_two = (len(make(n).state_dict()) for n in (1, 2))
            expected = with_one + (n_layers - 1) * (with_two - with_one)
            if tensors != expected:
                raise LoadError(f"a config of {n_layers} layers must have {expected} weights by name, got {tensors}")
        return make(n_layers)


def check_tensors(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Reject tensors whose names, shapes or dtypes differ from the expected ones."""
    missing, extra = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if missing or extra:
        raise LoadError(f"weights must be those of the config: {missing[:3]} are missing, {extra[:3]} are unknown")
    for name, tensor in wanted.items():
        got = tensors[name]
        if got.shape != tensor.shape or got.dtype != tensor.dtype:
            raise LoadError(
                f"weight {name} must be {tensor.dtype} of shape {tuple(tensor.shape)}, got {got.dtype} of "
                f"shape {tuple(got.shape)}"
            )


def read_config(path: Path) -> dict[str, Any]:
    """The checked content of a ``config.json``."""
    raw = _read_file(path, LARGEST_CONFIG)
    try:
        content = json.loads(raw, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise LoadError(f"{path} must hold a JSON object, got {type(content).__name__}")
    digest = content.pop("digest", None)
    _check_schema(path, content, _KEYS)
    _check_schema(path, content["weights"], _WEIGHT_KEYS)
    if content["format"] != FORMAT:
        raise LoadError(f"{path} has format {content['format']}; this statespan {__version__} reads {FORMAT}")
    if content["dtype"] not in _DTYPES:
        raise LoadError(f"{path} has dtype {content['dtype']!r}; allowed: {', '.join(_DTYPES)}")
    if not WEIGHTS.fullmatch(content["weights"]["file"]):
        raise LoadError(f"{path} names weights {content['weights']['file']!r}; allowed: model-DIGEST.safetensors")
    if digest != _digest(content):
        raise LoadError(f"{path} is damaged: it was changed after it was saved")
    return content


def _read_inputs(folder: Path) -> dict[str, Any] | None:
    path = folder / INPUTS
    if not path.is_file():
        return None
    try:
        content = json.loads(_read_file(path, LARGEST_INPUTS), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, LoadError) else LoadError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise LoadError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def _check_schema(path: Path, content: dict[str, Any], keys: dict[str, type]) -> None:
    if content.keys() != keys.keys():
        raise LoadError(f"{path} must have the keys {', '.join(keys)}, got {', '.join(map(repr, content))}")
    for key, kind in keys.items():
        if type(content[key]) is not kind:
            raise LoadError(f"{path}: {key} must be of type {kind.__name__}, got {type(content[key]).__name__}")


def _digest(content: dict[str, Any]) -> str:
    """A digest of the values, independent of the file's layout."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key is repeated in one object")
    return dict(pairs)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _read_file(path: Path, most: int) -> bytes:
    """Read a file that is not larger than this."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise LoadError(f"{path} must have at most {most} bytes, got {size}")
            return file.read(size)
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error.strerror}") from error
