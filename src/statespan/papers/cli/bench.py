"""``statespan bench``: the command."""

from __future__ import annotations

import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statespan._fail import fail
from statespan.cli import common
from statespan.papers.bench.catalog import CATALOG, DTYPES, Listing

if TYPE_CHECKING:
    from rich.console import Console

    from statespan.papers.bench.case import Benchmark, BenchOptions
    from statespan.papers.bench.runner import BenchResult, Unfinished


def _sizes(listing: Listing) -> str:
    def text(value: object) -> str:
        if not isinstance(value, tuple):
            return str(value)
        items = ["x".join(map(str, item)) if isinstance(item, tuple) else str(item) for item in value]
        whole = ",".join(items)
        return whole if len(whole) <= 50 else f"{items[0]},{items[1]},…,{items[-1]}"  # too many for a line

    return " ".join(f"{name}={text(value)}" for name, value in listing.sizes.items())


def _lines(name: str, text: str) -> str:
    """A name and a text beside it, for a terminal of 80 columns, of which the help is indented by 2."""
    indent = " " * 12
    return textwrap.fill(
        text,
        78,
        initial_indent=f"  {name:<10}",
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


_SUMMARIES = "\n".join(_lines(benchmark.name, benchmark.summary) for benchmark in CATALOG.values())
_SIZES = "\n".join(_lines(benchmark.name, _sizes(benchmark)) for benchmark in CATALOG.values())
HELP = f"""Measure speed and memory, and record them.

Every result is first compared with a reference in the same run. A mismatch is shown in red without a
time, and the exit code is 1.

\b
Benchmarks:
{_SUMMARIES}
  all       all benchmarks that run on the device

\b
Sizes to set with --size, and their defaults:
{_SIZES}

\b
Examples:
  statespan bench cpu                       an SSM and a layer, ten minutes
  statespan bench all --quick               everything at toy sizes, seconds
  statespan bench layer --device cuda       a whole layer on the GPU
  statespan bench eager --reference ~/s4    beside the papers' own code
  statespan bench op --size shapes=8x256x4096 --dtype float32
  statespan bench scaling --size lengths=1024,4096,16384

Writes NAME-DEVICE.json and a plot beside it to --out (with -quick in the name after --quick). Until then
the rows are in NAME-DEVICE.unfinished.json, from which --resume continues after an interruption.
"""


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Benchmarks to run, or 'all'.", show_default=False)
    ] = None,
    *,
    device: common.Device = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(DTYPES)}. [default: the benchmark's own on CUDA, float32 on CPU]", show_default=False
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes and few repetitions, for a first look.")] = False,
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUES", help="Set a size; repeatable.", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for records and plots.")] = Path("results/bench"),
    seed: Annotated[int, typer.Option(help="Seed of parameters and inputs.")] = 0,
    reference: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="eager: also measure the papers' public code: run that of this clone of state-spaces/s4.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue runs that were interrupted, with the same options and code.")
    ] = False,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Write no PNG.")] = False,
) -> None:
    """Run benchmarks; :data:`HELP` is the text for users."""
    from statespan.papers.bench.record import read_unfinished, unfinished_path
    from statespan.papers.bench.runner import Unfinished

    try:
        runs = _choose(
            names or [], device=device, dtype=dtype, quick=quick, sizes=size or [], seed=seed, reference=reference
        )
        begun = [read_unfinished(benchmark, options, out) if resume else Unfinished() for benchmark, options in runs]
    except ValueError as error:
        fail(str(error))
    common.check_writable(out, "--out")
    out.mkdir(parents=True, exist_ok=True)
    console = common.terminal()
    drawing = not no_plot and find_spec("matplotlib") is not None
    if not no_plot and not drawing:
        console.print('no plots without matplotlib: pip install "statespan[plot]"', markup=False)
    has_fault = False
    for (benchmark, options), before in zip(runs, begun, strict=True):
        if not resume and unfinished_path(benchmark, options, out).exists():
            console.print(f"{benchmark.name}: starts again; --resume would have continued an interrupted run")
        result = _run(benchmark, options, console, begun=before, out=out)
        _write(result, out, console, drawing=drawing)
        has_fault = has_fault or result.fault
    raise typer.Exit(1 if has_fault else 0)


def _write(result: BenchResult, out: Path, console: Console, *, drawing: bool) -> None:
    """Show a result, and write its record and its plot."""
    from statespan.papers.bench.plot import plot
    from statespan.papers.bench.record import write_record
    from statespan.papers.bench.report import show

    show(result, console)
    path = write_record(result, out)
    console.print(f"written: {path}", soft_wrap=True)
    if drawing and plot(result, path.with_suffix(".png")):
        console.print(f"         {path.with_suffix('.png')}", soft_wrap=True)


def _choose(
    names: list[str], device: str | None, reference: Path | None, **options: Any
) -> list[tuple[Benchmark, BenchOptions]]:
    """The benchmarks to run and the options of each, all checked before anything runs."""
    if not names:
        raise ValueError(f"name a benchmark: {', '.join(CATALOG)}, or 'all'; see statespan bench --help")
    from statespan.papers.bench.options import choose_options, find

    kind = (device or "").partition(":")[0]
    every = [
        b for b in map(find, CATALOG if "all" in names else ()) if kind not in ("cpu", "cuda") or kind in b.devices
    ]
    chosen = {b.name: b for name in names for b in (every if name == "all" else [find(name)])}
    takes = [b.name for b in chosen.values() if b.takes_reference]  # of several, the others run without it

    def given(name: str) -> Path | None:
        return reference if name in takes or not takes else None

    return [(b, choose_options(b, device=device, reference=given(b.name), **options)) for b in chosen.values()]


def _run(benchmark: Benchmark, options: BenchOptions, console: Console, *, begun: Unfinished, out: Path) -> BenchResult:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from statespan.papers.bench.record import write_unfinished
    from statespan.papers.bench.runner import run_benchmark

    columns = (
        SpinnerColumn(),
        TextColumn("{task.fields[name]}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", name=benchmark.name, total=1)
        return run_benchmark(
            benchmark,
            options,
            lambda done, total, name: progress.update(task, completed=done, total=total, description=name),
            begun=begun,
            keep=lambda unfinished: write_unfinished(benchmark, options, unfinished, out),
        )
