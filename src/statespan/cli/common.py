"""What the commands share: mistakes in one line, where runs are, and how things are shown."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from statespan._fail import complain, fail
from statespan._text import printable

if TYPE_CHECKING:
    from rich.console import Console

    from statespan.data import Dataset
    from statespan.data.download import Progress
    from statespan.train import Recipe

RUNS = Path("runs")
DataFolder = Annotated[
    Path | None,
    typer.Option("--data", help="Where datasets are. [default: $STATESPAN_DATA or ~/.cache/statespan/data]"),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1. [default: cuda where there is one]")]
TRAINING = ("lightning", "safetensors", "yaml")
INSTALL = {
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}  # packages that are not called as their modules


def need_training() -> None:
    """End with one line if a package that training needs is not installed."""
    if missing := [INSTALL.get(module, module) for module in TRAINING if find_spec(module) is None]:
        fail(f'this command needs {" and ".join(missing)}: pip install "statespan[train]"')


def lead() -> bool:
    """Whether this process is the one that talks, of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def terminal() -> Console:
    """Where results are shown, without control characters of names; a file or pipe has room for a whole table."""
    from rich.console import Console

    class Safe(Console):
        def render_str(self, text: str, **options: Any) -> Any:
            """Text of a line or of a cell of a table."""
            return super().render_str(printable(text, keep="\n"), **options)

    return Safe(width=None if sys.stdout.isatty() else 120, highlight=False, quiet=not lead())


def give_up(message: str) -> NoReturn:
    """Say in one line what went wrong, and leave with exit code 1: nobody's mistake, but there is no result."""
    complain(message)
    sys.exit(1)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """One line and exit code 2 for what the user can mend, 1 for a run that failed; never a traceback for those."""
    import torch

    from statespan.data import MissingData
    from statespan.models import LoadError
    from statespan.train import CheckpointError, ConfigError, NonFiniteError

    try:
        yield
    except ConfigError as error:
        fail(str(error))
    except MissingData as error:
        fail(_missing(error))
    except ModuleNotFoundError as error:
        module = (error.name or "statespan").partition(".")[0]
        if module == "statespan":
            raise
        fail(f"this needs {module}, which is not installed: pip install {INSTALL.get(module, module)}")
    except (CheckpointError, LoadError, NonFiniteError) as error:
        give_up(str(error))
    except (torch.OutOfMemoryError, MemoryError):
        give_up("out of memory; make train.batch smaller, or cut each batch into pieces with train.accumulate=2")
    except OSError as error:
        if error.filename is None and not isinstance(error, FileNotFoundError):
            raise
        fail(str(error) if error.filename is None else f"{error.filename}: {error.strerror or error}")


def _missing(error: BaseException) -> str:
    lines = str(error).splitlines()
    name = lines[0].partition("'")[2].partition("'")[0]
    why = f" {lines[-1]}" if lines[-1].startswith("(") else ""
    folder = lines[0].partition("Put into ")[2].rstrip(":")
    return f"the files of dataset {name!r} are not in {folder}{why}; what to put there: statespan data {name}"


def guess(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """'; did you mean …?' where a known word is close, and where to look otherwise.

    Example:
        >>> guess("trian", ["train", "test"], "see --help")
        '; did you mean train? Otherwise see --help'
        >>> guess("x", ["train", "test"], "see --help")
        '; see --help'
    """
    near = difflib.get_close_matches(word, list(known), n=1)
    if near:
        return f"; did you mean {near[0]}?" + (f" Otherwise {otherwise}" if otherwise else "")
    return f"; {otherwise}" if otherwise else ""


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run."""
    return (folder / "recipe.yaml").is_file()


def locate(where: Path) -> Path:
    """The folder a user means: the one named, or that of the published model of this name."""
    from statespan.models import find

    try:
        return find.resolve(where)
    except find.UnknownModelError:
        return where


def published_hint(where: Path) -> str:
    """For what could be a name and is none: the nearest published models, or all of them."""
    from statespan.models.find import names

    known = names()
    if where.exists() or len(where.parts) != 1 or not known:
        return ""
    near = difflib.get_close_matches(str(where), known, n=3)
    some = near or known[:6]
    return f"; published models {'of a similar name ' if near else ''}are {', '.join(some)}"


def find_run(folder: Path, argument: str = "RUN") -> Path:
    """The folder of a run or of a published model, which must be there; ``argument`` is where it was given."""
    given, folder = folder, locate(folder)
    if is_run(folder):
        return folder
    what = "a file" if folder.is_file() else "a folder without a run" if folder.is_dir() else "not there"
    near = [path for path in folder.parent.glob("*") if is_run(path)] if folder.parent.is_dir() else []
    near = near or [path for path in RUNS.glob("*") if is_run(path)]
    if near:
        runs = ", ".join(sorted(map(str, near))[:6])
        fail(f"{argument} must be the folder of a run, and {folder} is {what}; runs are {runs}{published_hint(given)}")
    hint = published_hint(given) or "; make one with: statespan train digits-s4d"
    fail(f"{argument} must be the folder of a run, and {folder} is {what}{hint}")


def load_data(recipe: Recipe, folder: Path | None, console: Console) -> Dataset:
    """The dataset of a recipe, with a progress bar if it has to be downloaded or drawn."""
    import statespan.data
    from statespan.train import ConfigError

    options = dict(recipe.data)
    with downloading(console) as progress:
        try:
            return statespan.data.load(options.pop("name"), folder=folder, progress=progress, **options)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"data: {error}") from error


@contextlib.contextmanager
def downloading(console: Console) -> Iterator[Progress]:
    """A function that shows how a download or a drawing goes; nothing is seen where there is none."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=console, transient=True)
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
    """A time for people.

    Example:
        >>> duration(41.2), duration(3725)
        ('41 s', '1 h 02 min')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
