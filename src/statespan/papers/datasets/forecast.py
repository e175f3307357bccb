"""Forecasting: ETTh1, ETTh2, ETTm1, Weather and ECL with Informer's borders, and your own time series.

A row of these datasets is a window: ``context`` known steps, then ``horizon`` steps to forecast. The model reads both
lengths at once, zeros where the values are not known: x (B, context + horizon, D), marks (B, context + horizon, M) of
the calendar, which is known for both, and y (B, horizon, K). All values are standardized with the mean and the
standard deviation of the training rows; errors are in those units, as in the papers; ``info.target_mean`` and
``info.target_std`` convert them back. All windows of a split count: none is dropped at the end of the test set.

Shapes: T rows of a table, B batch, D columns read, K columns forecast, M calendar features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from statespan._check import check_choice, check_int, check_number
from statespan.data.base import Batch, Dataset, Windows
from statespan.data.cache import cached, stamp
from statespan.data.calendar import UNITS, check_regular, mark_names, marks
from statespan.data.formats.csv import SeriesTable, read_table
from statespan.data.registry import register_dataset
from statespan.data.scale import ScaledInfo, standardize, statistics
from statespan.data.source import Source

MONTH = 30 * 24  # Informer's months have 30 days, here in hours
ETT = "https://raw.githubusercontent.com/zhouhaoyi/ETDataset/main/ETT-small"
Borders = Callable[[int], tuple[int, int, int]]  # rows -> ends of train, validation and test


@dataclass(frozen=True)
class Masked:
    """Makes a batch of gathered windows: the horizon is masked in x and is the target y.

    Example:
        >>> rows = {"values": torch.arange(5.0).view(1, 5, 1), "marks": torch.zeros(1, 5, 2)}
        >>> batch = Masked(context=3, targets=(0,))(rows)
        >>> batch.x.flatten(), batch.y.flatten()
        (tensor([0., 1., 2., 0., 0.]), tensor([3., 4.]))
    """

    context: int
    targets: tuple[int, ...]

    def __call__(self, rows: dict[str, Tensor]) -> Batch:
        """Prepare windows of values (B, L, D) and marks (B, L, M)."""
        values = rows["values"]
        known = values[:, : self.context]
        x = torch.cat([known, torch.zeros_like(values[:, self.context :])], 1)  # (B, L, D)
        first, last = self.targets[0], self.targets[-1] + 1  # a slice: an index would be copied to the device each time
        return Batch(x, values[:, self.context :, first:last], None, rows["marks"])


def month_borders(hours: int) -> Borders:
    """Informer's borders for ETT, with this number of rows an hour: 12, 4 and 4 months of 30 days; the rest is unused.

    Example:
        >>> month_borders(1)(17420)
        (8640, 11520, 14400)
    """
    ends = (12 * MONTH * hours, 16 * MONTH * hours, 20 * MONTH * hours)

    def borders(rows: int) -> tuple[int, int, int]:
        if rows < ends[-1]:
            raise ValueError(f"there are {rows} rows, the borders need {ends[-1]}")
        return ends

    return borders


def share_borders(valid: float = 0.1, test: float = 0.2) -> Borders:
    """Borders by shares of the rows, each rounded as Informer does: 70, 10 and 20 % by default.

    Example:
        >>> share_borders()(35064)
        (24544, 28052, 35064)
    """
    check_number("valid", valid, above=0.0, below=1.0)
    check_number("test", test, above=0.0, below=1.0 - valid)
    return lambda rows: (int(rows * round(1 - valid - test, 9)), rows - int(rows * test), rows)


@dataclass(frozen=True, kw_only=True)
class ForecastOptions:
    """Options of a time series to forecast.

    Args:
        features: "S": read and forecast the target alone. "M": read and forecast all columns. "MS": read all columns,
            forecast the target.
        target: Column to forecast. By default that of the dataset, or the last one of a file of your own.
        context: Known steps.
        horizon: Steps to forecast.

    Example:
        >>> ForecastOptions(features="M", horizon=24).context
        384
    """

    features: str = "S"
    target: str | None = None
    context: int = 384
    horizon: int = 96

    def __post_init__(self) -> None:
        check_choice("features", self.features, ("S", "M", "MS"))
        check_int("context", self.context, minimum=1)
        check_int("horizon", self.horizon, minimum=1)


@dataclass(frozen=True, kw_only=True)
class CSVOptions(ForecastOptions):
    """Options of a CSV file: those of :class:`ForecastOptions`, and these.

    Args:
        file: The file, in the current folder or in the dataset's.
        time: Name of the column of times; the first one by default.
        valid: Share of the rows for validation.
        test: Share of the rows for the test.
        time_format: As for ``datetime.strptime``; ISO 8601 or month/day/year by default.

    Example:
        >>> options = CSVOptions(file="load.csv", target="MW")
        >>> options.context, options.horizon
        (96, 24)
    """

    file: str
    context: int = 96
    horizon: int = 24
    time: str | None = None
    valid: float = 0.1
    test: float = 0.2
    time_format: str | None = None


def series(name: str, table: SeriesTable, borders: Borders, options: ForecastOptions) -> Dataset:
    """The windows of a table as a dataset; the target is the last column if the options give none.

    The borders are the ends of the three parts. The windows of validation and test begin ``context`` rows before their
    part, so that its every step is forecast.
    """
    target = check_choice("target", options.target or table.columns[-1], table.columns)
    context, horizon, features = options.context, options.horizon, options.features
    step, unit = check_regular(table.times)
    inputs = (target,) if features == "S" else table.columns
    outputs = inputs if features == "M" else (target,)
    ends = borders(len(table.times))
    values = table.values[:, [table.columns.index(column) for column in inputs]]
    mean, std = statistics(values[: ends[0]])
    # all windows of all splits are views of these two arrays
    arrays = {"values": standardize(values, mean, std), "marks": marks(table.times, mark_names(step, unit))}
    targets = tuple(inputs.index(column) for column in outputs)
    prepare = Masked(context, targets)
    splits = []
    for part, begin, end in zip(("train", "validation", "test"), (0, ends[0] - context, ends[1] - context), ends):
        count = end - begin - context - horizon + 1
        if count < 1:
            raise ValueError(f"context {context} and horizon {horizon} leave no window in the {part} part of {name!r}")
        rows = {key: array[begin:end] for key, array in arrays.items()}
        splits.append(Windows(rows, starts=np.arange(count), length=context + horizon, prepare=prepare))
    info = ScaledInfo(
        "forecast",
        length=context + horizon,
        d_input=len(inputs),
        vocabulary=None,
        d_output=len(outputs),
        horizon=horizon,
        d_marks=arrays["marks"].shape[1],
        sampling_rate=UNITS[unit] / step if unit in UNITS else None,
        target_mean=tuple(mean[list(targets)].tolist()),
        target_std=tuple(std[list(targets)].tolist()),
        columns=outputs,
    )
    return Dataset(name, info, splits[0], splits[1], splits[2])


def _public(name: str, summary: str, source: Source, *, folder: str, target: str, borders: Borders) -> None:
    """Register one of the public tables."""

    @register_dataset(name, summary, files=(source,), folder=folder, config=ForecastOptions)
    def load(folder: Path, options: ForecastOptions) -> Dataset:
        path = source.find(folder) or folder / source.path

        def build() -> dict[str, np.ndarray]:
            table = read_table(path, "date")
            names = np.frombuffer("\n".join(table.columns).encode(), np.uint8)
            return {"times": table.times.astype(np.int64), "values": table.values, "columns": names}

        arrays = cached(folder, name, {"version": 1, "files": stamp(path)}, build)
        columns = tuple(arrays["columns"].tobytes().decode().split("\n"))
        table = SeriesTable(arrays["times"].astype("datetime64[s]"), arrays["values"], columns)
        return series(name, table, borders, replace(options, target=options.target or target))


def _ett(variant: str, sha256: str, size: int, rows_an_hour: int) -> None:
    source = Source(f"{variant}.csv", url=f"{ETT}/{variant}.csv", sha256=sha256, size=size)
    summary = f"{variant}, electricity transformer (S4 Table 9)"
    _public(variant.lower(), summary, source, folder="ett", target="OT", borders=month_borders(rows_an_hour))


def _informer(name: str, summary: str, file: str, target: str) -> None:
    source = Source(file, origin="the data of Informer, https://github.com/zhouhaoyi/Informer2020")
    _public(name, summary, source, folder=name, target=target, borders=share_borders())


_ett("ETTh1", "f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066", 2589657, 1)
_ett("ETTh2", "a3dc2c597b9218c7ce1cd55eb77b283fd459a1d09d753063f944967dd6b9218b", 2417960, 1)
_ett("ETTm1", "6ce1759b1a18e3328421d5d75fadcb316c449fcd7cec32820c8dafda71986c9e", 10360719, 4)
_informer("weather", "Weather (Informer's WTH), hourly (S4 Table 9)", "WTH.csv", "WetBulbCelsius")
_informer("ecl", "ECL, hourly electricity of 321 clients (S4 Table 9)", "ECL.csv", "MT_320")


@register_dataset("csv-forecast", "A time series of your own in a CSV file", config=CSVOptions)
def csv_forecast(folder: Path, options: CSVOptions) -> Dataset:
    """A time series of your own: a CSV file with a header, a column of times and columns of numbers.

    The times must be regular. The step is inferred from them; rows that repeat a time, go back or leave a gap are
    rejected with their line number (fill or resample first). The first rows train, the last ones test.
    """
    given = Path(options.file).expanduser()
    path = given if given.exists() else folder / given
    table = read_table(path, options.time, options.time_format)
    borders = share_borders(options.valid, options.test)
    try:
        return series("csv-forecast", table, borders, options)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
