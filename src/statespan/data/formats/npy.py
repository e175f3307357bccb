"""A strict reader of .npy and .npz files: headers are checked against the file before anything is allocated.

numpy's own reader reads a header of any stated length, and allocates an array of any shape before it looks for its
values. Nothing here is ever unpickled.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from statespan.data.base import Array
from statespan.data.formats.limits import Metered

LARGEST_HEADER = 10_000  # bytes, as in numpy; one of a plain array has 128
LARGEST_DIRECTORY = 1 << 20  # bytes of the list of arrays of a .npz file
RATIO = 100  # bytes of arrays for one byte of a .npz file
ALWAYS = 1 << 26  # bytes of arrays that a small .npz file may always have
KINDS = "biufcSUmM"  # of dtypes


def load(path: Path) -> Array:
    """The array of a .npy file, which must not hold objects; a ValueError names the file and what is wrong."""
    with path.open("rb") as file:
        try:
            return _read(file, path.stat().st_size)
        except ValueError as problem:
            raise ValueError(f"{path} is not a .npy file of a plain array: {problem}") from None


def load_all(path: Path) -> dict[str, Array]:
    """The arrays of a .npz file by name, with the checks of :func:`load` and a limit of their size."""
    with path.open("rb") as raw:
        try:
            return _read_all(raw, path.stat().st_size)
        except Exception as problem:  # damaged archives make the standard library raise almost anything
            raise ValueError(f"{path} is not a .npz file of plain arrays: {problem}") from None


def header(file: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of a .npy file: shape, whether columns come first, and dtype.

    The file is at its beginning, and then where the values begin. They must be as many bytes as the header says for a
    file of this ``size``.
    """
    magic = file.read(8)
    if magic[:6] != b"\x93NUMPY" or magic[6:] not in (b"\1\0", b"\2\0", b"\3\0"):
        raise ValueError(f"it begins with {magic!r}")
    version, width = magic[6], 2 if magic[6] == 1 else 4
    raw = file.read(width)
    length = struct.unpack("<H" if width == 2 else "<I", raw)[0] if len(raw) == width else 0
    if not 0 < length <= LARGEST_HEADER:
        raise ValueError(f"its header has {length} bytes, allowed: 1 to {LARGEST_HEADER}")
    text = io.BytesIO(raw + file.read(length))
    read = np.lib.format.read_array_header_1_0 if version == 1 else np.lib.format.read_array_header_2_0
    try:
        shape, columns_first, dtype = read(text)
    except Exception as problem:  # the header is parsed as Python, and what is not Python raises almost anything
        raise ValueError(f"its header cannot be read: {problem}") from None
    if dtype.kind not in KINDS or dtype.itemsize == 0:
        raise ValueError(f"its dtype is {dtype}, and not that of a plain array")
    actual, expected = size - 8 - width - length, dtype.itemsize * math.prod(shape)
    if len(shape) > 32 or any(n < 0 for n in shape) or actual != expected:
        raise ValueError(f"its values have {actual} bytes, which is not {dtype} of shape {shape}")
    return shape, columns_first, dtype


def _read(file: IO[bytes], size: int) -> Array:
    shape, columns_first, dtype = header(file, size)
    values = np.empty(math.prod(shape), dtype)
    view = memoryview(values.view(np.uint8).data) if values.size else memoryview(b"")
    done = 0
    while done < len(view):
        block = file.read(min(len(view) - done, 1 << 20))
        if not block:
            raise ValueError(f"it ends after {done} of {len(view)} bytes of values")
        view[done : done + len(block)] = block
        done += len(block)
    return values.reshape(shape[::-1]).T if columns_first else values.reshape(shape)


def _read_all(raw: IO[bytes], size: int) -> dict[str, Array]:
    metered = Metered(raw, LARGEST_DIRECTORY)
    arrays: dict[str, Array] = {}
    with zipfile.ZipFile(cast("IO[bytes]", metered)) as archive:
        metered.content()
        members, most = archive.infolist(), max(ALWAYS, RATIO * size)
        if (total := sum(member.file_size for member in members)) > most:
            raise ValueError(
                f"its arrays have {total} bytes, more than the {most} allowed for a file of {size}; save them with "
                "numpy.savez, which does not compress"
            )
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name == member.filename or name in arrays:
                raise ValueError(f"its member {member.filename!r} must end in .npy and occur once")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"its member {member.filename!r} must be stored or deflated")
            with archive.open(member) as file:
                arrays[name] = _read(file, member.file_size)
                file.read(1)  # at its end the checksum is compared
    return arrays
