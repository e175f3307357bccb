"""Speech Commands: spoken words of one second at 16 kHz, raw or as MFCC features.

Read from the tree of the public archive: ``word/file.wav``, ``validation_list.txt`` and ``testing_list.txt``.

The samples are scaled once: by default to mean 0 and standard deviation 1 over the training clips, one mean and one
deviation for the whole signal. (The reference divides by 2¹⁵ twice and standardizes each of the 16,000 positions on
its own, which treats a delayed word as a different signal.)

Shapes: N clips, B batch, L = 16000 samples (L // subsample of them read), F = 161 frames of C = 20 coefficients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from statespan._check import check_bool, check_choice, check_int
from statespan.data.augment import Vary
from statespan.data.base import Array, Arrays, Batch, Dataset, Info
from statespan.data.cache import Rows, cached, stamp
from statespan.data.formats.wav import read_wav
from statespan.data.registry import register_dataset
from statespan.data.scale import standardize, statistics
from statespan.data.source import Source, found
from statespan.data.split import stratified
from statespan.papers.datasets.mfcc import mfcc

RATE = LENGTH = 16000
FULL = 32768.0
MFCC = (161, 20)  # frames, coefficients
PIECE = 256  # clips handled at a time
SC10 = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
# fmt: off
SC35 = (
    "backward", "bed", "bird", "cat", "dog", "down", "eight", "five", "follow", "forward", "four", "go", "happy",
    "house", "learn", "left", "marvin", "nine", "no", "off", "on", "one", "right", "seven", "sheila", "six", "stop",
    "three", "tree", "two", "up", "visual", "wow", "yes", "zero",
)
# fmt: on
FILES = tuple(
    Source(
        name,
        url="https://storage.googleapis.com/download.tensorflow.org/data/speech_commands_v0.02.tar.gz",
        sha256="af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
        size=2428923189,
        also=(f"speech_commands_v0.02/{name}", f"SpeechCommands/speech_commands_v0.02/{name}"),
    )
    for name in ("validation_list.txt", "testing_list.txt")
)


@dataclass(frozen=True)
class Waveform:
    """Turns clips (B, L) of int16 into inputs (B, L // subsample, 1): every subsample-th sample, (x - mean) / std."""

    mean: float
    std: float
    subsample: int = 1

    def __call__(self, rows: dict[str, Tensor]) -> Batch:
        """Prepare clips and their words."""
        x = rows["x"][:, :: self.subsample].float()
        return Batch(((x - self.mean) / self.std)[..., None], rows["y"].long())


def coefficients(rows: dict[str, Tensor]) -> Batch:
    """Pass on gathered features (B, F, C), which are already standardized."""
    return Batch(rows["x"], rows["y"].long())


@dataclass(frozen=True, kw_only=True)
class SpeechOptions:
    """Options of Speech Commands.

    Args:
        features: "raw" samples (16000, 1), or "mfcc": 161 frames of 20 coefficients, each standardized over the
            training clips.
        subsample: Read every n-th sample of the raw signal, without a low-pass filter, as in the papers' test at half
            the rate (2); a model then takes ``dt_scale=2``.
        standard: Standardize the raw samples; otherwise they are divided by 2¹⁵.
        augment: Let the raw training words begin up to 0.1 s earlier or later, play up to 15 % faster or slower, vary
            their loudness, and add noise.
    """

    features: str = "raw"
    subsample: int = 1
    standard: bool = True
    augment: bool = False

    def __post_init__(self) -> None:
        check_choice("features", self.features, ("raw", "mfcc"))
        check_int("subsample", self.subsample, minimum=1)
        check_bool("standard", self.standard)
        check_bool("augment", self.augment)
        if self.features == "mfcc" and self.subsample != 1:
            raise ValueError(f"subsample must be 1 with features 'mfcc', got {self.subsample}")
        if self.features == "mfcc" and self.augment:
            raise ValueError("augment must be false with features 'mfcc', which are computed before training, got true")


@dataclass(frozen=True, kw_only=True)
class TenWordsOptions(SpeechOptions):
    """Options of the ten words, besides those of :class:`SpeechOptions`.

    Args:
        split: "papers": only clips of exactly 16,000 samples, 70 / 15 / 15 % of each word at random. The same people
            speak in all three parts. "official": the archive's lists, which keep each speaker in one part, all clips.
    """

    split: str = "papers"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("split", self.split, ("papers", "official"))


@register_dataset(
    "sc35", "Speech Commands, all 35 words (S4D Tables 4, 11)", files=FILES, folder="speech", config=SpeechOptions
)
def sc35(folder: Path, options: SpeechOptions) -> Dataset:
    """Speech Commands v0.02, all 35 words, official split; shorter clips are padded with zeros to 16,000 samples."""
    return _load("sc35", folder, options, words=SC35, parts=_official(_root(folder), SC35))


@register_dataset(
    "sc10", "Speech Commands, 10 words (S4 Table 5)", files=FILES, folder="speech", config=TenWordsOptions
)
def sc10(folder: Path, options: TenWordsOptions) -> Dataset:
    """Speech Commands, the words yes, no, up, down, left, right, on, off, stop and go."""
    parts = _official(_root(folder), SC10) if options.split == "official" else _papers(folder)
    return _load(f"sc10-{options.split}", folder, options, words=SC10, parts=parts)


Parts: TypeAlias = "list[list[tuple[str, int]]]"  # train, validation, test: file below the root, number of its word


def _load(name: str, folder: Path, options: SpeechOptions, *, words: tuple[str, ...], parts: Parts) -> Dataset:
    root, is_mfcc, subsample = _root(folder), options.features == "mfcc", options.subsample
    every = [clip for part in parts for clip in part]
    ends = np.cumsum([len(part) for part in parts])
    key = _key(root, words)

    def audio() -> dict[str, Array | Rows]:
        y = np.array([word for _, word in every], np.uint8)
        return {"x": Rows((len(every), LENGTH), np.int16, _pieces(root, every)), "y": y}

    arrays = cached(folder, name, key, audio)
    x, y, train = arrays["x"], arrays["y"], int(ends[0])
    prepare: Any = Waveform(0.0, FULL, subsample)
    if is_mfcc:
        x = cached(folder, f"{name}-mfcc", key, lambda: {"x": _features(arrays["x"], train)})["x"]
        prepare = coefficients
    elif options.standard:
        mean, std = cached(folder, f"{name}-scale", key, lambda: {"scale": _statistics(x[:train])})["scale"].tolist()
        prepare = Waveform(mean, std, subsample)
    length, d_input, hop = (*MFCC, 100) if is_mfcc else (-(-LENGTH // subsample), 1, subsample)
    info = Info("classification", length, d_input, None, len(words), classes=words, sampling_rate=RATE / hop)
    splits = [Arrays({"x": a, "y": b}, prepare) for a, b in zip(np.split(x, ends[:-1]), np.split(y, ends[:-1]))]
    vary = Vary(move=RATE // 10 // subsample, speed=0.15, gain=0.5, noise=0.1) if options.augment else None
    return Dataset(name.split("-")[0], info, splits[0], splits[1], splits[2], augment=vary)


def _key(root: Path, words: tuple[str, ...]) -> dict[str, Any]:
    return {"version": 1, "files": stamp(*(root / word for word in words), *(root / source.path for source in FILES))}


def _root(folder: Path) -> Path:
    return found(FILES, folder)[0].parent


def _tree(root: Path, words: tuple[str, ...]) -> list[tuple[str, int]]:
    if lacking := [word for word in words if not (root / word).is_dir()]:
        raise ValueError(f"{root} must have a folder for each of the {len(words)} words, missing: {', '.join(lacking)}")
    clips = [(f"{word}/{path.name}", i) for i, word in enumerate(words) for path in sorted((root / word).glob("*.wav"))]
    if not clips:
        raise ValueError(f"{root} has no .wav files in the folders of its words")
    return clips


def _official(root: Path, words: tuple[str, ...]) -> Parts:
    """The split of the two lists; clips on neither are training data."""
    clips = _tree(root, words)
    files = {file for file, _ in clips}
    held_out: list[set[str]] = []
    for source in FILES:
        lines = (root / source.path).read_text("utf8").split()
        named = {line for line in lines if line.split("/")[0] in words}
        if absent := sorted(named - files):
            raise ValueError(
                f"{root} is incomplete: {source.path} lists {len(absent)} missing files, such as {absent[0]}"
            )
        held_out.append(named)
    train = [clip for clip in clips if clip[0] not in set.union(*held_out)]
    return [train, *([clip for clip in clips if clip[0] in part] for part in held_out)]


def _papers(folder: Path) -> Parts:
    root = _root(folder)
    clips = _tree(root, SC10)

    def build() -> dict[str, Array]:
        return {"lengths": np.array([len(_samples(root / file)) for file, _ in clips], np.int32)}

    lengths = cached(folder, "sc10-lengths", _key(root, SC10), build)["lengths"]
    full = [clip for clip, length in zip(clips, lengths) if length == LENGTH]
    parts = stratified(np.array([word for _, word in full]), (0.15, 0.15), seed=0)
    return [[full[i] for i in part] for part in parts]


def _samples(path: Path) -> Array:
    samples, rate = read_wav(path)
    if samples.dtype != np.int16 or samples.shape[1] != 1 or rate != RATE or len(samples) > LENGTH:
        raise ValueError(
            f"{path} must be mono, 16 bits, {RATE} Hz and at most one second long, got {samples.shape[1]} channels of "
            f"{samples.dtype}, {rate} Hz and {len(samples)} samples"
        )
    return samples[:, 0]


def _pieces(root: Path, clips: list[tuple[str, int]]) -> Iterator[Array]:
    for begin in range(0, len(clips), PIECE):
        samples = [_samples(root / file) for file, _ in clips[begin : begin + PIECE]]
        yield np.stack([np.pad(clip, (0, LENGTH - len(clip))) for clip in samples])


def _statistics(x: Array) -> Array:
    """Mean and standard deviation of all samples, from exact integer sums."""
    total = squares = 0
    for begin in range(0, len(x), PIECE):
        piece = x[begin : begin + PIECE].astype(np.int64)
        total, squares = total + int(piece.sum()), squares + int((piece * piece).sum())
    mean = total / x.size
    return np.array([mean, max(squares / x.size - mean * mean, 1.0) ** 0.5])  # silence stays silence


def _features(x: Array, train: int) -> Array:
    """MFCC (N, F, C) of clips in [-1, 1), each coefficient standardized over the first ``train`` clips."""
    features = np.empty((len(x), *MFCC), np.float32)
    for begin in range(0, len(x), PIECE):
        features[begin : begin + PIECE] = mfcc(torch.from_numpy(x[begin : begin + PIECE]) / FULL).numpy()
    mean, std = statistics(features[:train])
    for begin in range(0, len(x), PIECE):
        features[begin : begin + PIECE] = standardize(features[begin : begin + PIECE], mean, std)
    return features
