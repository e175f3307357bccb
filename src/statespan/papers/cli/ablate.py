"""``statespan ablate``: the command."""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statespan._fail import complain, fail
from statespan.cli import common
from statespan.cli.train import check_writable, read

if TYPE_CHECKING:
    from rich.console import Console

    from statespan.papers.runs.choose import Axis
    from statespan.papers.runs.table import Line

HELP = """Train every combination of some settings, and compare them.

RECIPE is a name that `statespan recipes` lists, or a YAML file of your own. After it, key=value changes all cells.
Each --grid is a key and its values; every combination is trained with every seed.

\b
Examples:
  statespan ablate digits-s4d --grid model.ssm.init=lin,inv,legs --seeds 3
  statespan ablate digits-s4d --grid model.ssm.init=lin,inv --grid model.d_state=4,16 --seeds 3 train.epochs=5
  statespan ablate ablation-scifar-s4d-inv --grid model.ssm.discretization=bilinear,zoh --processes 4 --device cuda

The table (table.md and table.json in --out) has mean ± standard deviation over the seeds, and the p-value of Welch's
t-test against the first line with Holm's correction. A mistyped key or value is refused before anything is trained; a
cell that fails later is reported and the others go on. Stopped or killed at any moment, the same command goes on, to
the same table; cells that are done are not run again.
"""
Processes = Annotated[
    int | None, typer.Option(help="Cells to run at once. [default: one on each CUDA device, or one on the CPU]")
]
Seconds = Annotated[float, typer.Option(help="Save and stop after so long; the same command goes on.")]
Keep = Annotated[str, typer.Option(help="What of a finished run stays: result, model (tested) or all.")]
Places = Annotated[str | None, typer.Option(help="cpu, cuda:0, or several with commas. [default: every CUDA device]")]


def ablate(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name or YAML file.", show_default=False)],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Changes of all cells, such as train.epochs=5.", show_default=False),
    ] = None,
    grid: Annotated[
        list[str] | None, typer.Option(metavar="KEY=A,B", help="A key and its values; can be repeated.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Seeds of each combination.")] = 3,
    split: Annotated[str, typer.Option(help="Compare on test, valid, or the first validation.")] = "test",
    out: Annotated[Path | None, typer.Option(help="Folder of table and cells. [default: ablations/RECIPE]")] = None,
    data: common.DataFolder = None,
    device: Places = None,
    processes: Processes = None,
    seconds: Seconds = math.inf,
    keep: Keep = "model",
) -> None:
    """Run a grid; :data:`HELP` is the text for users."""
    common.need_training()
    check_running(processes, seconds, keep)
    if split not in ("test", "valid", "first"):
        fail(f"--split must be test, valid or first, got {split!r}")
    if not grid:
        fail("--grid must be given at least once, such as --grid model.ssm.init=legs,inv,lin")
    console = common.terminal()
    with common.explained():
        from statespan.papers.runs import check_rows, parse_axis, product

        axes = [parse_axis(text) for text in grid]
        base = read(recipe, changes or [])
        out = Path("ablations") / base.name if out is None else out
        check_writable(out, "--out")
        rows = product(base, axes, seeds)
        check_rows(axes, rows)
        check_devices(device)
        cells = [row.cells[number] for number in range(seeds) for row in rows]  # every line gets its first seed first
        console.print(f"{len(rows)} combinations x {seeds} seeds: {len(cells)} cells in {out}", soft_wrap=True)
        stopped = run(cells, out / "cells", console, data=data, device=device, processes=processes,
                      seconds=seconds, keep=keep)  # fmt: skip
        found = _write(base.name, axes, rows, out=out, split=split, changes=base.overrides)
        show(axes, found, console)
    console.print(f"table    {out / 'table.md'}", markup=False, soft_wrap=True)
    finish(stopped, [one.status for line in found for one in line.outcomes])


def run(cells: list[Any], folder: Path, console: Console, **options: Any) -> int:
    """Run cells with a view of how they stand; returns the exit code of the signal that stopped them, or 0."""
    from statespan.papers.runs.live import watching
    from statespan.papers.runs.work import run_cells
    from statespan.train import Interrupted

    try:
        with watching(cells, folder, console) as show:
            run_cells(cells, folder, show=show, **options)
    except Interrupted as stopped:
        return int(stopped.code or 1)
    return 0


def finish(stopped: int, statuses: list[str]) -> None:
    """Say how to go on and leave with the exit code: 0 if everything is done, 1 if a cell failed, 130 or 143."""
    left = sum(status in ("waiting", "stopped") for status in statuses)
    if left:
        complain(f"{left} of {len(statuses)} cells are left; the same command goes on")
    if stopped or "failed" in statuses:
        sys.exit(stopped or 1)


def check_running(processes: int | None, seconds: float, keep: str) -> None:
    """Refuse options of running cells that make no sense."""
    if processes is not None and processes < 0:
        fail(f"--processes must be an integer >= 0, got {processes}")
    if not seconds > 0:
        fail(f"--seconds must be a number > 0, got {seconds:g}")
    if keep not in ("result", "model", "all"):
        fail(f"--keep must be result, model or all, got {keep!r}")


def check_devices(device: str | None) -> None:
    """Refuse devices that are not here, before anything is started."""
    from statespan.papers.runs.work import process_devices
    from statespan.train.device import pick_device

    for place in process_devices(device, None):
        pick_device(place)


def _write(name: str, axes: list[Axis], rows: Any, *, out: Path, split: str, changes: tuple[str, ...]) -> list[Line]:
    from statespan import _io as fsio
    from statespan.papers.runs.table import lines, markdown, record

    found = lines(rows, out / "cells", split)
    notes = [f"All cells: `{shlex.join(changes)}`"] if changes else []
    fsio.replace_file(out / "table.md", markdown(f"{name}, ablated", axes, found, notes).encode())
    fsio.replace_file(out / "table.json", record(name, axes, found))
    return found


def show(axes: list[Axis], found: list[Line], console: Console) -> None:
    """Print the table."""
    from statespan.papers.runs.table import TEST, faults, grid

    console.print()
    console.print(grid(axes, found).terminal())
    console.print(TEST, markup=False, style="dim")
    for fault in faults(found):
        console.print(fault, markup=False, style="red")
