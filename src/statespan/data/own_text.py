"""Your own text file, to train a language model on: characters, longer tokens or bytes.

By default, the first 90 % are for training, the next 5 % for validation and the last 5 % for the test.

Shapes: T tokens.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from statespan._check import check_choice, check_int, check_number
from statespan.data.base import UNITS, Array, Dataset, Info
from statespan.data.registry import register_dataset
from statespan.data.tokens import text_windows
from statespan.data.vocabulary import Vocabulary, of_text, read_tokens

LARGEST = 1 << 30  # bytes of a text
PURPOSES = {"train": "to train", "valid": "to validate", "test": "to test"}


@dataclass(frozen=True, kw_only=True)
class OwnTextOptions:
    """Options of your own text.

    Args:
        path: The file.
        unit: "characters" of UTF-8 text, or "bytes" of any file.
        length: Tokens of a training window. Windows are consecutive; an incomplete one at the end is unused.
        eval_length: Tokens of an evaluation window, ``length`` by default. Windows are consecutive and an incomplete
            last one is kept, so every token of a part except its first is predicted exactly once.
        valid: Share of the text for validation, after the training part.
        test: Share of the text for the test, at its end.
        least: Characters that occur less often than this in the training part become the unknown token.
        tokens: A file with a JSON list of longer tokens. At each position, the longest token that matches is read; if
            none does, one character.

    Example:
        >>> options = OwnTextOptions(path="novel.txt", length=512)
        >>> options.unit, options.length
        ('characters', 512)
    """

    path: str
    unit: str = "characters"
    length: int = 256
    eval_length: int | None = None
    valid: float = 0.05
    test: float = 0.05
    least: int = 1
    tokens: str | None = None

    def __post_init__(self) -> None:
        check_choice("unit", self.unit, UNITS)
        check_int("length", self.length, minimum=1)
        if self.eval_length is not None:
            check_int("eval_length", self.eval_length, minimum=1)
        check_number("valid", self.valid, above=0.0, below=1.0)
        check_number("test", self.test, above=0.0, below=1.0)
        if self.valid + self.test >= 1:
            raise ValueError(f"valid and test must be less than 1 together, got {self.valid} and {self.test}")
        check_int("least", self.least, minimum=1)
        if self.unit == "bytes" and (self.tokens is not None or self.least != 1):
            raise ValueError("tokens and least must not be given with unit='bytes', whose vocabulary is fixed")


@register_dataset("own-text", "Your own text file (path), as characters, tokens or bytes", config=OwnTextOptions)
def own_text(folder: Path, options: OwnTextOptions) -> Dataset:
    """Your own text."""
    where = Path(options.path).expanduser()
    content = read_bytes(where)
    if options.unit == "bytes":
        vocabulary = Vocabulary("bytes")
        tokens = _cut(np.frombuffer(content, np.uint8).copy(), options)
        counted = f"{_counts(tokens)} bytes"
    else:
        texts = _cut(_decoded(where, content), options)
        vocabulary = _vocabulary(where, texts[0], options)
        tokens = [vocabulary.encode(text) for text in texts]
        unknown = _counts([np.flatnonzero(part == 0) for part in tokens])
        counted = f"{_counts(texts)} characters, {len(vocabulary):,} tokens, {unknown} unknown characters"
    for (part, purpose), array in zip(PURPOSES.items(), tokens):
        needed = options.length + 1 if part == "train" else 2
        if len(array) < needed:
            change = "a shorter data.length" if part == "train" else f"a larger data.{part}"
            got = f"{len(array)}; use {change} or a longer text"
            raise ValueError(f"{where} must have at least {needed} tokens {purpose}, got {got}")
    return text_dataset("own-text", vocabulary, tokens, (options.length, options.eval_length), note=counted)


def text_dataset(
    name: str,
    vocabulary: Vocabulary,
    parts: Sequence[Array],
    lengths: tuple[int, int | None],
    *,
    note: str = "",
) -> Dataset:
    """A dataset of tokens (T,) for each part; ``lengths`` are those of training and of evaluation windows."""
    count, (length, eval_length) = len(vocabulary), lengths
    info = Info(
        "language", length, None, vocabulary=count, d_output=count, classes=vocabulary.tokens, unit=vocabulary.unit
    )
    train = text_windows(parts[0], length, whole=False)
    valid, test = (text_windows(part, eval_length or length, whole=True) for part in parts[1:])
    return Dataset(name, info, train, valid, test, note=note)


def read_bytes(where: Path) -> bytes:
    """The content of a file of 1 to :data:`LARGEST` bytes."""
    if not where.is_file():
        missing = "" if where.is_absolute() else f", which is not in {Path.cwd()}"
        hint = ", which is a folder" if where.is_dir() else missing
        raise FileNotFoundError(f"path must be an existing text file, got {where}{hint}")
    with where.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(LARGEST + 1) if size <= LARGEST else b""
    if size > LARGEST or len(content) > LARGEST:
        raise ValueError(f"{where} must have at most {LARGEST:,} bytes, got {max(size, len(content)):,}")
    if not content:
        raise ValueError(f"{where} must have text in it, got an empty file")
    return content


def _decoded(where: Path, content: bytes) -> str:
    """The characters of a UTF-8 file, without a byte order mark."""
    advice = "data.unit=bytes reads any file"
    if (zero := content.find(b"\0")) >= 0:
        raise ValueError(f"{where} must be a text file, got a zero at byte {zero:,}; {advice}")
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        got = f"0x{content[error.start]:02x} at byte {error.start:,}"
    raise ValueError(f"{where} must be text in UTF-8, got {got}; {advice}")


def _cut(text: Any, options: OwnTextOptions) -> list[Any]:
    """The training, validation and test parts, in this order."""
    valid, test = (int(len(text) * share) for share in (options.valid, options.test))
    first, second = len(text) - valid - test, len(text) - test
    return [text[:first], text[first:second], text[second:]]


def _vocabulary(where: Path, text: str, options: OwnTextOptions) -> Vocabulary:
    """The characters of the training part, and the tokens of ``data.tokens``."""
    extra = [] if options.tokens is None else read_tokens(Path(options.tokens).expanduser())
    try:
        return of_text(text, options.least, extra)
    except ValueError as error:
        advice = "a larger data.least, fewer data.tokens or data.unit=bytes"
        raise ValueError(f"{where} has too large a vocabulary: {error}; use {advice}") from None


def _counts(parts: Sequence[Any]) -> str:
    return " / ".join(f"{len(part):,}" for part in parts)
