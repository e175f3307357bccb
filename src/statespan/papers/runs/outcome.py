"""What is known of a cell, from its folder alone."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from statespan.papers.runs.cell import Cell
from statespan.train.result import read_log

DONE, WAITING, RUNNING, STOPPED, FAILED, MISSING = "done", "waiting", "running", "stopped", "failed", "missing"
RESULT, MORE, FAULT = "result.json", "evaluations.json", "fault.json"
KEEPS = ("result", "model", "all")


@dataclass(frozen=True)
class Outcome:
    """What came of a cell.

    Args:
        status: "done", "waiting" (not begun), "stopped" (begun, goes on when it is run again), "failed" or "missing"
            (its data is not here).
        metric: Name of the metric that chose the weights.
        test: Metrics on the test data.
        valid: Metrics on the validation data: those of the best weights.
        first: The metric at the first validation.
        more: Metrics of each further evaluation.
        parameters: Number of trained parameters.
        seconds: Time it took.
        why: One line, where it failed or its data is missing.
    """

    status: str
    metric: str = ""
    test: dict[str, float] = field(default_factory=dict)
    valid: dict[str, float] = field(default_factory=dict)
    first: float | None = None
    more: dict[str, dict[str, float]] = field(default_factory=dict)
    parameters: int = 0
    seconds: float = 0.0
    why: str = ""

    def value(self, split: str) -> float | None:
        """The metric on "test", on "valid", at the "first" validation or in a further evaluation; None without one."""
        if split == "first":
            return self.first
        found = {"test": self.test, "valid": self.valid, **self.more}.get(split, {}).get(self.metric)
        return found if isinstance(found, float) and math.isfinite(found) else None


def finished(cell: Cell, cells: Path, keep: str = "result") -> bool:
    """Whether there is nothing left to do for a cell.

    Args:
        cell: The cell.
        cells: The folder of all cells.
        keep: What must be there besides the result: "result" (nothing), "model" or "all".
    """
    folder = cell.folder(cells)
    if not (folder / RESULT).is_file() or (cell.evaluations and not (folder / MORE).is_file()):
        return False
    # between the result and the model a run can be killed; what was removed on purpose is not made again
    return keep == "result" or (folder / "model" / "config.json").is_file() or not (folder / "checkpoints").is_dir()


def outcome(cell: Cell, cells: Path) -> Outcome:
    """What is known of a cell.

    Args:
        cell: The cell.
        cells: The folder of all cells.
    """
    folder = cell.folder(cells)
    if not finished(cell, cells):
        fault = _read(folder / FAULT)
        if fault:
            return Outcome(fault["status"], why=fault["why"])
        return Outcome(STOPPED if (folder / "checkpoints").is_dir() else WAITING)
    record = _read(folder / RESULT)
    metric = record["metric"]
    curve = read_log(folder).get(f"valid_{metric}", []) if (folder / "log.csv").is_file() else []
    return Outcome(
        DONE,
        metric,
        record["test"],
        record["valid"],
        curve[0][1] if curve else None,
        _read(folder / MORE),
        record["parameters"],
        record["wall_seconds"],
    )


def position(folder: Path) -> tuple[float, str]:
    """How far a running cell is, in epochs, and its last validation as text; from the log it writes."""
    try:
        log = read_log(folder)
    except (OSError, ValueError, KeyError, IndexError):  # not there yet, or in the middle of a line
        return 0.0, ""
    epochs = log.get("epoch", [])
    named = [(name, points) for name, points in log.items() if name.startswith("valid_") and name != "valid_loss"]
    shown = ""
    if named and named[0][1]:
        shown = show_metric(named[0][0].removeprefix("valid_"), named[0][1][-1][1])
    return (epochs[-1][1] if epochs else 0.0), shown


def show_metric(metric: str, value: float, digits: int = 4) -> str:
    """A metric as text: an accuracy in per cent.

    Example:
        >>> show_metric("accuracy", 0.8512), show_metric("rmse", 0.11934)
        ('85.12', '0.1193')
    """
    return f"{100 * value:.2f}" if metric == "accuracy" else f"{value:.{digits}g}"


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
