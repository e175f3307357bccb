"""``statespan reproduce``: the command."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statespan._fail import fail
from statespan.cli import common
from statespan.papers.cli import cells
from statespan.papers.cli.queue import show as show_queue

if TYPE_CHECKING:
    from rich.console import Console

    from statespan.papers.tables.collect import ReproduceOptions

HELP = """Reproduce tables and figures of the papers.

NAME is a name from --list, the common beginning of several (s4d-table3), figures, tables or all. After it, key=value
overrides the recipes of all cells. With --queue, NAME is the number of a line of the queue.

\b
Examples:
  statespan reproduce --list
  statespan reproduce s4d-figure                 Figures 1 to 5 of the S4D paper, a minute on a CPU
  statespan reproduce s4d-table2 --only scifar --data ~/data --processes 4
  statespan reproduce s4d-table2 s4d-table3 --only scifar,bidmc --processes 6 --seconds 500
  statespan reproduce s4d-table3b --processes 6 train.precision=bf16 train.compile=both   fastest on a GPU
  statespan reproduce s4-table6 --budget full
  statespan reproduce s4-table4 s4d-table5 --no-run    from the published runs
  statespan reproduce --queue                    what has been run by the papers' protocol, and the next command

--budget minutes trains fewer epochs, as the page states; full trains the recipes unchanged. Each table or figure gets
NAME.md, NAME.html (one file with its pictures), NAME.json and pictures in --out: our numbers beside the paper's,
differences, seeds and spread. A published run with the settings of a row (--tasks) stands in its place, and its cell is
not trained. Tables share cells; a cell never runs twice and resumes after any interruption. Cells without data, or that
failed, are marked. Speeds come from the records of `statespan bench`.

