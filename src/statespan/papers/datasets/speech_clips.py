"""The clips of Speech Commands in the layout of the public archive: ``word/file.wav`` and two lists of files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np

from statespan.data.base import Array
from statespan.data.formats.wav import read_wav

RATE = LENGTH = 16000
PIECE = 256  # clips handled at a time
LISTS = ("validation_list.txt", "testing_list.txt")
SC10 = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
# fmt: off
SC35 = (
    "backward", "bed", "bird", "cat", "dog", "down", "eight", "five", "follow", "forward", "four", "go", "happy",
    "house", "learn", "left", "marvin", "nine", "no", "off", "on", "one", "right", "seven", "sheila", "six", "stop",
    "three", "tree", "two", "up", "visual", "wow", "yes", "zero",
)
# fmt: on
SC30 = tuple(word for word in SC35 if word not in ("backward", "follow", "forward", "learn", "visual"))

Clip: TypeAlias = tuple[str, int]  # file below the root, number of its word


class Clips(Protocol):
    """Clips of words, wherever they are stored.

    Example:
        >>> clips: Clips = Folder(Path("speech_commands"))
        >>> clips.is_whole
        False
    """

    root: Path
    is_whole: bool  # whether clips shorter than 16,000 samples have been left out

    def files(self, words: Sequence[str]) -> list[Path]:
        """Files and folders whose sizes and times tell whether the clips have changed."""
        ...

    def clips(self, words: Sequence[str]) -> list[Clip]:
        """All clips of these words, in the order of the words, and by name."""
        ...

    def lengths(self, clips: Sequence[Clip]) -> Array:
        """Number of samples of each clip."""
        ...

    def samples(self, clips: Sequence[Clip]) -> Iterator[Array]:
        """The samples (n, 16000) of a few clips at a time, int16; zeros follow those of a shorter clip."""
        ...


class Folder:
    """The clips in the tree of the public archive.

    Example:
        >>> [path.name for path in Folder(Path("speech_commands")).files(["yes", "no"])]
        ['yes', 'no', 'validation_list.txt', 'testing_list.txt']
    """

    is_whole = False

    def __init__(self, root: Path) -> None:
        self.root = root

    def files(self, words: Sequence[str]) -> list[Path]:
        """Folders of the words, and both lists."""
        return [self.root / name for name in (*words, *LISTS)]

    def clips(self, words: Sequence[str]) -> list[Clip]:
        """All WAV files of these words."""
        root = self.root
        if lacking := [word for word in words if not (root / word).is_dir()]:
            raise ValueError(
                f"{root} must have a folder for each of the {len(words)} words, missing: {', '.join(lacking)}"
            )
        clips = [(f"{word}/{path.name}", i) for i, word in enumerate(words) for path in _sounds(root / word)]
        if not clips:
            raise ValueError(f"{root} has no .wav files in the folders of its words")
        return clips

    def lengths(self, clips: Sequence[Clip]) -> Array:
        """Number of samples of each clip, which reads all of them."""
        return np.array([len(self._read(file)) for file, _ in clips], np.int32)

    def samples(self, clips: Sequence[Clip]) -> Iterator[Array]:
        """The samples of a few files at a time."""
        for begin in range(0, len(clips), PIECE):
            read = [self._read(file) for file, _ in clips[begin : begin + PIECE]]
            yield np.stack([np.pad(clip, (0, LENGTH - len(clip))) for clip in read])

    def _read(self, file: str) -> Array:
        samples, rate = read_wav(self.root / file)
        if samples.dtype != np.int16 or samples.shape[1] != 1 or rate != RATE or len(samples) > LENGTH:
            raise ValueError(
                f"{self.root / file} must be mono, 16 bits, {RATE} Hz and at most one second long, got "
                f"{samples.shape[1]} channels of {samples.dtype}, {rate} Hz and {len(samples)} samples"
            )
        return samples[:, 0]


def held_out(clips: Clips, words: Sequence[str], files: Sequence[Clip]) -> list[set[str]]:
    """The clips of these words on each of the two lists: validation, test."""
    here, named = {file for file, _ in files}, []
    for name in LISTS:
        lines = (clips.root / name).read_text("utf8").split()
        wanted = {line for line in lines if line.split("/")[0] in words}
        if (absent := sorted(wanted - here)) and not clips.is_whole:
            raise ValueError(
                f"{clips.root} is incomplete: {name} lists {len(absent)} missing files, such as {absent[0]}"
            )
        named.append(wanted & here)
    return named


def _sounds(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.wav"))
