"""LRA ListOps: nested lists of MIN, MAX, MED and SM (sum modulo 10) of digits; what is their value?

The benchmark's files are read where they are; otherwise the same grammar makes the data. A node is an operator with
probability 1/4, and then has 2 to 10 arguments; nothing lies deeper than 10; expressions have between 500 and 2,000
tokens, both excluded.

All trees of a block grow together, one level at a time. Then their sizes are summed from the leaves up, the tokens get
their places from the root down, and the values are computed on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from statespan._check import check_int
from statespan.data.base import Dataset, Info
from statespan.data.cache import cached, stamp
from statespan.data.registry import register
from statespan.data.source import Source
from statespan.data.tokens import EOS, SPECIAL, documents, join
from statespan.papers.datasets.operands import DIGIT, END, OPERATOR, Shuffle

Array: TypeAlias = "np.ndarray[Any, Any]"
VERSION = 1
OPERATORS = ("[MAX", "[MED", "[MIN", "[SM")
TOKENS = (*"0123456789", *OPERATORS, "]")  # the first is token 3, behind <pad>, <unk> and <eos>
SPLITS = ("train", "val", "test")
BLOCK = 4096  # trees grown together; a part of what the data depends on
FILES = tuple(
    Source(
        f"basic_{split}.tsv",
        origin="listops-1000 in https://storage.googleapis.com/long-range-arena/lra_release.gz",
        also=(f"listops-1000/basic_{split}.tsv", f"lra_release/listops-1000/basic_{split}.tsv"),
        optional=True,
    )
    for split in SPLITS
)


@register("listops", "LRA ListOps: nested lists of operations on digits, up to 2,000 tokens, 10 classes", files=FILES)
def listops(
    folder: Path,
    *,
    train: int = 96_000,
    valid: int = 2_000,
    test: int = 2_000,
    length: int = 2048,
    seed: int = 0,
    generate: bool = False,
    shuffle: bool = False,
) -> Dataset:
    """ListOps from the benchmark's files, or made by its grammar where they are not here.

    Args:
        folder: With basic_train.tsv, basic_val.tsv and basic_test.tsv, or without.
        train: Number of training expressions to make.
        valid: Number of validation expressions.
        test: Number of test expressions.
        length: Longest input; expressions are cut to it, <eos> included.
        seed: Seed of the expressions.
        generate: Make them even if the files are here.
        shuffle: Shuffle the operands of training expressions, which keeps their values.
    """
    check_int("length", length, minimum=2)
    paths = [path for source in FILES if (path := source.find(folder)) is not None]
    parts = []
    for i, (name, count) in enumerate(zip(SPLITS, (train, valid, test))):
        if generate or len(paths) < 3:
            check_int(("train", "valid", "test")[i], count, minimum=1)
            key = {"version": VERSION, "split": name, "count": count, "length": length, "seed": seed}
            arrays = cached(folder, "listops", key, lambda i=i, n=count: _made(n, (seed, i), length))  # type: ignore[misc]
        else:
            key = {"version": VERSION, "length": length, "file": stamp(paths[i])}
            arrays = cached(folder, "listops", key, lambda path=paths[i]: _read(path, length))  # type: ignore[misc]
        parts.append(documents(arrays, arrays["y"], length))
    info = Info("classification", length, None, SPECIAL + len(TOKENS), 10, tuple("0123456789"))
    augment = Shuffle(_levels(parts[0].arrays)) if shuffle else None
    return Dataset("listops", info, parts[0], parts[1], parts[2], augment=augment)


def expressions(
    seed: int | tuple[int, ...], *, depth: int = 10, arguments: int = 10, shortest: int = 500, longest: int = 2000
) -> Iterator[tuple[Array, int]]:
    """Expressions without end, each as its tokens and its value.

    Args:
        seed: What they depend on.
        depth: Depth of the deepest values, the root being at 1.
        arguments: Most arguments of an operator.
        shortest: Expressions have more tokens than this.
        longest: And fewer than this.

    Example:
        >>> tokens, value = next(expressions(0, shortest=5, longest=20))
        >>> text(tokens), value
        ('[SM 7 7 7 5 9 4 8 ]', 7)
    """
    block = 0
    while True:
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence((0x4C4F, block, *np.atleast_1d(seed)))))
        yield from _block(rng, depth, arguments, range(shortest + 1, longest))
        block += 1


def text(tokens: Array) -> str:
    """Tokens as the benchmark writes them, without parentheses."""
    return " ".join(TOKENS[token - SPECIAL] for token in tokens if token >= SPECIAL)


class Level(NamedTuple):
    """One level of all trees of a block, n nodes."""

    parent: Array  # (n,) row of the parent in the level above
    tree: Array  # (n,) number of the tree
    is_inner: Array  # (n,) whether it is an operator
    symbol: Array  # (n,) its digit or the number of its operator


def _block(rng: np.random.Generator, depth: int, arguments: int, lengths: range) -> Iterator[tuple[Array, int]]:
    """The expressions among BLOCK trees that have one of these lengths."""
    levels: list[Level] = []
    parent = tree = np.arange(BLOCK)
    for number in range(1, depth + 1):
        n = len(parent)
        is_inner = rng.random(n) < 0.25 if number < depth else np.zeros(n, bool)
        symbol = np.where(is_inner, rng.integers(0, 4, n), rng.integers(0, 10, n)).astype(np.uint8)
        levels.append(Level(parent, tree, is_inner, symbol))
        operators = np.flatnonzero(is_inner)
        parent = np.repeat(operators, rng.integers(2, arguments + 1, len(operators)))
        tree = tree[parent]
    size = [np.where(level.is_inner, 2, 1) for level in levels]
    value = [level.symbol.astype(np.int64) for level in levels]
    for above, below in zip(range(depth - 2, -1, -1), range(depth - 1, 0, -1)):
        if len(levels[below].parent):
            first = np.flatnonzero(np.diff(levels[below].parent, prepend=-1))
            rows = levels[below].parent[first]
            size[above][rows] += np.add.reduceat(size[below], first)
            value[above][rows] = _values(levels[above].symbol[rows], value[below], first)
    good = (size[0] >= lengths.start) & (size[0] < lengths.stop)
    for row, tokens in zip(np.flatnonzero(good), _written(levels, size, good)):
        yield tokens, int(value[0][row])


def _values(operator: Array, value: Array, first: Array) -> Array:
    count = np.diff(first, append=len(value))
    owner = np.repeat(np.arange(len(first)), count)
    ordered = value[np.lexsort((value, owner))]
    median = (
        ordered[first + (count - 1) // 2] + ordered[first + count // 2]
    ) // 2  # rounded down, as the benchmark does
    sums = np.add.reduceat(value, first) % 10
    return np.choose(operator, [ordered[first + count - 1], median, ordered[first], sums])


def _written(levels: list[Level], size: list[Array], good: Array) -> list[Array]:
    """The tokens of the good trees: an operator, its arguments and a bracket take as many places as they need."""
    lengths = np.where(good, size[0], 0)
    starts = np.cumsum(lengths) - lengths
    out = np.zeros(int(lengths.sum()), np.uint8)
    place = starts
    for number, (parent, tree, is_inner, symbol) in enumerate(levels):
        if number:  # behind the parent's operator and the elder siblings
            before = np.cumsum(size[number]) - size[number]
            first = np.flatnonzero(np.diff(parent, prepend=-1))
            count = np.diff(first, append=len(before))
            place = place[parent] + 1 + before - np.repeat(before[first], count)
        keep = good[tree]
        at, inner = place[keep], is_inner[keep]
        out[at] = np.where(inner, OPERATOR, DIGIT) + symbol[keep]
        out[(at + size[number][keep] - 1)[inner]] = END
    return [out[starts[i] : starts[i] + lengths[i]] for i in np.flatnonzero(good)]


def _levels(arrays: dict[str, Array]) -> int:
    """Operators inside one another, at most."""
    tokens, starts = arrays["tokens"], arrays["starts"]
    opened = (tokens >= OPERATOR).astype(np.int8) - 2 * (tokens == END).astype(np.int8)
    around = np.cumsum(opened, dtype=np.int16)  # may turn over in a file of cut expressions, the differences do not
    return max(1, int((around - np.repeat((around - opened)[starts], arrays["lengths"])).max()))


def _made(count: int, seed: tuple[int, ...], length: int) -> dict[str, Array]:
    made = expressions(seed)
    pairs = [next(made) for _ in range(count)]
    return _arrays([tokens for tokens, _ in pairs], [value for _, value in pairs], length)


def _read(path: Path, length: int) -> dict[str, Array]:
    """The benchmark's TSV: a line of names, then expression and value."""
    table = np.zeros(256, np.uint8)
    short = dict(zip(OPERATORS, "ABCD"))  # one letter each, so that every token is one byte
    for i, token in enumerate(TOKENS):
        table[ord(short.get(token, token))] = SPECIAL + i
    pieces, values = [], []
    with path.open(encoding="ascii", errors="replace") as file:
        for number, line in enumerate(file):
            source, _, target = line.rstrip("\n").rpartition("\t")
            if number == 0 and source == "Source":
                continue
            for operator, letter in short.items():
                source = source.replace(operator, letter)
            tokens = table[np.frombuffer(source.encode("latin-1", "replace").translate(None, b"() "), np.uint8)]
            if not len(tokens) or not tokens.all() or target not in "0123456789" or len(target) != 1:
                raise ValueError(f"{path}, line {number + 1}: not an expression and its value: {line[:60]!r}")
            pieces.append(tokens)
            values.append(int(target))
    return _arrays(pieces, values, length)


def _arrays(pieces: list[Array], values: list[int], length: int) -> dict[str, Array]:
    closed = [np.append(piece[: length - 1], np.uint8(EOS)) for piece in pieces]
    return {**join(closed, np.uint8), "y": np.array(values, np.uint8)}
