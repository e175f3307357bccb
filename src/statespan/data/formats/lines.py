"""Lines of a text file, with a limit on their length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, AnyStr

LONGEST_LINE = 1 << 24  # characters or bytes


def bounded(file: IO[AnyStr]) -> Iterator[AnyStr]:
    """The lines of a file, one by one; one longer than :data:`LONGEST_LINE` is a ValueError and not read on."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise ValueError(f"line {number} must have at most {LONGEST_LINE} characters, got more")
        yield line
