"""Reads the tensors of a checkpoint; the only module that reads pickled files.

``torch.load`` runs here with ``weights_only=True`` only. Its unpickler builds tensors and plain containers, and rejects
every other name. The config that Lightning stores beside the weights consists of OmegaConf's classes, which are read as
:class:`StandIn`, a class that does nothing: no code of OmegaConf, Lightning or the file runs.

Even so, torch before 2.6 (CVE-2025-32434) and before 2.10 (CVE-2026-24747) can be attacked; with those versions only
safetensors files are read.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch

from statespan._text import printable
from statespan.models.pretrained import LoadError, check_header

SAFE_TORCH = (2, 10)
LARGEST_PICKLE = 1 << 24  # bytes of the pickled structure, without the tensors
SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")
_HARMLESS = re.compile(r"omegaconf\.[\w.]+|typing\.Any|builtins\.(list|dict|tuple|int|float|str|bool)")
_DEFAULTDICT = "collections.defaultdict"


class StandIn:
    """Replaces a class in a pickled file: it keeps the attributes and does nothing else."""

    def __init__(self, *values: Any) -> None:
        """Ignore the arguments."""


def read_file(path: Path) -> Any:
    """The content of a checkpoint: nested dictionaries of tensors and plain values.

    Args:
        path: A file of ``torch.save`` (.pt, .pth, .ckpt, .bin) or .safetensors.

    Raises:
        LoadError: It is not such a file, is damaged, or refers to code.
    """
    if path.suffix not in SUFFIXES:
        raise LoadError(f"{path} must end in one of {', '.join(SUFFIXES)}")
    try:
        with path.open("rb") as file:
            return _safetensors(path, file) if path.suffix == ".safetensors" else _pickled(path, file)
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error.strerror or error}") from error


def plain(value: Any) -> Any:
    """A stored config as dictionaries, lists and plain values; None for anything else."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, StandIn):
        stored = vars(value)
        return plain(stored["_content"] if "_content" in stored else stored.get("_val"))
    return value if isinstance(value, (str, int, float, bool)) else None


def _safetensors(path: Path, file: BinaryIO) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load

    check_header(path, file.read(8))
    file.seek(0)
    try:
        return load(file.read())
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise LoadError(f"{path} is not a safetensors file: {_line(error)}") from error


def _pickled(path: Path, file: BinaryIO) -> Any:
    version = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])
    if version < SAFE_TORCH:
        raise LoadError(
            f"{path} is pickled, and torch {torch.__version__} can be attacked by such files (CVE-2026-24747): "
            f"update torch to {'.'.join(map(str, SAFE_TORCH))} or later, or save the state_dict as .safetensors"
        )
    _check_archive(path, file)
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(file)  # only lists them
    except Exception as error:  # the parser may raise anything
        raise LoadError(f"{path} is damaged: {_line(error)}") from error
    code = sorted(name for name in names if name != _DEFAULTDICT and not _HARMLESS.fullmatch(name))
    if code:
        raise LoadError(
            f"{path} refers to code ({printable(', '.join(code[:3]))}), but only tensors and plain values are read; "
            "if you trust the file, save its model.state_dict() alone"
        )
    stand_ins = [(_dictionary if name == _DEFAULTDICT else _stand_in(name), name) for name in names]
    file.seek(0)
    try:
        with torch.serialization.safe_globals(stand_ins):  # type: ignore[arg-type]
            return torch.load(file, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # torch's parser may raise anything
        raise LoadError(f"{path} is damaged or contains more than tensors: {_reason(error)}") from error


def _check_archive(path: Path, file: BinaryIO) -> None:
    """Require what ``torch.save`` writes: a zip file of uncompressed entries, no larger together than the file."""
    size = file.seek(0, 2)
    try:
        entries = zipfile.ZipFile(file).infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
        raise LoadError(f"{path} is not a whole file of torch.save (torch 1.6 or later): {_line(error)}") from error
    pickles = [entry for entry in entries if entry.filename.endswith("data.pkl")]
    if len(pickles) != 1 or pickles[0].file_size > LARGEST_PICKLE:
        raise LoadError(f"{path} must have one data.pkl of at most {LARGEST_PICKLE} bytes, as files of torch.save do")
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise LoadError(f"{path} must not be compressed: torch.save stores tensors uncompressed")
    if sum(entry.file_size for entry in entries) > size:
        raise LoadError(f"{path} is damaged: its entries are larger than the file")
    file.seek(0)


def _dictionary(*_factory: Any) -> dict[Any, Any]:
    """Takes the place of ``collections.defaultdict``: torch's unpickler fills plain dictionaries only."""
    return {}


def _stand_in(name: str) -> type[StandIn]:
    """A stand-in that bears the name, for messages."""
    module, _, cls = name.rpartition(".")
    return type(cls, (StandIn,), {"__module__": module})


def _reason(error: Exception) -> str:
    """What torch could not read, without its advice to load the file with ``weights_only=False``, which runs code."""
    found = re.search(r"WeightsUnpickler error:\s*(?P<reason>.+)", str(error))
    line = printable(found["reason"]) if found else _line(error)
    cls = re.search(r"got <class '(?P<name>.+?)'>", line)
    if cls:
        return f"{cls['name']} is a type that cannot be read"
    return type(error).__name__ if "weights_only" in line else line


def _line(error: Exception) -> str:
    """The first line of a message."""
    return printable((str(error) or type(error).__name__).splitlines()[0])
