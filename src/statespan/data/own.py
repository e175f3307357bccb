"""Your own data, for classification or regression: a folder of files, one CSV file or one npz file.

* a folder with a subfolder for each class, each with files of one series (WAV, CSV, npy or npz); or with subfolders
  train, test and perhaps valid that have those;
* a folder with a file ``labels.csv``: columns file, y (or several values) and perhaps split;
* a CSV file with a row for each sample: columns y, perhaps split, and the series in all others;
* an npz file with x (N, L) or (N, L, D), y (N,) or (N, K), perhaps lengths (N,) and split (N,).

A split is "train", "valid" or "test". If none is given, rows are drawn with a seed, the same share of each class.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from statespan._check import check_choice, check_int, check_number
from statespan.data.base import Array, Batch, Dataset, Windows
from statespan.data.formats.npy import load_all
from statespan.data.formats.samples import ENDINGS, numbers, read_csv, read_sample, series
from statespan.data.registry import register_dataset
from statespan.data.scale import ScaledInfo, standardize, statistics
from statespan.data.split import split, stratified

SPLITS = ("train", "valid", "test")


@dataclass
class Samples:
    """Series (L, D) as read, their labels as text or numbers, and the split of each ("" if not given).

    Example:
        >>> samples = Samples(x=[np.zeros((100, 1)), np.zeros((80, 1))], y=["walk", "run"], split=["train", "test"])
        >>> [y for y, split in zip(samples.y, samples.split) if split == "train"]
        ['walk']
    """

    x: list[Array]
    y: list[Any]
    split: list[str]
    rate: float | None = None


@dataclass(frozen=True)
class Series:
    """Turns windows {"x": (B, L, D), "lengths": (B,), "y": …} into a standardized batch, zero-padded.

    Example:
        >>> series = Series(mean=(1.0,), std=(2.0,), ragged=False, are_classes=True)
        >>> rows = {"x": torch.tensor([[[1.0], [3.0]]]), "lengths": torch.tensor([2]), "y": torch.tensor([0])}
        >>> series(rows).x
        tensor([[[0.],
                 [1.]]])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    ragged: bool
    are_classes: bool

    def __call__(self, rows: dict[str, Tensor]) -> Batch:
        """Prepare gathered rows."""
        x, lengths = rows["x"], rows["lengths"].long()
        mean, std = (x.new_tensor(numbers, dtype=torch.float32) for numbers in (self.mean, self.std))
        x = (x - mean) / std  # by the same numbers for x of float64, whose results are stored with the model
        y = rows["y"].long() if self.are_classes else rows["y"]
        if not self.ragged:
            return Batch(x, y)
        inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        return Batch(torch.where(inside[..., None], x, 0.0), y, lengths)


@dataclass(frozen=True, kw_only=True)
class OwnOptions:
    """Options of your own data.

    Example:
        >>> options = OwnOptions(path="recordings", task="regression", standardize=False)
        >>> options.task, options.test
        ('regression', 0.2)
    """

    path: str  # the folder or file
    task: str = "classification"  # or "regression" of one or more values
    target: str = "y"  # column of the answer in a CSV file; several for regression, separated by commas
    # share of the rows for validation if no split is given, and of the training rows if one without validation rows is
    valid: float = 0.1
    test: float = 0.2  # share of the rows for the test, if no split is given
    seed: int = 0  # of the split
    # subtract the mean and divide by the standard deviation of each feature of the training rows, and of the values of
    # a regression; its errors are still reported in the original units
    standardize: bool = True
    length: int | None = None  # longer series are cut to this length
    subsample: int = 1  # only every n-th sample of a series is used
    sampling_rate: float | None = None  # samples per second, before subsample; WAV files contain it

    def __post_init__(self) -> None:
        check_choice("task", self.task, ("classification", "regression"))
        check_int("subsample", self.subsample, minimum=1)
        if self.length is not None:
            check_int("length", self.length, minimum=1)
        if self.sampling_rate is not None:
            check_number("sampling_rate", self.sampling_rate, above=0.0)


