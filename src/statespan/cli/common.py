"""What the commands share: one-line errors, common options and checks, and the console."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from statespan._extras import COMMANDS, EVERYDAY, PACKAGES, MissingPackageError, require
from statespan._fail import complain, fail
from statespan._suggest import suggest
from statespan._text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from statespan.data import Dataset
    from statespan.data.download import Progress
    from statespan.train import Recipe

RUNS = Path("runs")
WIDE = 120  # columns
DataFolder = Annotated[
    Path | None,
    typer.Option("--data", help="Folder of datasets. [default: $STATESPAN_DATA or ~/.cache/statespan/data]"),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1. [default: cuda if available]")]
DtScale = Annotated[
    float | None, typer.Option(help="Step relative to training: 2.0 for data sampled half as often. [default: 1]")
]
SamplingRate = Annotated[
    float | None, typer.Option(metavar="HZ", help="Sampling rate of the data, instead of --dt-scale.")
]


def need(command: str, *modules: str) -> None:
    """Exit with one line, which names all that the command can need, if a module is missing."""
    try:
        require("this command needs", COMMANDS.get(command, EVERYDAY), *modules)
    except MissingPackageError as error:
        fail(str(error))


def need_training(command: str = "train") -> None:
    """Exit with one line if a package that training needs is missing."""
    need(command, "lightning", "safetensors", "yaml")


def terminal() -> Console:
    """The console for results; it escapes control characters.

    In a file or a pipe it is as wide as COLUMNS says, or else wide enough for all tables. Of the processes that
    torchrun started only the first one prints.
    """
    from rich.console import Console

    class Safe(Console):
        def render_str(self, text: str, **options: Any) -> Any:
            """Render the text of a line or of a table cell."""
            return super().render_str(printable(text, keep="\n"), **options)

    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns) else None if sys.stdout.isatty() else WIDE
    is_lead = os.environ.get("RANK", "0") == "0"
    return Safe(width=width, highlight=False, quiet=not is_lead)


def say(line: str) -> None:
    """Print a line of results as it is: without markup, and without wrapping."""
    terminal().print(line, markup=False, soft_wrap=True)


def give_up(message: str) -> NoReturn:
    """Report a runtime failure in one line and exit with code 1."""
    complain(message)
    sys.exit(1)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Report a user's mistake (exit code 2) or a runtime failure (1) in one line, without a traceback."""
    import torch

    from statespan.data import MissingData
    from statespan.models import LoadError
    from statespan.train import CheckpointError, ConfigError, NonFiniteError

    try:
        yield
    except ConfigError as error:
        fail(str(error))
    except MissingData as error:
        fail(error.advice)
    except MissingPackageError as error:
        fail(str(error))
    except ModuleNotFoundError as error:
        module = (error.name or "statespan").partition(".")[0]
        if module == "statespan":
            raise
        fail(f"this needs {module}, which is not installed: pip install {PACKAGES.get(module, module)}")
    except (CheckpointError, LoadError, NonFiniteError) as error:
        give_up(str(error))
    except (torch.OutOfMemoryError, MemoryError):
        give_up("out of memory; make train.batch smaller, or cut each batch into pieces with train.accumulate=2")
    except OSError as error:
        if error.filename is None and not isinstance(error, FileNotFoundError):
            raise
        fail(str(error) if error.filename is None else f"{error.filename}: {error.strerror or error}")


@contextlib.contextmanager
def rejected() -> Iterator[None]:
    """Report a value that the library rejects in one line, with exit code 2."""
    from statespan.models import LoadError
    from statespan.train import ConfigError

    try:
        yield
    except (LoadError, ConfigError):  # not the value's fault, or with a message of their own
        raise
    except (TypeError, ValueError) as error:
        fail(str(error))


def check_choice(option: str, value: str, allowed: Iterable[str]) -> str:
    """Reject a value that is not one of the allowed words."""
    words = list(allowed)
    if value not in words:
        fail(f"{option} must be {', '.join(words[:-1])} or {words[-1]}, got {value!r}{suggest(value, words)}")
    return value


def check_output(option: str, path: Path, *endings: str) -> None:
    """Reject an output file with another ending or in a folder that does not exist."""
    if endings and path.suffix.lower() not in endings:
        fail(f"{option} must end in {' or '.join(endings)}, got {path}")
    if not path.absolute().parent.is_dir() or path.is_dir():
        fail(f"{option} must be a file in an existing folder, got {path}")


def check_writable(folder: Path, option: str = "--folder") -> None:
    """Reject a folder that cannot be written to, before anything is loaded."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        fail(f"{option} must be a folder that can be written to, got {folder}")


def relative_step(trained: float | None, dt_scale: float | None, sampling_rate: float | None) -> float:
    """The step relative to training that --dt-scale or --sampling-rate asks for."""
    from statespan.models.config import relative_step

    try:
        return relative_step(trained, dt_scale=dt_scale, sampling_rate=sampling_rate)
    except ValueError as error:
        fail(str(error).replace("dt_scale", "--dt-scale").replace("sampling_rate", "--sampling-rate"))


def named_recipe(text: str, changes: list[str]) -> Recipe:
    """The recipe of this name or in this file."""
    if text.endswith((".yaml", ".yml")):
        from statespan.train import read_recipe

        return read_recipe(Path(text), changes)
    from statespan.train import recipes

    if recipes.find(text) is None:
        if Path(text).is_file():
            fail(f"RECIPE must be a name or a file that ends in .yaml, got the file {text}")
        fail(f"there is no recipe {text!r}{suggest(text, recipes.names(), 'see statespan recipes')}")
    return recipes.read(text, changes)


def load_data(recipe: Recipe, folder: Path | None) -> Dataset:
    """The dataset of a recipe, with a progress bar while it is downloaded or generated."""
    from statespan.train import run

    with downloading() as progress:
        return run.load_data(recipe, folder, progress=progress)


def table(*columns: str, right: Iterable[str] = (), wrapped: Iterable[str] = ()) -> Table:
    """An empty table; columns are left-aligned and not wrapped, except those named."""
    from rich import box
    from rich.table import Table

    empty = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False)
    for column in columns:
        empty.add_column(column, justify="right" if column in right else "left", no_wrap=column not in wrapped)
    return empty


def fits(table: Table) -> bool:
    """Whether a table fits the terminal without wrapping or cutting a cell."""
    from rich.measure import Measurement

    console = terminal()
    endless = console.options.update(max_width=10_000)
    return Measurement.get(console, endless, table).maximum <= console.width


@contextlib.contextmanager
def downloading() -> Iterator[Progress]:
    """Return a callback that shows the progress of a download; its first call makes the bar appear."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=terminal(), transient=True)
    tasks: dict[str, Any] = {}

    def show(name: str, done: int, total: int | None) -> None:
        bar.start()
        if name not in tasks:
            tasks[name] = bar.add_task(name, total=total)
        bar.update(tasks[name], completed=done, total=total)

    try:
        yield show
    finally:
        if tasks:
            bar.stop()


def metric_rows(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """Metrics as text: an accuracy in per cent, everything else with four digits."""
    return [
        (name.replace("_", " "), f"{100 * value:.2f} %" if name == "accuracy" else f"{value:.4g}")
        for name, value in metrics.items()
    ]


def duration(seconds: float) -> str:
    """A duration as readable text.

    Example:
        >>> duration(41.2), duration(3725)
        ('41 s', '1 h 02 min')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
