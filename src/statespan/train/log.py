"""What a run writes while it trains: a reproducible CSV file, TensorBoard, and a progress bar."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from statespan._io import Appended

TIMES = "times.csv"
QUIET = 15.0  # seconds between lines where output is not a terminal
_TIME = re.compile(r"(\d+),(\d+\.\d+)\n")


class Log:
    """Rows of numbers in ``log.csv``, and in TensorBoard if requested and installed.

    A resumed run appends to the first ``size`` bytes of its older log. Times are not in it, so the log of a run that
    was interrupted is that of one that was not. They are in ``times.csv``: the seconds the run had taken at each
    validation.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     log = Log(Path(folder), ["loss", "accuracy"], size=0, step=0, tensorboard=False)
        ...     log.write(10, {"loss": 0.5})
        ...     log.close()
        ...     Path(folder, "log.csv").read_text().splitlines()
        ['step,loss,accuracy', '10,0.5,']
    """

    def __init__(self, folder: Path, columns: Sequence[str], *, size: int, step: int, tensorboard: bool) -> None:
        self.columns = columns
        self.file = Appended(folder / "log.csv", size)
        self.times = Appended(folder / TIMES, _times_until(folder / TIMES, step))
        self.board: Any = None
        if self.file.size == 0:
            self.file.append((",".join(["step", *columns]) + "\n").encode())
        if tensorboard and find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, step: int, values: dict[str, float]) -> None:
        """Add a row; columns without a value stay empty."""
        row = [str(step), *(repr(values[name]) if name in values else "" for name in self.columns)]
        self.file.append((",".join(row) + "\n").encode())
        if self.board is not None:
            for name, value in values.items():
                self.board.add_scalar(name, value, step)

    def time(self, step: int, seconds: float) -> None:
        """Record the run's elapsed time at this step."""
        self.times.append(f"{step},{seconds:.2f}\n".encode())

    def sync(self) -> int:
        """Wait for the disk; returns the size of the CSV."""
        return self.file.sync()

    def close(self) -> None:
        """Close the files."""
        self.file.close()
        self.times.close()
        if self.board is not None:
            self.board.close()


def read_times(folder: Path) -> dict[int, float]:
    """Seconds that a run had taken at its validations, by step; incomplete lines are ignored."""
    return {int(match[1]): float(match[2]) for line in _lines(folder / TIMES) if (match := _TIME.fullmatch(line))}


def _times_until(path: Path, step: int) -> int:
    """Bytes of the complete lines up to this step, which a run keeps that resumes there."""
    size = 0
    for line in _lines(path):
        match = _TIME.fullmatch(line)
        if not match or int(match[1]) > step:
            break
        size += len(line)
    return size


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True) if path.is_file() else []


@contextlib.contextmanager
def progress_bar(total: int, done: int, wanted: bool) -> Iterator[Callable[..., None]]:
    """Show a progress bar within the context: epoch, loss, metric, speed and time left.

    The bar is a function that advances it by a number of steps and changes the named texts beside it.
    """
    if not wanted or not find_spec("rich"):
        yield lambda steps=0, **facts: None
        return
    from rich import progress as rich_progress
    from rich.console import Console
    from rich.text import Text

    class Speed(rich_progress.ProgressColumn):
        def render(self, task: rich_progress.Task) -> Text:
            """Render the speed in steps per second."""
            return Text(f"{task.speed:.3g}/s" if task.speed else "")

    progress = rich_progress.Progress(
        rich_progress.BarColumn(bar_width=12),
        rich_progress.TaskProgressColumn(),
        rich_progress.TextColumn("{task.fields[facts]}"),
        Speed(),
        rich_progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        refresh_per_second=4,
        speed_estimate_period=60,
    )
    task = progress.add_task("", total=total, completed=done, facts="")
    shown = {"epoch": "", "loss": ""}  # in this order

    said = begun = time.monotonic()
    count = done

    def bar(steps: int = 0, **facts: str) -> None:
        nonlocal said, count
        shown.update(facts)
        count += steps
        now = time.monotonic()
        if not progress.console.is_terminal and now - said > QUIET and count > done:  # nothing moves there: a line
            said, left = now, (now - begun) * (total - count) / (count - done)
            words = "  ".join(f"{key} {text}" for key, text in shown.items() if text)
            progress.console.print(f"{count} of {total}  {words}  about {left:.0f} s left", highlight=False)
        progress.update(task, advance=steps, facts="  ".join(f"{key} {text}" for key, text in shown.items() if text))

    progress.start()
    try:
        yield bar
    finally:
        with contextlib.suppress(OSError):  # a terminal that is gone
            progress.stop()


@contextlib.contextmanager
def waiting(text: str, wanted: bool) -> Iterator[None]:
    """Show an activity on a terminal within the context."""
    if not wanted or not find_spec("rich"):
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield
