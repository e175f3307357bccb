"""The schema of all records: settings, results, machine, versions, commit and time.

A record is a JSON object with ``machine``, ``versions`` and ``date`` (:func:`statespan._machine.provenance`). Records
of runs add :data:`RUN_KEYS`. Records of studies, benchmarks and the forecasting table add ``benchmark``, ``caption``
and ``rows``, each row with ``name``, ``setting``, ``extra`` and ``status``.

One file may hold many records of runs: ``{"cells": {key: record}}`` for a table (``*.cells.json``), and
``{"note": why, "records": {name: record}}`` for an archive, which no table counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch

from statespan._io import make_folder, replace_file
from statespan._machine import commit_of, provenance

RUN_KEYS = (
    "recipe", "overrides", "seed", "test", "valid", "metric", "steps", "epochs", "best_step", "parameters",
    "wall_seconds", "machine", "versions",
)  # fmt: skip
COMMIT = re.compile(r"[0-9a-f]{7,40}")

Record: TypeAlias = Mapping[str, Any]


class PublishError(ValueError):
    """A run cannot be published; the message is one line.

    Example:
        >>> from statespan.papers.records.record import read_result
        >>> try:
        ...     read_result(Path("no/such/run"))
        ... except PublishError as error:
        ...     print(error)
        no/such/run must be the folder of a run, but has no recipe.yaml
    """


def read(path: Path) -> dict[str, Any]:
    """The record in a file: an OSError if it cannot be read, a ValueError if it holds no JSON object."""
    record = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(record, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(record).__name__}")
    return current(record)


def current(record: dict[str, Any]) -> dict[str, Any]:
    """Convert a record to the current keys; old ones call the machine ``hardware``."""
    return {"machine" if key == "hardware" else key: value for key, value in record.items()}


def is_run(record: Any) -> bool:
    """Whether this is the record of a run."""
    return isinstance(record, Mapping) and all(key in record for key in RUN_KEYS)


def read_runs(folder: Path) -> dict[str, dict[str, Any]]:
    """The records of runs in a folder by file name, in order; other files are skipped."""
    records = {path.name: read_or_empty(path) for path in sorted(folder.glob("*.json"))}
    return {name: record for name, record in records.items() if is_run(record)}


def every_run(folder: Path) -> Iterator[dict[str, Any]]:
    """The records of all runs below a folder, including tables' cells; archives and other files are skipped."""
    for path in sorted(folder.rglob("*.json")):
        record = read_or_empty(path)
        cells = record.get("cells")
        yield from map(current, cells.values()) if isinstance(cells, dict) else (record,)


def read_or_empty(path: Path) -> dict[str, Any]:
    """The record in a file; empty where there is none."""
    try:
        return read(path)
    except (OSError, ValueError):
        return {}


def dumps(record: Record) -> bytes:
    """A record as JSON, indented, but with each list of numbers on one line."""
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
    return (re.sub(r"\[[^\[\]{}\"]*\]", lambda match: f"[{' '.join(match[0][1:-1].split())}]", text) + "\n").encode()


def write(path: Path, record: Record) -> None:
    """Write a record atomically."""
    make_folder(path.parent)
    replace_file(path, dumps(record))


def write_cells(path: Path, cells: Mapping[str, Record]) -> None:
    """Write the records of a table's cells atomically, one per line."""
    ordered = {key: cells[key] for key in sorted(cells)}
    lines = (f'"{key}": {json.dumps(cell, ensure_ascii=False, allow_nan=False)}' for key, cell in ordered.items())
    replace_file(path, ('{"cells": {\n' + ",\n".join(lines) + "\n}}\n").encode())


def new(body: Record, device: torch.device, *packages: str) -> dict[str, Any]:
    """A record of this machine, these versions (of torch and ``packages``) and now.

    Example:
        >>> sorted(new({"rows": []}, torch.device("cpu")))
        ['date', 'machine', 'rows', 'versions']
    """
    return {**body, **provenance(device, *packages)}


def find_commit(run: Path, versions: Record, given: str | None = None) -> str:
    """The commit that made a run: the recorded one, the latest one here with the same code, or ``given``.

    Raises:
        PublishError: None of them is known.
    """
    recorded = str(versions.get("commit") or "")
    if recorded and not recorded.endswith("+changes"):
        return recorded
    if match := commit_of(str(versions.get("source"))):
        return match  # whatever git said where the run was made, its code was that of this commit
    if recorded:
        return recorded
    if not given:
        raise PublishError(f"{run} does not record its commit, and no recent commit here has its code; pass --commit")
    if not COMMIT.fullmatch(given):
        raise PublishError(f"the commit must be 7 to 40 hexadecimal digits, got {given!r}")
    return given
