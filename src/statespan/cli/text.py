"""Text of language models in a terminal: prompts to tokens, and generated tokens to text that is safe to print."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from statespan._fail import complain, fail
from statespan._text import printable
from statespan.cli.locate import Opened, dataset_of

if TYPE_CHECKING:
    from statespan.data import Vocabulary

Writer: TypeAlias = Callable[["int | None"], str]
MOST_NAMED = 20  # unknown characters in a message


class Text(ABC):
    """How a model reads and writes text.

    Example:
        >>> class Digits(Text):
        ...     def read(self, prompt):
        ...         return [int(digit) for digit in prompt]
        ...     def shown(self, text):
        ...         return text
        ...     def writer(self):
        ...         return lambda token: "" if token is None else str(token)
        >>> Digits().read("314")
        [3, 1, 4]
    """

    between = ""  # separates a prompt from what follows it

    @abstractmethod
    def read(self, prompt: str) -> list[int]:
        """The tokens of a prompt; an empty prompt means the start of a line."""

    @abstractmethod
    def shown(self, text: str) -> str:
        """The text in a form that is safe to print."""

    @abstractmethod
    def writer(self) -> Writer:
        """A function that takes one token after another, then None, and returns the text that each completes."""


class Words(Text):
    """Words of a dataset, separated by spaces.

    Example:
        >>> words = Words(("<unk>", "<eos>", "the", "cat"))
        >>> words.read("the cat")
        [2, 3]
        >>> write = words.writer()
        >>> write(2) + write(3)
        'the cat '
    """

    between = " "

    def __init__(self, words: tuple[str, ...]) -> None:
        self.words = words

    def read(self, prompt: str) -> list[int]:
        """See :meth:`Text.read`; a word that is not in the vocabulary becomes ``<unk>``."""
        number = {word: i for i, word in enumerate(self.words)}
        given = prompt.split() or ["<eos>"]
        if unknown := [word for word in given if word not in number]:
            if "<unk>" not in number:
                fail(f"--prompt must be words of the training data, got {unknown[0]!r}")
            complain(f"these words are not in the training data: {', '.join(unknown)}")
        return [number.get(word, number.get("<unk>", 0)) for word in given]

    def shown(self, text: str) -> str:
        """See :meth:`Text.shown`."""
        return printable(text, keep="\n")

    def writer(self) -> Writer:
        """See :meth:`Text.writer`; the end of a line is ``<eos>``."""

        def write(token: int | None) -> str:
            if token is None:
                return ""
            return "\n" if self.words[token] == "<eos>" else printable(self.words[token]) + " "

        return write


class Letters(Text):
    r"""Characters or bytes, joined without spaces.

    Example:
        >>> from statespan.data.vocabulary import Vocabulary
        >>> letters = Letters(Vocabulary("bytes"))
        >>> letters.read("cat"), letters.shown("a\x1b[2J")  # control characters become visible
        ([99, 97, 116], 'a\\x1b[2J')
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    def read(self, prompt: str) -> list[int]:
        """See :meth:`Text.read`; characters that are not in the vocabulary are an error."""
        if unknown := self.vocabulary.unknown(prompt or "\n"):
            if not prompt:
                fail("--prompt must not be empty: the training text has no line break to start after")
            named = ", ".join(f"{character!r} (U+{ord(character):04X})" for character in unknown[:MOST_NAMED])
            more = f" and {len(unknown) - MOST_NAMED} more" if len(unknown) > MOST_NAMED else ""
            fail(f"--prompt must be characters of the training text, got {named}{more}")
        tokens: list[int] = self.vocabulary.encode(prompt or "\n").tolist()
        return tokens

    def shown(self, text: str) -> str:
        """See :meth:`Text.shown`; carriage returns are left out, because they would hide the text before them."""
        return printable(text.replace("\r", ""), keep="\n\t")

    def writer(self) -> Writer:
        """See :meth:`Text.writer`."""
        decoder = self.vocabulary.decoder()
        return lambda token: self.shown(decoder.end() if token is None else decoder.push(token))


def text_of(opened: Opened, data: Path | None) -> Text:
    """How a language model reads and writes text: by its config, else by the words of the run's dataset."""
    from statespan.data import Vocabulary

    config = opened.model.config
    if config.unit:
        return Letters(Vocabulary(config.unit, config.tokens))
    dataset = dataset_of(opened, data)
    if dataset is None:
        fail("text needs the words of the training data: name the folder of the run, not of the model")
    return Words(dataset.info.classes)
