"""The progress of a sweep on the terminal: a table that is redrawn while cells run."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statespan.papers.runs.cell import Cell
from statespan.papers.runs.outcome import DONE, FAILED, MISSING, RUNNING, STOPPED, WAITING, position
from statespan.papers.runs.work import Show

if TYPE_CHECKING:
    from rich.console import Console

STYLE = {DONE: "green", RUNNING: "cyan", FAILED: "bold red", MISSING: "yellow", STOPPED: "magenta", WAITING: "dim"}
MOST = 24  # rows of the table, which must fit on the screen


@contextlib.contextmanager
def watching(cells: Sequence[Cell], folder: Path, console: Console) -> Iterator[Show]:
    """A callback that shows progress: a live table on a terminal, a line per finished cell in a file or pipe."""
    labels = {cell.key: (cell.key.rpartition("-")[0], cell) for cell in cells}
    shown: dict[str, str] = {}
    began = time.monotonic()
    if not console.is_terminal:

        def write(statuses: dict[str, str]) -> None:
            for key, status in statuses.items():
                if shown.get(key, WAITING) != status and status != RUNNING and (shown or status != DONE):
                    done = sum(other not in (WAITING, RUNNING, STOPPED) for other in statuses.values())
                    console.print(
                        f"{done}/{len(statuses)} {status} {labels[key][0]} ({time.monotonic() - began:.0f} s)",
                        markup=False, soft_wrap=True,
                    )  # fmt: skip
            shown.update(statuses)

        yield write
        return
    from rich.live import Live

    with Live(console=console, refresh_per_second=2, transient=True) as live:

        def draw(statuses: dict[str, str]) -> None:
            live.update(_table(statuses, labels, folder, time.monotonic() - began))

        yield draw


def _table(statuses: dict[str, str], labels: dict[str, tuple[str, Cell]], folder: Path, seconds: float) -> Any:
    from rich import box
    from rich.table import Table

    counts = Counter(statuses.values())
    total = ", ".join(f"{counts[status]} {status}" for status in STYLE if counts[status])
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, title=f"{total}; {seconds:.0f} s",
                  title_justify="left")  # fmt: skip
    for name in ("cell", "status", "epoch", "valid"):
        table.add_column(name, justify="left" if name in ("cell", "status") else "right", no_wrap=True)
    # what runs or went wrong first: a long grid does not fit on a screen
    order = sorted(statuses, key=lambda key: (RUNNING, FAILED, MISSING, STOPPED, WAITING, DONE).index(statuses[key]))
    for key in order[:MOST]:
        label, cell = labels[key]
        epoch, value = position(cell.folder(folder)) if statuses[key] in (RUNNING, STOPPED, DONE) else (0.0, "")
        whole = "" if cell.recipe.train.steps else f" / {cell.recipe.train.epochs}"
        shown = f"{epoch:.1f}{whole}" if epoch else ""
        table.add_row(label, f"[{STYLE[statuses[key]]}]{statuses[key]}[/]", shown, value)
    if len(order) > MOST:
        table.add_row(f"… and {len(order) - MOST} more")
    return table
