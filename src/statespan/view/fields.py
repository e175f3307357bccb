"""Reads requests: a JSON object of known fields, each within its limits, or one refusal."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, NoReturn

from statespan._suggest import suggest

SHOWN = 60  # characters of a wrong value in a message
LARGEST = 1e30  # of a sample, so that scaling it does not overflow float32


class RefusedError(Exception):
    """A request that is refused, with its HTTP status.

    Example:
        >>> RefusedError("there is no such stream", 404).status
        404
    """

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def parse_json(content: bytes) -> dict[str, Any]:
    """A JSON object; NaN, infinity and anything else are refused.

    Example:
        >>> parse_json(b'{"length": 3}')
        {'length': 3}
    """
    try:
        parsed = json.loads(content.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"the body must be JSON: {_short(str(error) or 'too deep')}") from None
    if not isinstance(parsed, dict):
        raise RefusedError(f"the body must be a JSON object, got {type(parsed).__name__}")
    return parsed


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


class Fields:
    """The fields of a JSON object, read by name.

    Args:
        content: The object.
        *known: The names that it may have.

    Example:
        >>> fields = Fields({"length": 8}, "length", "scale")
        >>> fields.integer("length", 1, least=1, most=10), fields.number("scale", 1.0, least=0.1, most=10.0)
        (8, 1.0)
    """

    def __init__(self, content: dict[str, Any], *known: str) -> None:
        for name in content:
            if name not in known:
                raise RefusedError(f"{_short(name)!r} is not a field of this request{suggest(name, known)}")
        self.content = content

    def number(self, name: str, default: float, *, least: float, most: float) -> float:
        """A finite number from ``least`` to ``most``."""
        value = self.content.get(name, default)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not least <= value <= most:  # rejects NaN, and infinity as 1e999
            raise RefusedError(f"{name} must be a number from {least:g} to {most:g}, got {_short(repr(value))}")
        return float(value)

    def integer(self, name: str, default: int, *, least: int, most: int) -> int:
        """A whole number from ``least`` to ``most``."""
        value = self.content.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise RefusedError(f"{name} must be a whole number from {least} to {most}, got {_short(repr(value))}")
        return value

    def choice(self, name: str, default: str, allowed: Iterable[str]) -> str:
        """One of the allowed words."""
        value, words = self.content.get(name, default), list(allowed)
        if not isinstance(value, str) or value not in words:
            hint = suggest(value, words) if isinstance(value, str) else ""
            raise RefusedError(f"{name} must be one of {', '.join(words)}, got {_short(repr(value))}{hint}")
        return value

    def text(self, name: str) -> str:
        """A text, empty by default."""
        value = self.content.get(name, "")
        if not isinstance(value, str):
            raise RefusedError(f"{name} must be a text, got {_short(repr(value))}")
        return value

    def rows(self, name: str, columns: int, most: int) -> list[list[float]]:
        """From 1 to ``most`` rows of as many finite numbers as there are columns."""
        value = self.content.get(name)
        if not isinstance(value, list) or not 1 <= len(value) <= most:
            raise RefusedError(f"{name} must be a list of 1 to {most} samples, got {_short(repr(value))}")
        for row in value:
            if not isinstance(row, list) or len(row) != columns:
                raise RefusedError(f"{name} must have {columns} numbers in each sample, got {_short(repr(row))}")
            for number in row:
                is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
                if not is_number or not abs(number) <= LARGEST:  # rejects NaN
                    raise RefusedError(f"{name} must be numbers of at most {LARGEST:g}, got {_short(repr(number))}")
        return value


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def finite(values: Any) -> Any:
    """Nested lists of numbers with None, which JSON has, for NaN and infinity, which it has not.

    Example:
        >>> finite([[1.0, float("nan")]])
        [[1.0, None]]
    """
    if isinstance(values, list):
        return [finite(value) for value in values]
    return values if math.isfinite(values) else None