@register_dataset(
    "own", "Your own series: a folder of files, a CSV file or an npz file, given as path", config=OwnOptions
)
def own(folder: Path, options: OwnOptions) -> Dataset:
    """Your own data."""
    where, target = Path(options.path).expanduser(), options.target
    samples = _read(where, options.task, target.split(","))
    if len(samples.x) < 3:
        raise ValueError(f"{where} must have at least 3 samples, one for each split, got {len(samples.x)}")
    features = sorted({x.shape[1] for x in samples.x})
    if len(features) != 1:
        raise ValueError(f"{where} must have the same number of features everywhere, got {features}")
    xs = [x[:: options.subsample][: options.length] for x in samples.x]
    classes, y = _answers(where, samples.y, options.task)
    parts = _splits(where, samples.split, y if classes else None, options)
    mean, std = np.zeros(features[0]), np.ones(features[0])
    scale: dict[str, Any] = {"columns": () if classes else _value_names(target, y.shape[1])}
    if options.standardize:
        mean, std = statistics(np.concatenate([xs[i] for i in parts[0]]))
        if not classes:
            y_mean, y_std = statistics(y[parts[0]])
            y = standardize(y, y_mean, y_std)
            scale |= {"target_mean": tuple(y_mean.tolist()), "target_std": tuple(y_std.tolist())}
    y = y if classes else series(f"{where}: y", y)
    lengths = np.array([len(x) for x in xs], np.int32)
    prepare = Series(tuple(mean.tolist()), tuple(std.tolist()), bool(np.ptp(lengths)), bool(classes))
    longest = int(lengths.max())
    splits = []
    for rows in parts:
        long, each = {"x": np.concatenate([xs[i] for i in rows])}, {"lengths": lengths[rows], "y": y[rows]}
        starts = np.cumsum(lengths[rows], dtype=np.int64) - lengths[rows]
        splits.append(Windows(long, starts=starts, length=longest, prepare=prepare, each=each))
    rate = _sampling_rate(where, samples.rate, options)
    d_output = len(classes) if classes else y.shape[1]
    info = ScaledInfo(options.task, longest, features[0], None, d_output, classes, sampling_rate=rate, **scale)
    return Dataset("own", info, splits[0], splits[1], splits[2])


def _sampling_rate(where: Path, stored: float | None, options: OwnOptions) -> float | None:
    """The sampling rate of the model's input, from the files or the options."""
    given = options.sampling_rate
    if stored and given and stored != given:
        raise ValueError(f"sampling_rate must be that of the files in {where}, {stored:g}, got {given:g}")
    rate = stored or given
    return rate / options.subsample if rate else None


def _value_names(target: str, count: int) -> tuple[str, ...]:
    """Names of the values to predict, if they come from columns."""
    names = tuple(target.split(","))
    return names if len(names) == count and names != ("y",) else ()


def _answers(where: Path, y: list[Any], task: str) -> tuple[tuple[str, ...], Array]:
    """Names of the classes and their numbers (N,), or no names and the values (N, K)."""
    if task == "regression":
        try:
            values = np.array(y, dtype=np.float64).reshape(len(y), -1)
        except ValueError:
            raise ValueError(f"{where} must have numbers to predict for task='regression', got {y[0]!r}") from None
        if not np.isfinite(values).all():
            raise ValueError(f"{where} must have finite values to predict, got NaN or infinity")
        return (), values
    words = [str(label) for label in y]
    order = sorted(set(words), key=lambda word: (0, int(word), word) if word.isdecimal() else (1, 0, word))
    if len(order) < 2:
        raise ValueError(f"{where} must have at least two classes, got {order}")
    index = {word: i for i, word in enumerate(order)}
    return tuple(order), np.array([index[word] for word in words], np.int32)


def _splits(where: Path, given: list[str], labels: Array | None, options: OwnOptions) -> list[Array]:
    shares: tuple[float, ...] = (options.valid, options.test)
    rows, ready = np.arange(len(given)), {}
    if any(given):
        if wrong := sorted(set(given) - set(SPLITS)):
            raise ValueError(f"{where}: a split must be one of {SPLITS}, got {wrong[0]!r}")
        ready = {name: np.flatnonzero(np.array(given) == name) for name in SPLITS}
        rows, shares = ready["train"], () if len(ready["valid"]) else (options.valid,)
    seed = options.seed
    parts = split(len(rows), shares, seed) if labels is None else stratified(labels[rows], shares, seed)
    drawn = [rows[part] for part in parts]
    if ready:
        drawn = [drawn[0], drawn[1] if len(drawn) > 1 else ready["valid"], ready["test"]]
    for name, part in zip(SPLITS, drawn):
        if not len(part):
            raise ValueError(f"{where}: no rows are left for {name}; there are {len(given)} in all")
    return drawn


