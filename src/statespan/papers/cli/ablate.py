"""``statespan ablate``: the command."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statespan._fail import fail
from statespan.cli import common
from statespan.papers.cli import cells

if TYPE_CHECKING:
    from rich.console import Console

    from statespan.papers.records.text_table import TextTable
    from statespan.papers.runs.choose import Axis, Combination
    from statespan.train.config import Recipe

HELP = """Compare every combination of some settings.

RECIPE is a name that `statespan recipes` lists, or a YAML file of your own. After it, key=value overrides all cells.
Each --grid gives a key and its values; every combination is trained with every seed. --sweep takes the keys and values
from the recipe's section sweep and chooses the best combination by validation.

\b
Examples:
  statespan ablate digits-s4d --grid model.ssm.init=lin,inv,legs --seeds 3
  statespan ablate digits-s4d --grid model.ssm.init=lin,inv --grid model.d_state=4,16 --seeds 3 train.epochs=5
  statespan ablate ablation-scifar-s4d-inv --grid model.ssm.discretization=bilinear,zoh --processes 4 --device cuda
  statespan ablate mine.yaml --sweep

The table (table.md and table.json in --out) has mean ± standard deviation over the seeds, and the p-value of Welch's
t-test against the first line with Holm's correction. With --sweep it has the validation of all combinations and the
test of the best one alone (sweep.md and sweep.json). A mistyped key or value is rejected before anything is trained; a
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
    sweep: Annotated[bool, typer.Option("--sweep", help="Run the recipe's own sweep; choose by validation.")] = False,
    seeds: Annotated[
        int | None, typer.Option(help="Seeds of each combination. [default: 3, or 1 with --sweep]", show_default=False)
    ] = None,
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
    if sweep and (grid or split != "test"):
        fail("--grid and --split must not be given with --sweep, whose values are the recipe's, compared on valid")
    if not sweep and not grid:
        fail("--grid must be given at least once, such as --grid model.ssm.init=legs,inv,lin; or --sweep")
    console = common.terminal()
    with common.explained():
        from statespan.papers.runs import check_rows, parse_axis, product
        from statespan.papers.runs.sweep import axes_of

        base = common.named_recipe(recipe, changes or [])
        axes = axes_of(base) if sweep else [parse_axis(text) for text in grid or ()]
        out = Path("ablations") / base.name if out is None else out
        common.check_writable(out, "--out")
        count = (1 if sweep else 3) if seeds is None else seeds
        rows = product(base, axes, count)
        check_rows(axes, rows)
        cells.check_devices(device)
        every = [row.cells[number] for number in range(count) for row in rows]  # every line gets its first seed first
        console.print(f"{len(rows)} combinations x {count} seeds: {len(every)} cells in {out}", soft_wrap=True)
        stopped = cells.run(
            every, out / "cells", console, data=data, device=device, processes=processes, seconds=seconds, keep=keep
        )
        if sweep:
            found = _swept(base, axes, rows, out=out, console=console)
        else:
            found = _compared(base, axes, rows, out=out, split=split, console=console)
    cells.finish(stopped, [outcome.status for line in found for outcome in line.outcomes])


def _compared(
    base: Recipe, axes: list[Axis], rows: list[Combination], *, out: Path, split: str, console: Console
) -> list[Any]:
    """Write and print the table of a grid."""
    from statespan import _io as fsio
    from statespan.papers.runs import table

    lines = table.lines(rows, out / "cells", split)
    fsio.replace_file(out / "table.md", table.markdown(f"{base.name}, ablated", axes, lines, _notes(base)).encode())
    fsio.replace_file(out / "table.json", table.record(base.name, axes, lines))
    _show(table.grid(axes, lines), [table.TEST], table.faults(lines), console)
    console.print(f"table    {out / 'table.md'}", markup=False, soft_wrap=True)
    return lines


def _swept(base: Recipe, axes: list[Axis], rows: list[Combination], *, out: Path, console: Console) -> list[Any]:
    """Write and print the table of a sweep, and the best combination."""
    from statespan import _io as fsio
    from statespan.papers.runs import sweep
    from statespan.papers.runs.table import faults

    choice = sweep.choose(rows, out / "cells")
    fsio.replace_file(out / "sweep.md", sweep.markdown(f"{base.name}, swept", axes, choice, _notes(base)).encode())
    fsio.replace_file(out / "sweep.json", sweep.record(base.name, axes, choice))
    _show(sweep.grid(axes, choice), [sweep.RULE], faults(choice.lines), console)
    console.print(sweep.summary(axes, choice), markup=False, soft_wrap=True)
    console.print(f"table    {out / 'sweep.md'}", markup=False, soft_wrap=True)
    return choice.lines


def _notes(base: Recipe) -> list[str]:
    return [f"All cells: `{shlex.join(base.overrides)}`"] if base.overrides else []


def _show(content: TextTable, notes: list[str], faults: list[str], console: Console) -> None:
    """Print the table."""
    from rich.markup import escape

    text_columns = [content.heads[column] for column in content.words]
    table = common.table(*content.heads, right={*content.heads} - {*text_columns}, wrapped=text_columns)
    for row in content.rows:
        table.add_row(*map(escape, row))
    console.print()
    console.print(table)
    for note in notes:
        console.print(note, markup=False, style="dim")
    for fault in faults:
        console.print(fault, markup=False, style="red")
