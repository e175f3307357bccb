"""Files that are read within limits: the lengths of lines, and the headers of archives."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from typing import IO, AnyStr

LONGEST_LINE = 1 << 24  # characters or bytes


def bounded(file: IO[AnyStr]) -> Iterator[AnyStr]:
    """The lines of a file, one by one.

    A line longer than :data:`LONGEST_LINE`, which is not read on, and text that is not UTF-8 are a ValueError.
    """
    number = 0
    while line := _line(file):
        number += 1
        if len(line) > LONGEST_LINE:
            raise ValueError(f"line {number} must have at most {LONGEST_LINE} characters, got more")
        yield line


def _line(file: IO[AnyStr]) -> AnyStr:
    try:
        return file.readline(LONGEST_LINE + 1)
    except UnicodeDecodeError:
        raise ValueError(_not_utf8(file.buffer)) from None  # type: ignore[attr-defined]


def _not_utf8(file: IO[bytes]) -> str:
    """Where the first byte of a file is that is not UTF-8, and what to do about it."""
    file.seek(0)
    content = file.read()
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        line, byte = content.count(b"\n", 0, error.start) + 1, content[error.start]
        encoding = "utf-16" if content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "latin1"
        return (
            f"line {line} must be UTF-8, got the byte 0x{byte:02x} at offset {error.start}; save the file as UTF-8, or "
            f"convert it: iconv -f {encoding} -t utf-8 FILE > NEW"
        )
    return "the file must be UTF-8, and changed while it was read"


class Metered(io.RawIOBase):
    """A file for the standard library's readers of archives, which trust the length that a header states.

    After each call of :meth:`headers`, the first of them here, at most ``limit`` bytes may be read.

    Example:
        >>> file = Metered(io.BytesIO(bytes(100)), limit=10)
        >>> len(file.read(4))
        4
        >>> file.read(20)
        Traceback (most recent call last):
            ...
        ValueError: its headers are longer than 10 bytes
    """

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self.file, self.limit = file, limit
        self.headers()

    def headers(self) -> None:
        """Announce that headers follow."""
        self.left: int | None = self.limit

    def content(self) -> None:
        """Announce that content follows, which the caller reads in pieces."""
        self.left = None

    def read(self, size: int | None = -1) -> bytes:
        """Up to ``size`` bytes, all by default; headers beyond the limit raise a ValueError."""
        size = -1 if size is None else size
        if self.left is None:
            return self.file.read(size)
        if size <= self.left:
            data = self.file.read(self.left + 1 if size < 0 else size)
            if len(data) <= self.left:
                self.left -= len(data)
                return data
        raise ValueError(f"its headers are longer than {self.limit} bytes")

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position."""
        return self.file.seek(offset, whence)

    def seekable(self) -> bool:
        """It is."""
        return True

    def readable(self) -> bool:
        """It is."""
        return True