--queue prints the queue of runs by the papers' own protocol: which have a record (by recipe, overrides and seed), which
are missing, in order, and the estimated minutes on one H200.
"""


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME | KEY=VALUE", help="Tables, figures.", show_default=False)
    ] = None,
    *,
    listing: Annotated[bool, typer.Option("--list", help="List tables and figures, and their cost.")] = False,
    queue: Annotated[bool, typer.Option("--queue", help="List the papers' own runs, and which are missing.")] = False,
    budget: Annotated[str, typer.Option(help="minutes or full.")] = "minutes",
    only: Annotated[str, typer.Option(help="Run only recipes with one of these comma-separated words.")] = "",
    seeds: Annotated[int | None, typer.Option(help="Seeds of each cell. [default: 2 for ablations, else 1]")] = None,
    out: Annotated[Path, typer.Option(help="Folder of pages and cells.")] = Path("results/reproduce"),
    records: Annotated[Path, typer.Option(help="Folder of the benchmarks' records.")] = Path("results/bench"),
    tasks: Annotated[Path, typer.Option(help="Folder of the published runs.")] = Path("results/tasks"),
    data: common.DataFolder = None,
    device: cells.Devices = None,
    processes: cells.Processes = None,
    seconds: cells.Seconds = math.inf,
    keep: cells.Keep = "result",
    dry: Annotated[bool, typer.Option("--no-run", help="Run nothing; write pages from finished cells.")] = False,
) -> None:
    """Reproduce; :data:`HELP` is the text for users."""
    common.need_training("reproduce")
    cells.check_running(processes, seconds, keep)
    common.check_choice("--budget", budget, ("minutes", "full"))
    if seeds is not None and seeds < 1:
        fail(f"--seeds must be an integer >= 1, got {seeds}")
    console = common.terminal()
    words = [word for word in names or [] if "=" not in word]
    changes = tuple(word for word in names or [] if "=" in word)
    with common.explained():
        if queue:
            show_queue(words, tasks)
            return
        from statespan.papers.tables.collect import ReproduceOptions
        from statespan.papers.tables.registry import choose

        parts = tuple(filter(None, only.split(",")))
        options = ReproduceOptions(budget, seeds, parts, changes, out / "cells", records, tasks)
        if listing:
            _list(options, console)
            return
        if not words:
            fail("name a table or figure, such as s4d-figure2: statespan reproduce --list shows them all")
        with common.rejected():
            chosen = choose(words)
        common.check_writable(out, "--out")
        cells.check_devices(device)
        running = {"data": data, "device": device, "processes": processes, "seconds": seconds, "keep": keep}
        _make(chosen, options, console, out=out, is_dry=dry, running=running)


def _make(
    chosen: list[str], options: ReproduceOptions, console: Console, *, out: Path, is_dry: bool, running: dict[str, Any]
) -> None:
    from statespan import _io as fsio
    from statespan.papers.runs.outcome import MERGED, merge, outcome, remove_merged
    from statespan.papers.tables import filters
    from statespan.papers.tables.collect import cells_of
    from statespan.papers.tables.registry import FILTERS, TABLES

    fsio.make_folder(out)
    tables = {name: TABLES[name]() for name in chosen if name in TABLES}
    wanted = cells_of(tables.values(), options)
    if options.only and tables and not wanted:
        fail(f"--only must have a part of a recipe's name that these tables use, got {','.join(options.only)}")
    stopped = 0
    statuses: list[str] = []
    if wanted and not is_dry:
        console.print(f"{len(wanted)} cells", markup=False, soft_wrap=True)
        stopped = cells.run(wanted, options.cells, console, **running)
        for name, table in tables.items():
            merge(cells_of([table], options), options.cells, out / f"{name}{MERGED}")
        if running["keep"] == "result":
            remove_merged(wanted, options.cells)
        statuses = [outcome(cell, options.cells).status for cell in wanted]
    if FILTERS in chosen and not is_dry and not stopped:  # its model is plotted, so it is kept
        model, folder = filters.cell(options), filters.cells(options)
        stopped = cells.run([model], folder, console, **{**running, "keep": "model"})
        merge([model], folder, out / f"{FILTERS}{MERGED}")
        statuses.append(outcome(model, folder).status)
    for name in chosen:
        line = _write(name, tables.get(name), options, out=out, data=running["data"])
        console.print(f"{name:<12} {line}".rstrip(), markup=False, soft_wrap=True)
    cells.finish(stopped, statuses)


def _write(name: str, table: Any, options: ReproduceOptions, *, out: Path, data: Path | None) -> str:
    """Write the page of a table or figure; returns the lines to print about it."""
    from statespan.papers.runs.outcome import outcome
    from statespan.papers.tables import filters
    from statespan.papers.tables.figures import FIGURES
    from statespan.papers.tables.registry import FILTERS, NOTES, summaries
    from statespan.papers.tables.write import write_figure, write_note, write_table

    counts: dict[str, int] = {}
    if table is not None:
        counts = write_table(table, options, out)
    elif name in NOTES:
        write_note(name, NOTES[name], out)
    elif name == FILTERS:
        result = outcome(filters.cell(options), filters.cells(options))
        if result.status != "done":
            return f"{result.status}{': ' + result.why if result.why else ''}"
        write_figure(name, "S4 Figure 2: kernels as images", filters.draw(options, data), out)
    else:
        summary = summaries()[name].rstrip(".")
        write_figure(name, f"S4D Figure {name[-1]}: {summary}", FIGURES[name](), out)
    return f"{out / name}.html  {', '.join(f'{count} {status}' for status, count in counts.items())}"


def _list(options: ReproduceOptions, console: Console) -> None:
    from statespan.papers.tables import filters
    from statespan.papers.tables.budget import cost
    from statespan.papers.tables.collect import cells_of
    from statespan.papers.tables.registry import FILTERS, TABLES, summaries

    table = common.table("name", "what", "cells", "cost", right=["cells", "cost"], wrapped=["what"])
    for name, summary in summaries().items():
        cells = cells_of([TABLES[name]()], options) if name in TABLES else []
        cells = [filters.cell(options)] if name == FILTERS else cells
        is_measured = name in ("s4-table2", "s4-table3")
        free = f"statespan bench {name.replace('-', '_')}" if is_measured else "seconds, CPU"
        took = common.duration(sum(cost(cell.recipe) for cell in cells)) if cells else free
        table.add_row(name, summary, str(len(cells) or ""), took)
    console.print(table)
    console.print(
        f"Budget {options.budget}. Costs are estimates for one H200 and one cell at a time; tables share cells. "
        "statespan data says which datasets are here.", style="dim",
    )  # fmt: skip
