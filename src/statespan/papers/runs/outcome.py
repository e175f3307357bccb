"""The outcome of a cell, from its run's folder or from the table file that its record was merged into."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from statespan.papers.records import schema
from statespan.papers.records.schema import Record
from statespan.papers.runs.cell import Cell
from statespan.train.result import log_split, read_log

DONE, WAITING, RUNNING, STOPPED, FAILED, MISSING = "done", "waiting", "running", "stopped", "failed", "missing"
RESULT, EVALUATIONS, FAULT = "result.json", "evaluations.json", "fault.json"
MERGED = ".cells.json"  # how the name of a table's file ends; it lies beside the folder of cells


@dataclass(frozen=True)
class Outcome:
    """The outcome of a cell.

    Example:
        >>> record = {"metric": "accuracy", "test": {"accuracy": 0.98}, "curve": [[1, 0.9], [2, None]]}
        >>> outcome = Outcome("done", record=record)
        >>> outcome.value("test"), outcome.curve
        (0.98, [(1, 0.9)])
    """

    status: str
    """One of "done", "waiting" (not begun), "stopped" (begun; running it again resumes it), "failed" and "missing" (its
    data is not here)."""
    why: str = ""  # one line, where it failed or its data is missing
    record: Record = field(default_factory=dict)
    """Of its run if it is done, with the metrics of further ``evaluations`` and the ``curve`` of the validation metric
    as [epoch, value]."""

    @property
    def metric(self) -> str:
        """The metric that selected the weights; "" if the cell is not done."""
        return str(self.record.get("metric", ""))

    @property
    def curve(self) -> list[tuple[float, float]]:
        """Epochs and the validation metric, where finite."""
        return [(epoch, value) for epoch, value in self.record.get("curve", ()) if value is not None]

    def value(self, split: str) -> float | None:
        """The metric on "test", on "valid", at the "first" validation or in a further evaluation; None without one."""
        if split == "first":
            return next((value for _, value in self.record.get("curve", ())), None)
        where = self.record if split in ("test", "valid") else self.record.get("evaluations", {})
        value = where.get(split, {}).get(self.metric)
        return value if isinstance(value, float) and math.isfinite(value) else None


def finished(cell: Cell, cells: Path, keep: str = "result") -> bool:
    """Whether a cell is finished."""
    if not _is_measured(cell, cells):
        return cell.key in merged(cells)
    folder = cell.folder(cells)
    # a run can be killed between its result and its model; files removed on purpose are not recreated
    return keep == "result" or (folder / "model" / "config.json").is_file() or not (folder / "checkpoints").is_dir()


def _is_measured(cell: Cell, cells: Path) -> bool:
    folder = cell.folder(cells)
    return (folder / RESULT).is_file() and (not cell.evaluations or (folder / EVALUATIONS).is_file())


def outcome(cell: Cell, cells: Path) -> Outcome:
    """The known outcome of a cell."""
    folder = cell.folder(cells)
    if not finished(cell, cells):
        if fault := schema.read_or_empty(folder / FAULT):
            return Outcome(fault["status"], fault["why"])
        return Outcome(STOPPED if (folder / "checkpoints").is_dir() else WAITING)
    if not _is_measured(cell, cells):
        return Outcome(DONE, record=merged(cells)[cell.key])
    record = schema.read(folder / RESULT)
    more = {"evaluations": schema.read_or_empty(folder / EVALUATIONS), "curve": _curve(folder, record["metric"])}
    return Outcome(DONE, record={**record, **more})


def _curve(folder: Path, metric: str) -> list[tuple[float, float | None]]:
    if not (folder / "log.csv").is_file():
        return []
    log = read_log(folder)
    epochs, values = dict(log.get("epoch", [])), log.get(f"{log_split(log)}_{metric}", [])
    return [(epochs.get(step, 0.0), value if math.isfinite(value) else None) for step, value in values]


def merged(cells: Path) -> dict[str, Record]:
    """The records by key in the table files beside a folder of cells."""
    records: dict[str, Record] = {}
    for path in sorted(cells.parent.glob(f"*{MERGED}")):
        records |= _read_merged(path, path.stat().st_mtime_ns)
    return records


@lru_cache(maxsize=64)  # a table asks for each of its cells several times
def _read_merged(path: Path, changed: int) -> dict[str, Record]:
    return {key: schema.current(record) for key, record in schema.read_or_empty(path).get("cells", {}).items()}


def merge(cells: Sequence[Cell], folder: Path, path: Path) -> None:
    """Add the records of finished cells to a table's file."""
    before = schema.read_or_empty(path).get("cells", {})
    outcomes = {cell.key: outcome(cell, folder) for cell in cells}
    after = {**before, **{key: dict(found.record) for key, found in outcomes.items() if found.status == DONE}}
    if json.dumps(after) != json.dumps(before):
        schema.write_cells(path, after)


def remove_merged(cells: Sequence[Cell], folder: Path) -> None:
    """Remove the folders of cells whose records are in a table's file."""
    for key in {cell.key for cell in cells} & merged(folder).keys():
        shutil.rmtree(folder / key, ignore_errors=True)


def position(folder: Path) -> tuple[float, str]:
    """The position of a running cell in epochs and its last validation as text, from its log."""
    try:
        log = read_log(folder)
    except (OSError, ValueError, KeyError, IndexError):  # not there yet, or in the middle of a line
        return 0.0, ""
    epochs = log.get("epoch", [])
    split = log_split(log)
    name = next((name for name in log if name.startswith(f"{split}_") and name != f"{split}_loss"), "")
    value = log[name][-1][1] if log.get(name) else None
    text = "" if value is None else f"{100 * value:.2f}" if name == f"{split}_accuracy" else f"{value:.4g}"
    return (epochs[-1][1] if epochs else 0.0), text
