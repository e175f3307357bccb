"""WikiText-2 and WikiText-103, word by word, from the public ``.tokens`` files.

Shapes: T tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from statespan.data.base import Dataset, Info
from statespan.data.cache import cached, stamp
from statespan.data.registry import register_dataset
from statespan.data.source import Source, found
from statespan.data.tokens import text_windows

EOS, UNKNOWN = "<eos>", "<unk>"
SPLITS = ("train", "valid", "test")
LINES = 100_000  # encoded at a time, so that the words of a large file are never all in memory


def _sources(name: str, sha256: str, size: int) -> tuple[Source, ...]:
    url = f"https://wikitext.smerity.com/{name}-v1.zip"
    return tuple(
        Source(f"wiki.{split}.tokens", url=url, sha256=sha256, size=size, also=(f"{name}/wiki.{split}.tokens",))
        for split in SPLITS
    )


SMALL = _sources("wikitext-2", "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c", 4475746)
LARGE = _sources("wikitext-103", "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590", 190229076)


def vocabulary(path: Path) -> list[str]:
    r"""The words of a file and ``<eos>`` (one per line), most frequent first, ties by first appearance.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a").write_text(" b a b \n \n c b \n")
        ...     vocabulary(Path(folder, "a"))
        ['b', '<eos>', 'a', 'c']
    """
    return [word for word, _ in Counter(chain.from_iterable(_lines(path))).most_common()]


def encode(path: Path, words: list[str]) -> np.ndarray:
    """The file as word numbers (T,), int32, each line ended by ``<eos>``.

    A word outside the vocabulary becomes ``<unk>``; without that word it is an error.
    """
    index = {word: i for i, word in enumerate(words)}
    unknown = index.get(UNKNOWN, -1)
    pieces, flat = [], []
    for count, line in enumerate(_lines(path), 1):
        tokens = [index.get(word, unknown) for word in line]
        if -1 in tokens:
            missing = line[tokens.index(-1)]
            raise ValueError(f"{path}, line {count}: {missing!r} is not in the vocabulary of the training file")
        flat += tokens
        if count % LINES == 0:
            pieces.append(np.array(flat, np.int32))
            flat = []
    return np.concatenate([*pieces, np.array(flat, np.int32)])


@register_dataset("wikitext2", "WikiText-2, word level", files=SMALL)
def wikitext2(folder: Path, *, length: int = 512, eval_length: int | None = None) -> Dataset:
    """WikiText-2: 2,088,628 / 217,646 / 245,569 tokens, 33,278 words. See :func:`wikitext103`."""
    return _load("wikitext2", folder, length, eval_length)


@register_dataset("wikitext103", "WikiText-103, word level (S4 Table 8)", files=LARGE)
def wikitext103(folder: Path, *, length: int = 1024, eval_length: int | None = None) -> Dataset:
    """WikiText-103: a language model predicts each word from those before it in its window.

    Words are what white space separates, case kept, with ``<eos>`` at the end of each line. The vocabulary (267,735
    words) is that of the train file sorted by frequency, as an adaptive softmax wants it.

    Args:
        folder: Where ``wiki.train.tokens``, ``wiki.valid.tokens`` and ``wiki.test.tokens`` lie.
        length: Tokens of a training window. The windows follow each other; the rest at the end is unused.
        eval_length: Tokens of an evaluation window, ``length`` by default. The windows follow each other and the last
            one is kept, so that every word but a file's first is predicted exactly once.
    """
    return _load("wikitext103", folder, length, eval_length)


def _load(name: str, folder: Path, length: int, eval_length: int | None) -> Dataset:
    sources = SMALL if name == "wikitext2" else LARGE
    paths = dict(zip(SPLITS, found(sources, folder)))

    def build() -> dict[str, np.ndarray]:
        words = vocabulary(paths["train"])
        arrays = {split: encode(path, words) for split, path in paths.items()}
        return {**arrays, "words": np.frombuffer("\n".join(words).encode(), np.uint8)}

    arrays = cached(folder, name, {"version": 1, "files": stamp(*paths.values())}, build)
    words = tuple(arrays["words"].tobytes().decode().split("\n"))
    info = Info("language", length=length, d_input=None, vocabulary=len(words), d_output=len(words), classes=words)
    evaluated = length if eval_length is None else eval_length
    return Dataset(
        name,
        info,
        train=text_windows(arrays["train"], length, whole=False),
        valid=text_windows(arrays["valid"], evaluated, whole=True),
        test=text_windows(arrays["test"], evaluated, whole=True),
    )


def _lines(path: Path) -> Iterator[list[str]]:
    """The words of each line; lines end only at line feeds, whatever other separators the text holds."""
    with path.open(encoding="utf8", newline="\n") as file:
        for line in file:
            yield [*line.split(), EOS]
