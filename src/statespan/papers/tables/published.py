"""Numbers of tables from published runs: which runs stand for an entry, their signs, and where they come from."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from statespan.papers.records.matching import PublishedRuns, RunMatch
from statespan.papers.records.record import differences
from statespan.papers.records.schema import Record
from statespan.papers.records.signs import CHANGED, SIGNS, signs
from statespan.papers.records.tasks import TASKS, other
from statespan.papers.runs.outcome import DONE, Outcome
from statespan.papers.tables.spec import PaperTable, Trained

HALF_RATE = "2"  # how records call the evaluation at half the sampling rate


def published_runs(folder: Path | None) -> PublishedRuns:
    """The published runs of a folder, read again only if a file has changed."""
    files = [] if folder is None else sorted(folder.glob("*.json"))
    return _read(folder, tuple(path.stat().st_mtime_ns for path in files))


@lru_cache(maxsize=8)
def _read(folder: Path | None, changed: tuple[int, ...]) -> PublishedRuns:
    return PublishedRuns.read(folder)


def match_of(entry: Trained, table: PaperTable, runs: PublishedRuns) -> RunMatch | None:
    """The published runs that stand for an entry, in tables that take them whatever their settings."""
    if not table.published:
        return None
    return runs.nearest(entry.recipe, entry.overrides, has=lambda record: _value(entry, record) is not None)


def outcome_of(record: Record) -> Outcome:
    """The record of a published run as the outcome of a cell."""
    metric, history = record["metric"], record.get("history") or {}
    values = history.get(f"valid_{metric}") or history.get(f"test_{metric}", [])
    half: Any = (record.get("rates") or {}).get(HALF_RATE)
    more = {"curve": list(zip(history.get("epoch", []), values)), "evaluations": {"half": half} if half else {}}
    return Outcome(DONE, record={**record, **more})


def values_of(entry: Trained, match: RunMatch) -> tuple[float, ...]:
    """The numbers of the runs by seed, in the paper's unit."""
    records = sorted(match.runs.values(), key=lambda record: int(record["seed"]))
    values = (_value(entry, record) for record in records)
    return tuple(value for value in values if value is not None)


def signs_of(match: RunMatch) -> str:
    """The signs of the runs, and :data:`CHANGED` if they have other settings than the row."""
    every = "".join(_signs(record) for record in match.runs.values())
    return "".join(sign for sign in SIGNS if sign in every) + CHANGED * bool(match.other_settings)


def source_of(match: RunMatch) -> str:
    """Where a number comes from: the recipe with its overrides, and for each seed time, machine, commit and file."""
    records = sorted(match.runs.items(), key=lambda item: int(item[1]["seed"]))
    changes = differences(match.recipe, records[0][1]["recipe"])
    runs = []
    for file, record in records:
        facts = [f"{record['wall_seconds'] / 60:.3g} min on {record['machine']['device']}"]
        if commit := str(record["versions"].get("commit") or "")[:10]:
            facts.append(f"commit {commit}")
        runs.append(f"seed {record['seed']}, {', '.join(facts)} (`{file}`)")
    return f"`{' '.join((match.recipe, *changes))}`: {'; '.join(runs)}"


def _signs(record: Record) -> str:
    task = next((task for task in TASKS if task.holds(record)), other(record, ""))
    return signs(record, task)


def _value(entry: Trained, record: Record) -> float | None:
    metric = record["metric"]
    value = record["test"].get("mae") if entry.value == "mae" else outcome_of(record).value(entry.value)
    return None if value is None else 100.0 * value if metric == "accuracy" else value
