"""Speech Commands: spoken words of one second at 16 kHz, raw or as MFCC features.

Read from the tree of the public archive (``word/file.wav``, ``validation_list.txt`` and ``testing_list.txt``), or from
the parts that :mod:`~statespan.papers.datasets.speech_write` writes.

The samples are scaled once: by default to mean 0 and standard deviation 1 over the training clips, one mean and one
deviation for the whole signal. (The reference divides by 2¹⁵ twice and standardizes each of the 16,000 positions on
its own, which treats a delayed word as a different signal.)

Shapes: N clips, B batch, L = 16000 samples (L // subsample of them read), F = 161 frames of C = 20 coefficients.
"""

from __future__ import annotations

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
from statespan.data.registry import register_dataset
from statespan.data.scale import standardize, statistics
from statespan.data.source import Source, found
from statespan.data.split import as_sklearn, stratified
from statespan.papers.datasets.mfcc import mfcc
from statespan.papers.datasets.speech_clips import (
    LENGTH,
    LISTS,
    PIECE,
    RATE,
    SC10,
    SC30,
    SC35,
    Clip,
    Clips,
    Folder,
    held_out,
)
from statespan.papers.datasets.speech_parts import MANIFEST, Parts

FULL = 32768.0
MFCC = (161, 20)  # frames, coefficients
RANDOM = ("papers", "reference")  # splits of whole clips at random
SITE = "https://storage.googleapis.com/download.tensorflow.org/data"


def _lists(version: str, sha256: str, size: int | None) -> tuple[Source, ...]:
    return tuple(
        Source(
            name,
            url=f"{SITE}/speech_commands_{version}.tar.gz",
            sha256=sha256,
            size=size,
            also=(
                *(f"speech_commands_{folder}/{name}" for folder in ("v0.02", "v0.01")),
                *(f"SpeechCommands/speech_commands_{folder}/{name}" for folder in ("v0.02", "v0.01")),
            ),
        )
        for name in LISTS
    )


FILES = _lists("v0.02", "af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58", 2428923189)
FILES_30 = _lists("v0.01", "743935421bb51cccdb6bdd152e04c5c70274e935c82119ad7faeec31780d811d", None)


