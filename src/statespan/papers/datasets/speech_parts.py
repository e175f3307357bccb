"""Speech Commands in parts of at most 16 MiB, for a machine that can receive nothing larger.

:mod:`~statespan.papers.datasets.speech_write` makes them. A part is a .npy file of int16 samples (n, 16000).
``parts.json`` names the clips of every part, with their lengths, and has the part's size and SHA-256.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from statespan import _io
from statespan.data.base import Array
from statespan.data.formats import npy
from statespan.papers.datasets.speech_clips import LENGTH, LISTS, PIECE, Clip

MANIFEST = "parts.json"
FORMAT = 1


class PartError(ValueError):
    """A part, or the index of the parts, is missing or damaged.

    Attributes:
        path: The file.
        problem: What is wrong with it.

    Example:
        >>> error = PartError(Path("part-00.npy"), "is missing")
        >>> error.path.name, str(error)
        ('part-00.npy', 'part-00.npy is missing; copy it here again')
    """

    def __init__(self, path: Path, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"{path} {problem}; copy it here again")

    def __reduce__(self) -> tuple[Any, ...]:  # the default would pass the message as the path
        return type(self), (self.path, self.problem)


class Parts:
    """The clips in the parts of a folder; each part is verified before its clips are used.

    Example:
        >>> try:
        ...     Parts(Path("no/such/folder"))
        ... except PartError as error:
        ...     print(error.problem)
        is damaged: FileNotFoundError: [Errno 2] No such file or directory: 'no/such/folder/parts.json'
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        manifest = _manifest(root / MANIFEST)
        self.is_whole: bool = manifest["whole"]
        self._parts: list[dict[str, Any]] = manifest["parts"]
        for facts in (*self._parts, *manifest["lists"]):
            path = root / facts["file"]
            if not path.is_file():
                raise PartError(path, "is missing")
            if (size := path.stat().st_size) != facts["bytes"]:
                raise PartError(path, f"is damaged: it has {size} bytes, not {facts['bytes']}")
        for facts in manifest["lists"]:
            _verified(root, facts)
        self._places = {
            file: (number, row, length)
            for number, part in enumerate(self._parts)
            for row, (file, length) in enumerate(zip(part["clips"], part["lengths"]))
        }
        self._verified: set[int] = set()

    def files(self, words: Sequence[str]) -> list[Path]:
        """All parts, their list, and the lists of held-out clips."""
        return [self.root / name for name in (MANIFEST, *LISTS, *(part["file"] for part in self._parts))]

    def clips(self, words: Sequence[str]) -> list[Clip]:
        """All clips of these words."""
        number = {word: i for i, word in enumerate(words)}
        found = ((file, number.get(file.split("/")[0], -1)) for file in self._places)
        clips = sorted(((file, word) for file, word in found if word >= 0), key=lambda clip: (clip[1], clip[0]))
        if lacking := sorted(set(range(len(words))) - {word for _, word in clips}):
            names = ", ".join(words[i] for i in lacking)
            raise ValueError(f"{self.root} must have clips of each of the {len(words)} words, missing: {names}")
        return clips

    def lengths(self, clips: Sequence[Clip]) -> Array:
        """Number of samples of each clip."""
        return np.array([self._places[file][2] for file, _ in clips], np.int32)

    def samples(self, clips: Sequence[Clip]) -> Iterator[Array]:
        """The samples of a few clips at a time; only one part is in memory at a time."""
        now, part = -1, np.zeros((0, LENGTH), np.int16)
        for begin in range(0, len(clips), PIECE):
            piece = np.empty((len(clips[begin : begin + PIECE]), LENGTH), np.int16)
            for i, (file, _) in enumerate(clips[begin : begin + PIECE]):
                number, row, _ = self._places[file]
                if number != now:
                    now, part = number, self._part(number)
                piece[i] = part[row]
            yield piece

    def _part(self, number: int) -> Array:
        facts = self._parts[number]
        if number not in self._verified:
            _verified(self.root, facts)
            self._verified.add(number)
        part = npy.load(self.root / facts["file"])
        if part.dtype != np.int16 or part.shape != (len(facts["clips"]), LENGTH):
            problem = f"must be int16 of shape ({len(facts['clips'])}, {LENGTH}), got {part.dtype} {part.shape}"
            raise PartError(self.root / facts["file"], problem)
        return part


def _verified(root: Path, facts: dict[str, Any]) -> None:
    path = root / facts["file"]
    try:
        digest = _io.sha256(path)
    except OSError as problem:
        raise PartError(path, f"cannot be read: {problem}") from None
    if digest != facts["sha256"]:
        raise PartError(path, f"is damaged: its SHA-256 is {digest}, not {facts['sha256']}")


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text("utf8"))
        good = manifest["format"] == FORMAT and isinstance(manifest["whole"], bool)
        good = good and [facts["file"] for facts in manifest["lists"]] == list(LISTS) and bool(manifest["parts"])
        good = good and all(_fits(facts) for facts in (*manifest["lists"], *manifest["parts"]))
        good = good and all(
            len(part["clips"]) == len(part["lengths"])
            and all(isinstance(file, str) for file in part["clips"])
            and all(isinstance(length, int) and 0 <= length <= LENGTH for length in part["lengths"])
            for part in manifest["parts"]
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise PartError(path, f"is damaged: {type(problem).__name__}: {problem}") from None
    if not good:
        raise PartError(path, f"is not a list of parts of format {FORMAT}")
    return dict(manifest)


def _fits(facts: dict[str, Any]) -> bool:
    """Whether the facts about a file have the right types, and the file lies directly in the folder."""
    name = facts["file"]
    is_plain = isinstance(name, str) and name == Path(name).name and "\\" not in name
    return is_plain and isinstance(facts["bytes"], int) and isinstance(facts["sha256"], str)