def _read(where: Path, task: str, target: list[str]) -> Samples:
    if where.is_dir():
        return _labelled(where, target) if (where / "labels.csv").is_file() else _classes(where, task)
    if where.suffix.lower() == ".csv" and where.is_file():
        return _table(where, target)
    if where.suffix.lower() == ".npz" and where.is_file():
        return _arrays(where)
    hint = "" if where.is_absolute() else f", which is not in {Path.cwd()}"
    raise FileNotFoundError(f"path must be an existing folder, .csv file or .npz file, got {where}{hint}")


def _classes(where: Path, task: str) -> Samples:
    if task != "classification":
        raise ValueError(f"{where} must have a file labels.csv with the values to predict for task='regression'")
    samples = Samples([], [], [])
    tops = {name: where / name for name in SPLITS if (where / name).is_dir()}
    for name, top in tops.items() if "train" in tops else [("", where)]:
        for kind in sorted(path for path in top.iterdir() if path.is_dir() and not path.name.startswith(".")):
            for file in sorted(path for path in kind.iterdir() if path.suffix.lower() in ENDINGS):
                _add(samples, file, kind.name, name)
    if not samples.x:
        raise ValueError(f"{where} must have a subfolder for each class with files {ENDINGS}, or labels.csv; got none")
    return samples


def _labelled(where: Path, target: list[str]) -> Samples:
    rows, _ = _rows(where / "labels.csv", ["file", *target])
    samples = Samples([], [], [])
    for row in rows:
        file = where / row["file"]
        if not file.is_file():
            raise ValueError(f"{where / 'labels.csv'} names {row['file']!r}, which does not exist")
        _add(samples, file, *_answer(row, target))
    return samples


def _add(samples: Samples, file: Path, answer: Any, part: str) -> None:
    x, rate = read_sample(file)
    if samples.x and rate != samples.rate:
        raise ValueError(f"{file} has {rate} samples per second, but the files before it have {samples.rate}")
    samples.rate = rate
    samples.x.append(x)
    samples.y.append(answer)
    samples.split.append(part)


def _table(where: Path, target: list[str]) -> Samples:
    rows, lines = _rows(where, target)
    values = [[field for name, field in row.items() if name not in (*target, "split")] for row in rows]
    if not all(values):
        raise ValueError(f"{where} must have columns of a series beside {target}, got none")
    x = [series(str(where), row) for row in numbers(where, values, lines)]
    answers = [_answer(row, target) for row in rows]
    return Samples(x, [answer for answer, _ in answers], [part for _, part in answers])


def _answer(row: dict[str, str], target: list[str]) -> tuple[Any, str]:
    """The answer of a row, a list if it has several columns, and its split."""
    values = [row[name] for name in target]
    return values if len(values) > 1 else values[0], row.get("split", "")


def _rows(path: Path, needed: list[str]) -> tuple[list[dict[str, str]], list[int]]:
    """The fields of a CSV file's rows by column, and the rows' line numbers."""
    header, rows, lines = read_csv(path)
    columns = [name.strip() for name in header]
    for name in needed:
        if name not in columns:
            raise ValueError(f"{path} must have a column {name!r}, got {columns or 'no header'}")
    return [dict(zip(columns, row)) for row in rows], lines


def _arrays(where: Path) -> Samples:
    arrays = load_all(where)
    for name in ("x", "y"):
        if name not in arrays:
            raise ValueError(f"{where} must have an array {name}, got {sorted(arrays)}")
    x, y = arrays["x"], arrays["y"]
    if x.ndim not in (2, 3) or y.ndim not in (1, 2) or len(x) != len(y):
        raise ValueError(f"{where} must have x (N, L) or (N, L, D) and y (N,) or (N, K), got {x.shape} and {y.shape}")
    lengths = arrays.get("lengths", np.full(len(x), x.shape[1]))
    if lengths.shape != (len(x),) or lengths.dtype.kind not in "iu" or lengths.min() < 1 or lengths.max() > x.shape[1]:
        raise ValueError(f"{where} must have lengths ({len(x)},), whole numbers 1 … {x.shape[1]}")
    parts = [str(part) for part in arrays.get("split", np.full(len(x), ""))]
    return Samples([series(f"{where}: x", values[:n]) for values, n in zip(x, lengths)], y.tolist(), parts)