@dataclass(frozen=True)
class Waveform:
    """Turns clips (B, L) of int16 into inputs (B, L // subsample, 1): every subsample-th sample, (x - mean) / std.

    Example:
        >>> rows = {"x": torch.tensor([[100, 0, 300, 0]], dtype=torch.int16), "y": torch.tensor([3])}
        >>> Waveform(mean=100.0, std=100.0, subsample=2)(rows).x.flatten()
        tensor([0., 2.])
    """

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

    Example:
        >>> SpeechOptions(subsample=2).features
        'raw'
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
            speak in all three parts. "reference": the same with the reference's generator, and its rows
            if its clips are sorted by name. "official": the archive's lists, which keep each speaker in one part, all
            clips.
        whole: Leave out clips shorter than 16,000 samples with the official lists too, instead of padding them.

    Example:
        >>> TenWordsOptions(split="official").whole
        False
    """

    split: str = "papers"
    whole: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("split", self.split, (*RANDOM, "official"))
        check_bool("whole", self.whole)


@dataclass(frozen=True, kw_only=True)
class ThirtyWordsOptions(TenWordsOptions):
    """Options of the thirty words: those of :class:`TenWordsOptions`, by default with the official lists.

    Example:
        >>> ThirtyWordsOptions(features="mfcc").split
        'official'
    """

    split: str = "official"


@register_dataset(
    "sc35", "Speech Commands, all 35 words (S4D Tables 4, 11)", files=FILES, folder="speech", config=SpeechOptions
)
def sc35(folder: Path, options: SpeechOptions) -> Dataset:
    """Speech Commands v0.02, all 35 words, official split; shorter clips are padded with zeros to 16,000 samples."""
    clips = _open(folder)
    return _load("sc35", folder, options, words=SC35, clips=clips, split=_official(folder, clips, SC35, whole=False))


@register_dataset(
    "sc30", "Speech Commands, the 30 words of v0.01", files=FILES_30, folder="speech", config=ThirtyWordsOptions
)
def sc30(folder: Path, options: ThirtyWordsOptions) -> Dataset:
    """Speech Commands, the 30 words of version 0.01, which are in version 0.02 too."""
    return _chosen("sc30", folder, options, SC30)


@register_dataset(
    "sc10", "Speech Commands, 10 words (S4 Table 5)", files=FILES, folder="speech", config=TenWordsOptions
)
def sc10(folder: Path, options: TenWordsOptions) -> Dataset:
    """Speech Commands, the words yes, no, up, down, left, right, on, off, stop and go."""
    return _chosen("sc10", folder, options, SC10)


Split: TypeAlias = "list[list[Clip]]"  # train, validation, test


def _chosen(name: str, folder: Path, options: TenWordsOptions, words: tuple[str, ...]) -> Dataset:
    clips = _open(folder)
    if options.split in RANDOM:
        split = _random(folder, clips, words, options.split)
    else:
        split = _official(folder, clips, words, options.whole)
    kind = f"{options.split}-whole" if options.whole and options.split == "official" else options.split
    return _load(f"{name}-{kind}", folder, options, words=words, clips=clips, split=split)


def _load(
    name: str, folder: Path, options: SpeechOptions, *, words: tuple[str, ...], clips: Clips, split: Split
) -> Dataset:
    is_mfcc, subsample = options.features == "mfcc", options.subsample
    every = [clip for part in split for clip in part]
    ends = np.cumsum([len(part) for part in split])
    key = _key(clips, words)

    def audio() -> dict[str, Array | Rows]:
        y = np.array([word for _, word in every], np.uint8)
        return {"x": Rows((len(every), LENGTH), np.int16, clips.samples(every)), "y": y}

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


def _key(clips: Clips, words: tuple[str, ...]) -> dict[str, Any]:
    return {"version": 1, "files": stamp(*clips.files(words))}


def _open(folder: Path) -> Clips:
    root = found(FILES, folder)[0].parent
    return Parts(root) if (root / MANIFEST).exists() else Folder(root)


def _official(folder: Path, clips: Clips, words: tuple[str, ...], whole: bool) -> Split:
    """The split of the two lists; clips on neither are training data."""
    every = clips.clips(words)
    if clips.is_whole and not whole:
        raise ValueError(
            f"whole must be true with the parts in {clips.root}, which have only clips of {LENGTH:,} samples (or write "
            "them with all clips, --short), got false"
        )
    valid, test = held_out(clips, words, every)
    if whole:
        every = _whole(folder, clips, words)
    train = [clip for clip in every if clip[0] not in valid | test]
    return [train, *([clip for clip in every if clip[0] in part] for part in (valid, test))]


def _random(folder: Path, clips: Clips, words: tuple[str, ...], kind: str) -> Split:
    """70, 15 and 15 % of the whole clips of each word."""
    full = _whole(folder, clips, words)
    labels = np.array([word for _, word in full])
    if kind == "papers":
        rows = stratified(labels, (0.15, 0.15), seed=0)
    else:  # the rows are sorted, because clips are read in their order
        train, rest = as_sklearn(labels, 0.7, seed=0)
        valid, test = as_sklearn(labels[rest], 0.5, seed=1)
        rows = [np.sort(part) for part in (train, rest[valid], rest[test])]
    return [[full[i] for i in part] for part in rows]


def _whole(folder: Path, clips: Clips, words: tuple[str, ...]) -> list[Clip]:
    """The clips of exactly 16,000 samples."""
    every = clips.clips(words)
    if clips.is_whole:
        return every
    name, key = f"sc{len(words)}-lengths", _key(clips, words)
    lengths = cached(folder, name, key, lambda: {"lengths": clips.lengths(every)})["lengths"]
    return [clip for clip, length in zip(every, lengths) if length == LENGTH]


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
