"""Texts as tokens: concatenated documents, each ending with <eos>, or one long text in windows.

Tokens of documents: 0 <pad>, 1 <unk>, 2 <eos>, then the vocabulary's own. Batches are padded with <pad>.

Shapes: T tokens, B batch, L length of a window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from statespan._check import check_int
from statespan.data.base import Array, Batch, Windows

PAD, UNK, EOS = 0, 1, 2
SPECIAL = 3


def vocabulary(texts: Iterable[str], least: int = 1) -> dict[str, int]:
    """The token of every character that occurs at least ``least`` times; the most frequent come first.

    Example:
        >>> vocabulary(["abba", "bc"], least=2)
        {'b': 3, 'a': 4}
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    characters = sorted((c for c, n in counts.items() if n >= least), key=lambda c: (-counts[c], c))
    return {character: SPECIAL + i for i, character in enumerate(characters)}


def encode(texts: Iterable[str], tokens: Mapping[str, int], length: int) -> dict[str, Array]:
    """Texts as tokens, each ended by <eos> and truncated to ``length`` including it.

    Returns "tokens" (T,) of all texts end to end, "starts" (N,) and "lengths" (N,) of each.

    Example:
        >>> encode(["ab", "b?a"], {"a": 3, "b": 4}, length=3)["tokens"].tolist()
        [3, 4, 2, 4, 1, 2]
    """
    count = SPECIAL + len(tokens)
    dtype = np.uint8 if count <= 256 else np.int16 if count <= 1 << 15 else np.int32
    table = np.full(max((ord(c) for c in tokens), default=0) + 2, UNK, dtype)
    for character, token in tokens.items():
        table[ord(character)] = token
    pieces = []
    for text in texts:
        points = np.frombuffer(text[: length - 1].encode("utf-32-le", "surrogatepass"), np.uint32)
        pieces.append(np.append(table[np.minimum(points, len(table) - 1)], table.dtype.type(EOS)))
    return join(pieces, table.dtype)


def join(pieces: Sequence[Array], dtype: Any) -> dict[str, Array]:
    """Concatenate arrays of tokens: "tokens", "starts" and "lengths"."""
    lengths = np.array([len(piece) for piece in pieces], np.int64)
    starts = np.cumsum(lengths) - lengths
    return {
        "tokens": np.concatenate([np.zeros(0, dtype), *pieces]).astype(dtype, copy=False),
        "starts": starts,
        "lengths": lengths.astype(np.int32),
    }


def documents(arrays: Mapping[str, Array], y: Array, length: int) -> Windows:
    """A split of documents from the result of :func:`encode` and labels."""
    each = {"lengths": arrays["lengths"], "y": y}
    return Windows({"tokens": arrays["tokens"]}, starts=arrays["starts"], length=length, prepare=padded, each=each)


def padded(rows: dict[str, Tensor]) -> Batch:
    """Windows of tokens (B, L), or (B, 2, L) for pairs, padded with <pad> after each document."""
    lengths, tokens = rows["lengths"].long(), rows["tokens"].long()
    inside = torch.arange(tokens.shape[-1], device=tokens.device) < lengths[..., None]
    tokens = torch.where(inside, tokens, PAD)
    if tokens.ndim == 3:  # the first documents of all pairs, then the second ones
        tokens, lengths = tokens.transpose(0, 1).flatten(0, 1), lengths.transpose(0, 1).flatten()
    return Batch(tokens, rows["y"].long(), lengths)


def shift(rows: dict[str, Tensor]) -> Batch:
    """Windows (B, L + 1) as inputs (B, L) and the token that follows each, (B, L)."""
    text = rows["text"].long()
    lengths = rows.get("lengths")
    return Batch(text[:, :-1], text[:, 1:], None if lengths is None else lengths.long())


def text_windows(text: Array, length: int, *, whole: bool) -> Windows:
    """Windows of a text (T,) that follow each other without overlap, each with ``length`` inputs.

    With ``whole`` the last window, which is shorter, is kept, so that each token but the first is predicted exactly
    once. Then every batch has ``lengths``; what lies beyond them does not count.

    Example:
        >>> windows = text_windows(np.arange(8, dtype=np.int32), 3, whole=True)
        >>> len(windows), windows.batch([2]).x[0, :1].tolist(), windows.batch([2]).lengths.tolist()
        (3, [6], [1])
    """
    check_int("length", length, minimum=1)
    pairs = len(text) - 1
    if pairs < (1 if whole else length):
        raise ValueError(f"length must be at most {pairs} for a text of {len(text)} tokens, got {length}")
    starts = np.arange(0, pairs if whole else pairs - length + 1, length)
    each = {"lengths": np.minimum(length, pairs - starts).astype(np.int32)} if whole else None
    return Windows({"text": text}, starts=starts, length=length + 1, prepare=shift, each=each)
