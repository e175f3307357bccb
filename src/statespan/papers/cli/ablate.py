"""``statespan ablate``: the command."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from statespan._fail import fail
from statespan.cli import common
from statespan.papers.cli import cells

if TYPE_CHECKING:
    from rich.console import Console

    from statespan.papers.runs.choose import Axis
    from statespan.papers.runs.table import SweepLine

HELP = """Compare every combination of some settings.

RECIPE is a name that `statespan recipes` lists, or a YAML file of your own. After it, key=value overrides all cells.
Each --grid gives a key and its values; every combination is trained with every seed.

\b
Examples:
  statespan ablate digits-s4d --grid model.ssm.init=lin,inv,legs --seeds 3
  statespan ablate digits-s4d --grid model.ssm.init=lin,inv --grid model.d_state=4,16 --seeds 3 train.epochs=5
  statespan ablate ablation-scifar-s4d-inv --grid model.ssm.discretization=bilinear,zoh --processes 4 --device cuda

The table (table.md and table.json in --out) has mean ± standard deviation over the seeds, and the p-value of Welch's
t-test against the first line with Holm's correction. A mistyped key or value is rejected before anything is trained; a
cell that fails later is reported and the others continue. After an interruption the same command resumes and gives the
same table; finished cells are not run again.
"""


def ablate(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name or YAML file.", show_default=False)],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Overrides of all cells, such as train.epochs=5.", show_default=False),
    ] = None,
    *,
    grid: Annotated[list[str] | None, typer.Option(metavar="KEY=A,B", help="A key and its values; repeatable.")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds of each combination.")] = 3,
    split: Annotated[str, typer.Option(help="Compare on test, valid, or first (the first validation).")] = "test",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the table and the cells. [default: ablations/RECIPE]")
    ] = None,
    data: common.DataFolder = None,
    device: cells.Devices = None,
    processes: cells.Processes = None,
    seconds: cells.Seconds = math.inf,
    keep: cells.Keep = "model",
) -> None:
    """Run a grid; :data:`HELP` is the text for users."""
    common.need("ablate", "lightning", "safetensors", "yaml", "scipy")
    cells.check_running(processes, seconds, keep)
    common.check_choice("--split", split, ("test", "valid", "first"))
    if not grid:
        fail("--grid must be given at least once, such as --grid model.ssm.init=legs,inv,lin")
    console = common.terminal()
    with common.explained():
        from statespan import _io as fsio
        from statespan.papers.runs import check_rows, parse_axis, product
        from statespan.papers.runs import table as sweep

        axes = [parse_axis(text) for text in grid]
        base = common.named_recipe(recipe, changes or [])
        out = Path("ablations") / base.name if out is None else out
        common.check_writable(out, "--out")
        rows = product(base, axes, seeds)
        check_rows(axes, rows)
        cells.check_devices(device)
        every = [row.cells[number] for number in range(seeds) for row in rows]  # every line gets its first seed first
        console.print(f"{len(rows)} combinations x {seeds} seeds: {len(every)} cells in {out}", soft_wrap=True)
        stopped = cells.run(
            every, out / "cells", console, data=data, device=device, processes=processes, seconds=seconds, keep=keep
        )
        lines = sweep.lines(rows, out / "cells", split)
        notes = [f"All cells: `{shlex.join(base.overrides)}`"] if base.overrides else []
        fsio.replace_file(out / "table.md", sweep.markdown(f"{base.name}, ablated", axes, lines, notes).encode())
        fsio.replace_file(out / "table.json", sweep.record(base.name, axes, lines))
        _show(axes, lines, console)
    console.print(f"table    {out / 'table.md'}", markup=False, soft_wrap=True)
    cells.finish(stopped, [outcome.status for line in lines for outcome in line.outcomes])


def _show(axes: list[Axis], lines: list[SweepLine], console: Console) -> None:
    """Print the table."""
    from rich.markup import escape

    from statespan.papers.runs.table import TEST, faults, grid

    content = grid(axes, lines)
    text_columns = [content.heads[column] for column in content.words]
    table = common.table(*content.heads, right={*content.heads} - {*text_columns}, wrapped=text_columns)
    for row in content.rows:
        table.add_row(*map(escape, row))
    console.print()
    console.print(table)
    console.print(TEST, markup=False, style="dim")
    for fault in faults(lines):
        console.print(fault, markup=False, style="red")
