"""A cache of prepared arrays: plain .npy files and a JSON manifest with their sizes, times and digests.

Arrays are memory-mapped, never unpickled. A cache that is damaged, unfinished or of another key is rebuilt. A file with
the recorded size and time is trusted, so that gigabytes are not read again at each start; of any other file the digest
is compared. :func:`check` compares all digests.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from statespan import _io
from statespan._io import CheckpointError, sha256
from statespan.data.base import Array
from statespan.data.download import Progress
from statespan.data.formats import npy

FORMAT = 2
MANIFEST = "manifest.json"
_watcher: ContextVar[Progress | None] = ContextVar("watcher", default=None)


@contextmanager
def watched(progress: Progress | None) -> Iterator[None]:
    """Call ``progress`` with (name of the cache, bytes done, total bytes) for every piece of :class:`Rows` written."""
    token = _watcher.set(progress)
    try:
        yield
    finally:
        _watcher.reset(token)


@dataclass(frozen=True)
class Rows:
    """An array too large for memory, in pieces.

    Example:
        >>> import tempfile
        >>> pieces = (np.full((2, 3), i, dtype=np.int16) for i in range(50))  # made one at a time
        >>> rows = Rows(shape=(100, 3), dtype=np.int16, pieces=pieces)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cached(Path(folder), "rows", {"version": 1}, lambda: {"x": rows})["x"].shape
        (100, 3)
    """

    shape: tuple[int, ...]  # of the whole array
    dtype: Any
    pieces: Iterable[Array]  # that follow each other along the first axis


def cached(
    folder: Path, name: str, key: Mapping[str, Any], build: Callable[[], Mapping[str, Array | Rows]]
) -> dict[str, Array]:
    """The arrays that ``build`` returns, from the cache in the dataset's folder if possible.

    The key is what the arrays depend on, as JSON values: options, version of the code, :func:`stamp` of the files they
    are made of. ``build`` is called twice if the disk is full or read-only; the arrays then stay in memory. Otherwise
    they are memory-mapped; a change to them is not written back.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     arrays = cached(Path(folder), "squares", {"n": 4}, lambda: {"x": np.arange(4) ** 2})
        ...     arrays["x"].tolist()
        [0, 1, 4, 9]
    """
    text = json.dumps({"format": FORMAT, "name": name, **key}, sort_keys=True)
    place = folder / ".cache" / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if (arrays := _read(place, text)) is not None:
        return arrays
    try:
        _io.make_folder(place.parent)
        with _io.locked(place.parent, wait=True):
            _io.sweep(place.parent)
            if (arrays := _read(place, text)) is not None:  # another process was faster
                return arrays
            _write(place, text, build())
    except (OSError, CheckpointError) as problem:
        warnings.warn(f"{place} cannot be written; the data is kept in memory: {problem}", RuntimeWarning, stacklevel=2)
        return {name: _whole(array) for name, array in build().items()}
    if (arrays := _read(place, text)) is None:
        raise OSError(f"{place} was written but cannot be read back: the disk is faulty")
    return arrays


def stamp(*paths: Path) -> list[list[Any]]:
    """Name, size and time of files or folders, for a key of :func:`cached`."""
    return [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in paths]


def check(folder: Path) -> dict[Path, bool]:
    """Whether each cache below a dataset's folder is whole, every byte verified; damaged ones are removed."""
    is_whole = {}
    for manifest in sorted([*folder.glob(f".cache/*/{MANIFEST}"), *folder.glob(f"*/.cache/*/{MANIFEST}")]):
        place = manifest.parent
        is_whole[place] = _read(place, None, trust=False) is not None
        if not is_whole[place]:
            _io.remove(place)
    return is_whole


def _read(place: Path, key: str | None, trust: bool = True) -> dict[str, Array] | None:
    """The arrays of a good cache with this key (None: any), or None; ``trust`` skips digests of unchanged files."""
    try:
        manifest = json.loads((place / MANIFEST).read_text("utf8"))
        if key not in (None, manifest["key"]):
            return None
        arrays, touched = {}, False
        for name, facts in manifest["arrays"].items():
            path = place / f"{name}.npy"
            now = path.stat()
            if now.st_size != facts["bytes"]:
                return None
            if not trust or now.st_mtime_ns != facts["time"]:
                if sha256(path) != facts["sha256"]:
                    return None
                touched = touched or now.st_mtime_ns != facts["time"]
                facts["time"] = now.st_mtime_ns
            with path.open("rb") as file:
                shape, *_ = npy.header(file, now.st_size)
            # an empty array cannot be memory-mapped
            arrays[name] = np.load(path, mmap_mode="c" if math.prod(shape) else None, allow_pickle=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if touched:  # it was copied; the next start need not read all of it
        with suppress(CheckpointError):
            _io.replace_file(place / MANIFEST, _json(manifest))
    return arrays


def _write(place: Path, key: str, arrays: Mapping[str, Array | Rows]) -> None:
    if place.exists():  # damaged
        _io.remove(place)
    with _io.new_folder(place, 0) as draft:
        facts = {}
        for name, array in arrays.items():
            path = draft / f"{name}.npy"
            _, digest = _io.write_new(path, _npy(name, place.name.rpartition("-")[0], array))
            now = path.stat()
            facts[name] = {"bytes": now.st_size, "time": now.st_mtime_ns, "sha256": digest}
        _io.write_new(draft / MANIFEST, [_json({"key": key, "arrays": facts})])


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=1).encode()


def _npy(name: str, cache: str, array: Array | Rows) -> Iterator[bytes | memoryview]:
    """The bytes of a .npy file, piece by piece; each is reported to the watcher."""
    rows = array if isinstance(array, Rows) else Rows(array.shape, array.dtype, [array])
    dtype, watcher = np.dtype(rows.dtype), _watcher.get() if isinstance(array, Rows) else None
    if dtype.hasobject:
        raise TypeError(f"{name} must be a plain array, got dtype {dtype}")
    count, total = 0, dtype.itemsize * int(np.prod(rows.shape, dtype=np.int64))
    head = io.BytesIO()
    facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": tuple(rows.shape)}
    np.lib.format.write_array_header_1_0(head, facts)
    yield head.getvalue()
    for piece in rows.pieces:
        data = np.ascontiguousarray(piece, dtype=dtype).reshape(-1).view(np.uint8).data
        count += data.nbytes
        yield data
        if watcher is not None:
            watcher(cache, count, total)
    if count != total:
        raise ValueError(f"{name}: the pieces have {count} bytes, which is not shape {tuple(rows.shape)}")


def _whole(array: Array | Rows) -> Array:
    if isinstance(array, Rows):
        return np.concatenate([np.asarray(piece, dtype=array.dtype) for piece in array.pieces]).reshape(array.shape)
    return array
