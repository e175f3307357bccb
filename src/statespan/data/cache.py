"""Prepared arrays kept in a folder: plain .npy files and a JSON manifest with their digests.

What is read back is memory-mapped, never unpickled. A cache that is damaged, unfinished or of another key is made anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from statespan.data.files import TEMPORARY, only_writer, put, remove, sha256, sync_folder

Array: TypeAlias = "np.ndarray[Any, Any]"
FORMAT = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Rows:
    """An array too large for memory, given piece by piece.

    Args:
        shape: Of the whole.
        dtype: Of the whole.
        pieces: Arrays that follow each other along the first axis.
    """

    shape: tuple[int, ...]
    dtype: Any
    pieces: Iterable[Array]


def cached(
    folder: Path, name: str, key: Mapping[str, Any], build: Callable[[], Mapping[str, Array | Rows]]
) -> dict[str, Array]:
    """The arrays that ``build`` makes, from the cache if they are there.

    Args:
        folder: The dataset's folder; the cache is its subfolder ``.cache``.
        name: Of the cache, a plain word.
        key: What the arrays depend on: options, version of the code, :func:`stamp` of the files they are made of.
            JSON values only.
        build: Makes the arrays. It may be called twice (where the disk is full or the folder read-only, they are kept
            in memory).

    Returns:
        The arrays by name, memory-mapped (a change to them is not written back).

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     arrays = cached(Path(folder), "squares", {"n": 4}, lambda: {"x": np.arange(4) ** 2})
        ...     arrays["x"].tolist()
        [0, 1, 4, 9]
    """
    text = json.dumps({"format": FORMAT, "name": name, **key}, sort_keys=True)
    place = folder / ".cache" / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if (found := _read(place, text)) is not None:
        return found
    try:
        with only_writer(place.parent):
            if (found := _read(place, text)) is not None:  # another process was faster
                return found
            _write(place, text, build())
    except OSError as problem:
        warnings.warn(f"{place} cannot be written, the data is kept in memory: {problem}", RuntimeWarning, stacklevel=2)
        return {name: _whole(array) for name, array in build().items()}
    if (found := _read(place, text)) is None:
        raise OSError(f"{place} was written and cannot be read back: the disk is at fault")
    return found


def stamp(*paths: Path) -> list[list[Any]]:
    """Name, size and time of files or folders: what changes when they do. For a key of :func:`cached`."""
    return [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in paths]


def _read(place: Path, key: str) -> dict[str, Array] | None:
    """The arrays of a good cache, or None."""
    try:
        manifest = json.loads((place / MANIFEST).read_text("utf8"))
        if manifest["key"] != key:
            return None
        arrays = {}
        for name, digest in manifest["arrays"].items():
            path = place / f"{name}.npy"
            if sha256(path) != digest:
                return None
            arrays[name] = np.load(path, mmap_mode="c", allow_pickle=False) if _size(path) else _empty(path)
        return arrays
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(place: Path, key: str, arrays: Mapping[str, Array | Rows]) -> None:
    temporary = place.with_name(TEMPORARY + place.name)
    remove(temporary)
    temporary.mkdir()
    try:
        digests = {name: _save(temporary / f"{name}.npy", array) for name, array in arrays.items()}
        with (temporary / MANIFEST).open("w", encoding="utf8") as file:
            json.dump({"key": key, "arrays": digests}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(temporary)
        put(temporary, place)
    except BaseException:
        remove(temporary)
        raise


def _save(path: Path, array: Array | Rows) -> str:
    """Write one .npy file and return its digest, computed on the way."""
    rows = array if isinstance(array, Rows) else Rows(array.shape, array.dtype, [array])
    dtype = np.dtype(rows.dtype)
    if dtype.hasobject:
        raise TypeError(f"{path.stem} must be a plain array, got dtype {dtype}")
    digest, count = hashlib.sha256(), 0
    with path.open("wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": tuple(rows.shape)}
        np.lib.format.write_array_header_1_0(file, header)
        file.flush()
        digest.update(path.read_bytes())
        for piece in rows.pieces:
            data = np.ascontiguousarray(piece, dtype=dtype).reshape(-1).view(np.uint8)
            file.write(data.data)
            digest.update(data.data)
            count += data.nbytes
        if count != dtype.itemsize * int(np.prod(rows.shape, dtype=np.int64)):
            raise ValueError(f"{path.stem}: the pieces have {count} bytes, which is not shape {tuple(rows.shape)}")
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _size(path: Path) -> int:
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        shape, _, _ = np.lib.format.read_array_header_1_0(file)
    return int(np.prod(shape, dtype=np.int64))


def _empty(path: Path) -> Array:
    """An array without entries, which cannot be mapped."""
    return np.load(path, allow_pickle=False)


def _whole(array: Array | Rows) -> Array:
    if isinstance(array, Rows):
        return np.concatenate([np.asarray(piece, dtype=array.dtype) for piece in array.pieces]).reshape(array.shape)
    return array
