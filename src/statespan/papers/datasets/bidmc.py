"""BIDMC: heart rate, respiratory rate and oxygen saturation from 32 s of PPG and ECG at 125 Hz.

Two releases are read. "physionet": the 53 records of 8 minutes as ``bidmc_NN_Signals.csv`` and
``bidmc_NN_Numerics.csv``. "tser": ``BIDMC32HR_TRAIN.ts`` and so on of the Monash regression archive, which the papers
used and which is now hard to get.

Windows of the PhysioNet records are 32 s long and begin every 3 s, 150 of them a record, 7,950 in all. The label of a
window is the mean of the monitor's values (one a second) over the 32 seconds it covers; seconds without a value do not
count, and a window with fewer than 16 values is dropped, which leaves 7,950 windows for HR, 7,915 for RR and 7,926 for
SpO2. The archive's own rule is not published (it has 7,949 windows), so errors are close to the papers', not the same.

Inputs and targets are standardised by default, with one mean and one deviation for each signal over the records of the
training windows. (The reference does neither; a heart rate of 90 then takes long to reach from an output near 0.) With
``info.target_mean`` and ``info.target_std`` errors are reported in beats, breaths or per cent. Nine of the records
have a PPG four times as large as the others; ``standard="window"`` makes all windows alike, and hides the patient.

Shapes: T samples, B batch, L = 4000 samples of a window, 2 signals: PPG (PLETH) and ECG (II).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from statespan._check import check_bool, check_choice, check_int, check_number
from statespan.data.augment import Compose, Crop, Vary
from statespan.data.base import Array, Batch, Dataset, Raw, Windows
from statespan.data.cache import cached, stamp
from statespan.data.formats.ts import read_ts
from statespan.data.registry import register_dataset
from statespan.data.scale import ScaledInfo, standardize, statistics
from statespan.data.source import Source
from statespan.data.split import split as split_rows

RATE, SECONDS, EVERY = 125, 32, 3
LENGTH = RATE * SECONDS
SIGNALS = ("PLETH", "II")
TARGETS = {"HR": "HR", "RR": "RESP", "SpO2": "SpO2"}  # as the archive calls them -> the column of the monitor
SHARES = (0.15, 0.15)  # of validation and test


@dataclass(frozen=True, kw_only=True)
class BIDMCOptions:
    """Options of BIDMC.

    Args:
        split: "windows": 70 / 15 / 15 % of the windows at random, as in the papers. Windows overlap by up to 29 s and
            every patient is in all parts, so the error is far below that for a new patient. "patients": 70 / 15 / 15 %
            of the patients (39 / 7 / 7), which gives the error for a new one.
        standard: "train": standardize the inputs with the statistics of the training records; "window": each window
            with its own; "none": leave them as they are.
        standard_targets: Standardize the targets.
        crop: Train on a random crop of each window, of at least this many seconds; the other splits use whole windows.
            Neighbouring windows overlap, so features learned on one window transfer to its neighbours.
        augment: Rotate the training windows in time by a random amount: what leaves at one end enters at the other.
        speed: Speed the training windows up or down by up to this fraction; heart and respiratory rates follow.
        release: "physionet" or "tser"; by default the one whose files are here.
        seed: Seed of the split.

    Example:
        >>> options = BIDMCOptions(split="patients", crop=16)
        >>> options.standard, options.crop
        ('train', 16)
    """

    split: str = "windows"
    standard: str = "train"
    standard_targets: bool = True
    crop: int = SECONDS
    augment: bool = False
    speed: float = 0.0
    release: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("split", self.split, ("windows", "patients"))
        check_choice("standard", self.standard, ("train", "window", "none"))
        check_bool("standard_targets", self.standard_targets)
        if check_int("crop", self.crop, minimum=1) > SECONDS:
            raise ValueError(f"crop must be 1 to {SECONDS}, the seconds of a window, got {self.crop}")
        check_bool("augment", self.augment)
        check_number("speed", self.speed, above=0.0, below=1.0, closed=True)
        check_int("seed", self.seed, minimum=0)
        if self.release is not None:
            check_choice("release", self.release, ("physionet", "tser"))


class Recordings(NamedTuple):
    """Signals and their windows, and which samples and windows are used in training.

    Example:
        >>> x, starts, y = np.zeros((20_000, 2), np.float32), np.array([0, 4000, 8000]), np.array([60.0, 70.0, 80.0])
        >>> parts = [np.array([0]), np.array([1]), np.array([2])]
        >>> recordings = Recordings(x, starts, y, parts, trained=np.arange(20_000) < 4000, length=4000)
        >>> recordings.x[recordings.starts[1] :][: recordings.length].shape
        (4000, 2)
    """

    x: Array  # (T, 2) of all records, end to end
    starts: Array  # (N,) of the windows
    y: Array  # (N,) their labels
    parts: list[Array]  # numbers of the windows in each split
    trained: Array  # (T,) whether a sample belongs to a training record
    length: int  # of a window


def prepare(rows: dict[str, Tensor]) -> Batch:
    """Make a batch of gathered windows (B, L, 2) and labels (B,)."""
    return Batch(rows["x"], rows["y"][:, None])


def prepare_each(rows: dict[str, Tensor]) -> Batch:
    """As :func:`prepare`, with each signal of each window standardized separately; a constant one becomes 0."""
    x = rows["x"] - rows["x"].mean(1, keepdim=True)
    return Batch(x / x.square().mean(1, keepdim=True).sqrt().clamp_min(1e-4), rows["y"][:, None])


def _register(target: str, summary: str) -> None:
    source = Source(
        "bidmc_01_Signals.csv",
        origin="the CSV files of https://physionet.org/content/bidmc/1.0.0/ (bidmc_csv)",
        also=(
            "bidmc_csv/bidmc_01_Signals.csv",
            f"BIDMC32{target}_TRAIN.ts",
            f"BIDMC32{target}/BIDMC32{target}_TRAIN.ts",
        ),
    )

    @register_dataset(f"bidmc-{target.lower()}", summary, files=(source,), folder="bidmc", config=BIDMCOptions)
    def load(folder: Path, options: BIDMCOptions) -> Dataset:
        path = source.find(folder) or folder / source.path
        release = options.release or ("tser" if path.suffix == ".ts" else "physionet")
        read = _tser if release == "tser" else _physionet
        return _dataset(target, read(folder, path, target, options), options)


_register("HR", "BIDMC heart rate, beats a minute (S4D Tables 4, 10)")
_register("RR", "BIDMC respiratory rate, breaths a minute (S4D Tables 4, 10)")
_register("SpO2", "BIDMC oxygen saturation, per cent (S4D Tables 4, 10)")


def read_archive(path: Path) -> tuple[Array, Array]:
    """Series (N, L, dimensions) of equal length and their targets (N,), float32, from a ``.ts`` file."""
    series, targets = read_ts(path, equal=True)
    if not np.isfinite(series).all():
        raise ValueError(f"{path} must have no missing values, got some")
    return series.astype(np.float32), targets.astype(np.float32)


def window_labels(numerics: Array, samples: int) -> tuple[Array, Array]:
    """Starts (in samples) and labels of the windows of one record with signals of this many samples.

    ``numerics`` (seconds,) are the monitor's value each second, NaN if missing.

    Example:
        >>> starts, labels = window_labels(np.arange(40.0), samples=40 * 125)
        >>> starts.tolist(), labels.tolist()
        ([0, 375, 750], [15.5, 18.5, 21.5])
    """
    seconds = np.arange(0, min(samples // RATE, len(numerics)) - SECONDS + 1, EVERY)
    values = numerics[seconds[:, None] + np.arange(SECONDS)]  # (windows, 32)
    is_known = np.isfinite(values)
    enough = is_known.sum(1) >= SECONDS // 2
    labels = np.where(is_known, values, 0.0).sum(1)[enough] / is_known.sum(1)[enough]
    return seconds[enough] * RATE, labels.astype(np.float32)


def _physionet(folder: Path, path: Path, target: str, options: BIDMCOptions) -> Recordings:
    files = sorted(path.parent.glob("bidmc_*_Signals.csv"))

    def build() -> dict[str, Array]:
        signals = [_columns(file, SIGNALS).astype(np.float32) for file in files]
        numbers = [_columns(_numerics(file), tuple(TARGETS.values())) for file in files]
        return {
            "x": np.concatenate(signals),
            "samples": np.array([len(x) for x in signals]),
            "numerics": np.concatenate(numbers),
            "seconds": np.array([len(n) for n in numbers]),
        }

    stamps = stamp(*files, *map(_numerics, files))
    arrays = cached(folder, "bidmc", {"version": 1, "files": stamps}, build)
    ends = np.cumsum(arrays["samples"])
    column = arrays["numerics"][:, list(TARGETS).index(target)]
    numerics = np.split(column, np.cumsum(arrays["seconds"])[:-1])
    windows = [window_labels(n, samples) for n, samples in zip(numerics, arrays["samples"])]
    starts = [start + end - samples for (start, _), end, samples in zip(windows, ends, arrays["samples"])]
    y = np.concatenate([labels for _, labels in windows])
    patient = np.repeat(np.arange(len(files)), [len(labels) for _, labels in windows])
    if options.split == "patients":
        parts = [np.flatnonzero(np.isin(patient, part)) for part in split_rows(len(files), SHARES, options.seed)]
    else:
        parts = split_rows(len(y), SHARES, options.seed)
    trained = np.isin(np.repeat(np.arange(len(files)), arrays["samples"]), patient[parts[0]])
    return Recordings(arrays["x"], np.concatenate(starts), y, parts, trained, LENGTH)


def _tser(folder: Path, path: Path, target: str, options: BIDMCOptions) -> Recordings:
    if options.split == "patients":
        raise ValueError("split must be 'windows' for the release 'tser', which does not say whose windows they are")
    files = (path, path.with_name(path.name.replace("_TRAIN", "_TEST")))

    def build() -> dict[str, Array]:
        pairs = [read_archive(file) for file in files]
        return {"x": np.concatenate([x for x, _ in pairs]), "y": np.concatenate([y for _, y in pairs])}

    arrays = cached(path.parent, f"bidmc-tser-{target.lower()}", {"version": 1, "files": stamp(*files)}, build)
    x, y = arrays["x"], arrays["y"]
    parts = split_rows(len(y), SHARES, options.seed)
    length = x.shape[1]
    trained = np.repeat(np.isin(np.arange(len(y)), parts[0]), length)
    return Recordings(x.reshape(-1, x.shape[2]), length * np.arange(len(y)), y, parts, trained, length)


def _dataset(target: str, recordings: Recordings, options: BIDMCOptions) -> Dataset:
    x, y, raw, scale = recordings.x, recordings.y, None, (0.0, 1.0)
    if options.standard == "train":
        mean, std = statistics(x[recordings.trained])
        x, raw = standardize(x, mean, std), Raw(mean=tuple(mean.tolist()), std=tuple(std.tolist()))
    if options.standard_targets:
        mean, std = statistics(y[recordings.parts[0]][:, None])
        y, scale = standardize(y[:, None], mean, std)[:, 0], (float(mean[0]), float(std[0]))
    batch = prepare_each if options.standard == "window" else prepare
    splits = [
        Windows({"x": x}, starts=recordings.starts[part], length=recordings.length, prepare=batch, each={"y": y[part]})
        for part in recordings.parts
    ]
    info = ScaledInfo(
        "regression",
        length=recordings.length,
        d_input=len(SIGNALS),
        vocabulary=None,
        d_output=1,
        sampling_rate=float(RATE),
        target_mean=scale[:1],
        target_std=scale[1:],
        columns=(target,),
    )
    vary = _vary(options, recordings.length, None if target == "SpO2" else scale)
    return Dataset(f"bidmc-{target.lower()}", info, splits[0], splits[1], splits[2], augment=vary, raw=raw)


def _vary(options: BIDMCOptions, length: int, rate: tuple[float, float] | None) -> Callable[..., Batch] | None:
    changes: list[Callable[..., Batch]] = []
    if options.augment or options.speed:
        changes.append(Vary(length // 2 if options.augment else 0, around=True, speed=options.speed, rate=rate))
    if options.crop < SECONDS:
        changes.append(Crop(length * options.crop // SECONDS))
    return Compose(tuple(changes)) if len(changes) > 1 else changes[0] if changes else None


def _numerics(signals: Path) -> Path:
    return signals.with_name(signals.name.replace("_Signals", "_Numerics"))


def _columns(path: Path, names: tuple[str, ...]) -> Array:
    """Columns of a CSV file by name, (rows, names)."""
    with path.open(encoding="utf-8-sig") as file:
        header = [name.strip() for name in file.readline().split(",")]
        if lacking := [name for name in names if name not in header]:
            raise ValueError(f"{path} has no column {lacking[0]!r}; its columns are {', '.join(header)}")
        try:
            return np.loadtxt(file, delimiter=",", usecols=[header.index(name) for name in names], ndmin=2)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
