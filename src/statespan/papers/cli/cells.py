"""Shared by commands that run cells: their options, the progress view and the exit code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statespan._fail import complain, fail
from statespan.cli import common

if TYPE_CHECKING:
    from rich.console import Console

Processes = Annotated[int | None, typer.Option(help="Cells to run at once. [default: one per CUDA device, or one]")]
Seconds = Annotated[float, typer.Option(help="Save and stop after this time; the same command resumes.")]
Keep = Annotated[str, typer.Option(help="What to keep of a finished run: result, model (tested) or all.")]
Devices = Annotated[str | None, typer.Option(help="cpu, cuda:0 or a comma-separated list. [default: all CUDA devices]")]


def check_running(processes: int | None, seconds: float, keep: str) -> None:
    """Reject invalid options for running cells."""
    if processes is not None and processes < 0:
        fail(f"--processes must be an integer >= 0, got {processes}")
    if not seconds > 0:
        fail(f"--seconds must be a number > 0, got {seconds:g}")
    common.check_choice("--keep", keep, ("result", "model", "all"))


def check_devices(device: str | None) -> None:
    """Reject devices that do not exist, before anything is started."""
    from statespan.papers.runs.work import process_devices
    from statespan.train.device import pick_device

    for place in process_devices(device, None):
        pick_device(place)


def run(cells: list[Any], folder: Path, console: Console, **options: Any) -> int:
    """Run cells and show their progress; returns the exit code of the signal that stopped them, or 0."""
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
    """Exit with 0 if everything is done, 1 if a cell failed, 130 or 143 after a signal; print how to resume."""
    left = sum(status in ("waiting", "stopped") for status in statuses)
    if left:
        complain(f"{left} of {len(statuses)} cells are left; the same command resumes")
    if stopped or "failed" in statuses:
        sys.exit(stopped or 1)
