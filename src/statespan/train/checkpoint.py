"""Checkpoints: folders with the tensors as safetensors, and their digests and the rest as JSON.

A folder ``000000001200-0`` (step and serial number) has

* ``state.safetensors``: weights, optimizer, averages, random states;
* ``state.json``: step, serial number, recipe, progress, size and SHA-256 of the tensors, and a SHA-256 of itself.

It gets its name only when all of it is on the disk and was read back. Checkpoints are read newest first; the first with
the right digests, in a folder named after its step and serial number, counts as the latest. Nothing in a checkpoint
can run code. Version 1 had no serial number in ``state.json``; it is still read, and its step is compared.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from statespan import _io as io
from statespan._extras import require
from statespan._io import CheckpointError

FORMAT, VERSION = "statespan checkpoint", 2
TENSORS, FACTS = "state.safetensors", "state.json"
NAME = re.compile(r"(\d{12})-(\d+)\Z")
LARGEST_HEADER = 16 << 20
SCHEMA: dict[str, type] = {"step": int, "recipe": dict, "progress": dict, "bytes": int, "tensors": str}
SCHEMAS = {1: SCHEMA, VERSION: {**SCHEMA, "serial": int}}  # of each version that is read
DTYPES = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}  # widest first, so that every tensor starts at a multiple of its width


@dataclass(frozen=True)
class Facts:
    """The content of a checkpoint besides its tensors.

    Example:
        >>> facts = Facts(step=1200, recipe={"name": "digits-s4d"}, progress={"best_step": 1000})
        >>> facts.step, facts.progress["best_step"]
        (1200, 1000)
    """

    step: int
    recipe: dict[str, Any]
    progress: dict[str, Any]


def save(folder: Path, tensors: dict[str, Tensor], facts: Facts, keep: int = 2) -> Path:
    """Write a checkpoint, read it back, and only then remove old ones.

    The ``keep`` newest stay, and the best ones they refer to (``progress["best_step"]``). If writing fails, nothing is
    removed.
    """
    serial = 1 + max((s for step, s, _ in _listed(folder) if step == facts.step), default=-1)
    path = folder / f"{facts.step:012d}-{serial}"
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    with io.new_folder(path, size) as draft:
        written, digest = io.write_new(draft / TENSORS, _safetensors(tensors))
        body = {**facts.__dict__, "serial": serial, "bytes": written, "tensors": digest}
        io.write_new(draft / FACTS, [_pack(body)])
        _check_tensors(draft, *_read_facts(draft, path.name)[1:])  # before it gets its name and anything older goes
    _prune(folder, keep)
    return path


def load(path: Path) -> tuple[dict[str, Tensor], Facts]:
    """Read one checkpoint; raises a CheckpointError unless every byte of it is what was written."""
    require("reading a checkpoint needs", "train", "safetensors")
    from safetensors import SafetensorError, safe_open

    facts, size, digest = _read_facts(path)
    _check_tensors(path, size, digest)
    try:
        with safe_open(str(path / TENSORS), framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path / TENSORS} is damaged: {_line(error)}") from None


def latest(folder: Path) -> tuple[dict[str, Tensor], Facts] | None:
    """The newest whole checkpoint, or None if there are none; raises a CheckpointError if all are damaged."""
    paths = [path for _, _, path in _listed(folder)]
    try:
        return _first_intact(paths) if paths else None
    except CheckpointError as error:
        problem = f"none of the {len(paths)} checkpoints in {folder} is intact; the newest: {error}"
        raise CheckpointError(problem) from None


def any_in(folder: Path) -> bool:
    """Whether there is a checkpoint, intact or not."""
    return bool(_listed(folder))


def at_step(folder: Path, step: int) -> tuple[dict[str, Tensor], Facts]:
    """The newest intact checkpoint of a step."""
    paths = [path for number, _, path in _listed(folder) if number == step]
    if not paths:
        raise CheckpointError(f"there is no checkpoint of step {step} in {folder}")
    return _first_intact(paths)


def _first_intact(paths: list[Path]) -> tuple[dict[str, Tensor], Facts]:
    """The first of these that is intact; raises the CheckpointError of the first one if none is."""
    problems: list[CheckpointError] = []
    for path in paths:
        try:
            return load(path)
        except CheckpointError as error:
            problems.append(error)
    raise problems[0]


def remove_after(folder: Path, step: int) -> None:
    """Remove the checkpoints after a step; a run that resumes there writes them again."""
    for number, _, path in _listed(folder):
        if number > step:
            io.remove(path)


def _listed(folder: Path) -> list[tuple[int, int, Path]]:
    """List (step, serial, path) of everything named like a checkpoint, newest first."""
    if not folder.is_dir():
        return []
    matches = [(NAME.match(path.name), path) for path in folder.iterdir() if path.is_dir()]
    return sorted(((int(match[1]), int(match[2]), path) for match, path in matches if match), reverse=True)


def _prune(folder: Path, keep: int) -> None:
    listed = _listed(folder)
    best_steps = set()
    for _, _, path in listed[:keep]:
        with contextlib.suppress(CheckpointError):
            best_steps.add(_read_facts(path)[0].progress.get("best_step"))
    for number, (step, _, path) in enumerate(listed):
        is_best = step in best_steps
        best_steps.discard(step)  # the newest of each such step is enough
        if number >= keep and not is_best:
            with contextlib.suppress(CheckpointError):  # the new checkpoint is already written
                io.remove(path)


def _safetensors(tensors: dict[str, Tensor]) -> Iterator[io.Bytes]:
    """The file in pieces (header size, header, data), to avoid a second copy of the tensors."""
    order = list(DTYPES)
    items = sorted(tensors.items(), key=lambda item: (order.index(item[1].dtype), item[0]))
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in items:
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, tensor in items:
        if tensor.numel():
            yield tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def _pack(body: dict[str, Any]) -> bytes:
    body = {"format": FORMAT, "version": VERSION, **body}
    return _json({**body, "sha256": hashlib.sha256(_json(body)).hexdigest()})


def _json(body: dict[str, Any]) -> bytes:
    return (json.dumps(body, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


def _read_facts(path: Path, name: str | None = None) -> tuple[Facts, int, str]:
    """The JSON with the size and digest of the tensors, if every byte is intact; ``name`` is the one it will get."""
    file = path / FACTS
    try:
        with file.open("rb") as handle:
            raw = handle.read(LARGEST_HEADER + 1)
        if len(raw) > LARGEST_HEADER:
            raise ValueError("too large")
        body = json.loads(raw)
        if not isinstance(body, dict) or _json(body) != raw:
            raise ValueError("not as it was written")
        if hashlib.sha256(_json({key: v for key, v in body.items() if key != "sha256"})).hexdigest() != body["sha256"]:
            raise ValueError("its digest is wrong")
        schema = SCHEMAS.get(body["version"]) if type(body["version"]) is int else None
        if body["format"] != FORMAT or schema is None:
            raise ValueError(
                f"it is of version {body['version']!r}; this statespan reads {', '.join(map(str, SCHEMAS))}"
            )
        if set(body) != {*schema, "format", "version", "sha256"} or any(
            type(body[k]) is not t for k, t in schema.items()
        ):
            raise ValueError("its entries are not those of a checkpoint")
        _check_name(path.name if name is None else name, body["step"], body.get("serial"))
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror or error}") from None
    except (ValueError, KeyError, RecursionError, TypeError) as error:
        raise CheckpointError(f"{file} is damaged: {_line(error)}") from None
    return Facts(body["step"], body["recipe"], body["progress"]), body["bytes"], body["tensors"]


def _check_name(name: str, step: int, serial: int | None) -> None:
    """Reject a checkpoint whose folder was renamed, because it would pass for a newer or older one."""
    if (match := NAME.match(name)) and (int(match[1]) != step or serial not in (None, int(match[2]))):
        number = "" if serial is None else f"-{serial}"
        raise ValueError(f"it is {step:012d}{number}, but its folder is named {name}")


def _check_tensors(path: Path, size: int, digest: str) -> None:
    file = path / TENSORS
    try:
        actual = file.stat().st_size
        if actual != size:
            raise CheckpointError(f"{file} is damaged: it has {actual} bytes instead of {size}")
        with file.open("rb") as handle:
            if int.from_bytes(handle.read(8), "little") > LARGEST_HEADER:
                raise CheckpointError(f"{file} is damaged: its header is larger than {LARGEST_HEADER} bytes")
        computed = io.sha256(file)
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror or error}") from None
    if computed != digest:
        raise CheckpointError(f"{file} is damaged: its digest is wrong")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
