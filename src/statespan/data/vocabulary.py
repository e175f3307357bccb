"""The tokens of a text: its characters and longer pieces of it, or its bytes.

In characters, token 0 is U+FFFD, which stands for every character that is not in the vocabulary.

Shapes: T tokens.
"""

from __future__ import annotations

import codecs
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from statespan._check import LARGEST_VOCABULARY, MOST_TOKENS, UNKNOWN, check_choice, check_texts
from statespan.data.base import UNITS, Array

__all__ = ["LARGEST_FILE", "LARGEST_VOCABULARY", "MOST_TOKENS", "UNKNOWN", "Vocabulary", "of_text", "read_tokens"]

LONGEST_TOKEN = 64  # characters
LARGEST_FILE = 1 << 20  # bytes of a file of tokens
_BLOCK = 1 << 22  # characters to encode at a time


@dataclass(frozen=True)
class Vocabulary:
    r"""The tokens of a text.

    Args:
        unit: "characters" or "bytes".
        tokens: The text of each token, :data:`UNKNOWN` first; empty for bytes.

    Example:
        >>> words = Vocabulary("characters", (UNKNOWN, "a", "b", "ab"))
        >>> words.encode("aab?").tolist(), words.decode([1, 3]), words.unknown("aab?")
        ([1, 3, 0], 'aab', '?')
        >>> Vocabulary("bytes").encode("aé").tolist(), Vocabulary("bytes").decode([97, 195, 169, 195])
        ([97, 195, 169], 'aé\ufffd')
    """

    unit: str
    tokens: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_choice("unit", self.unit, UNITS)
        if self.unit == "bytes":
            if self.tokens:
                raise ValueError(f"tokens must be none for bytes, got {len(self.tokens)}")
            return
        check_texts("tokens", self.tokens)
        if self.tokens[:1] != (UNKNOWN,):
            raise ValueError(f"tokens must begin with {UNKNOWN!r}, got {self.tokens[:1]}")

    def __len__(self) -> int:
        return len(self.tokens) or 256

    def encode(self, text: str) -> Array:
        """The tokens (T,) of a text, as small integers; at each position, the longest token that matches."""
        if self.unit == "bytes":
            return np.frombuffer(text.encode("utf-8", "surrogateescape"), np.uint8)
        if self._longer:
            return self._longest_match(text)
        tokens = np.empty(len(text), self._table.dtype)
        for start in range(0, len(text), _BLOCK):
            block = text[start : start + _BLOCK]
            points = np.frombuffer(block.encode("utf-32-le", "surrogatepass"), np.uint32)
            tokens[start : start + len(block)] = self._table[np.minimum(points, len(self._table) - 1)]
        return tokens

    def unknown(self, text: str) -> str:
        """The distinct characters of a text that are not in the vocabulary, in order of first occurrence."""
        return "" if self.unit == "bytes" else "".join(c for c in dict.fromkeys(text) if c not in self._numbers)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens; bytes that are not UTF-8 become U+FFFD."""
        decoder = self.decoder()
        return "".join(map(decoder.push, tokens)) + decoder.end()

    def decoder(self) -> Decoder:
        """A decoder of one token at a time."""
        return Decoder(self)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens)}

    @cached_property
    def _table(self) -> Array:
        """The token of each character by code point; the last entry is for all larger code points."""
        table = np.zeros(max(ord(token) for token in self.tokens if len(token) == 1) + 2, _dtype(len(self)))
        for token, number in self._numbers.items():
            if len(token) == 1:
                table[ord(token)] = number
        return table

    @cached_property
    def _longer(self) -> dict[str, tuple[int, ...]]:
        """The lengths of longer tokens by their first character, longest first."""
        lengths: dict[str, set[int]] = {}
        for token in self.tokens:
            if len(token) > 1:
                lengths.setdefault(token[0], set()).add(len(token))
        return {first: tuple(sorted(each, reverse=True)) for first, each in lengths.items()}

    def _longest_match(self, text: str) -> Array:
        numbers, longer = self._numbers, self._longer
        tokens, position = [], 0
        while position < len(text):
            first = text[position]
            number, size = numbers.get(first, 0), 1
            for length in longer.get(first, ()):
                match = numbers.get(text[position : position + length])
                if match is not None:
                    number, size = match, len(self.tokens[match])  # a slice at the end may be shorter than length
                    break
            tokens.append(number)
            position += size
        return np.array(tokens, _dtype(len(self)))


class Decoder:
    """Turns tokens into text one at a time; a character of several bytes appears with its last byte.

    Example:
        >>> decoder = Vocabulary("bytes").decoder()
        >>> [decoder.push(byte) for byte in "é".encode()]
        ['', 'é']
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.tokens
        self._bytes: Any = codecs.getincrementaldecoder("utf-8")("replace") if vocabulary.unit == "bytes" else None

    def push(self, token: int) -> str:
        """The text that this token completes."""
        return self.tokens[token] if self._bytes is None else self._bytes.decode(bytes([token]))

    def end(self) -> str:
        """The replacement for an incomplete character at the end, if there is one."""
        return "" if self._bytes is None else self._bytes.decode(b"", True)


def of_text(text: str, least: int = 1, extra: Iterable[str] = ()) -> Vocabulary:
    """The characters that occur at least ``least`` times in a text, sorted, and extra tokens.

    Example:
        >>> of_text("abba c", least=2, extra=["ab", "b"]).tokens[1:]
        ('a', 'b', 'ab')
    """
    counts: Counter[str] = Counter()
    for start in range(0, len(text), _BLOCK):
        counts.update(text[start : start + _BLOCK])
    characters = sorted(c for c, n in counts.items() if n >= least)
    return Vocabulary("characters", tuple(dict.fromkeys([UNKNOWN, *characters, *extra])))


def read_tokens(path: Path) -> list[str]:
    """The tokens in a file: a JSON list of distinct texts of 1 to 64 characters."""
    if not path.is_file():
        raise FileNotFoundError(f"tokens must be an existing JSON file, got {path}")
    with path.open("rb") as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise ValueError(f"{path} must have at most {LARGEST_FILE} bytes, got more")
    try:
        tokens = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be a JSON list of texts: {error}") from None
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise ValueError(f"{path} must be a JSON list of texts, got {str(tokens)[:40]}")
    if wrong := [token for token in tokens if not 1 <= len(token) <= LONGEST_TOKEN]:
        raise ValueError(f"{path} must have tokens of 1 to {LONGEST_TOKEN} characters, got one of {len(wrong[0])}")
    return list(check_texts(str(path), tokens))


def _dtype(count: int) -> Any:
    return np.uint8 if count <= 256 else np.int16
