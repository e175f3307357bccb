"""Generates the documentation's tables of measurements from the records; no figure is typed by hand.

``python -m statespan.papers.bench.document docs/engine.md`` fills every place of the form

    <!-- results/bench/op-cuda.json: name, heads, length | time_ms, graph_ms -->
    <!-- end -->

with a table of the record's rows: the settings before the bar, the figures after it. ``S4 as S4D-LegS`` gives a
column another heading. A second bar and words keep only the rows that contain one of them. ``findings`` in place of
columns lists the findings of the record, ``claims`` which of a paper's conclusions hold in a table of
``statespan reproduce``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from statespan.papers.markdown import fill, fill_page, marker, root_of

PLACE = marker(r"(?P<path>[\w/.-]+\.json): (?P<columns>[^>]*?)")
HEADINGS = {
    "name": "",
    "time_ms": "ms",
    "graph_ms": "ms as a graph",
    "floor_ms": "floor, ms",
    "ratio": "time / floor",
    "memory_mb": "MB",
    "step_ms": "ms a step",
    "overhead_percent": "added, %",
    "images_per_s": "images/s",
    "tokens_per_s": "tokens/s",
}


def filled(text: str, root: Path) -> str:
    """The text with every table regenerated from the records under ``root``; missing records leave a note."""

    def table(match: re.Match[str]) -> str:
        path = root / match["path"]
        if not path.exists():
            return f"*(not measured yet: {match['path']})*\n"
        return _table(json.loads(path.read_text()), match["columns"].strip())

    return fill(text, PLACE, table)


def _table(record: Mapping[str, Any], columns: str) -> str:
    if columns == "claims":
        rows = [f"| {claim['text']} | {claim['verdict']} |" for claim in record["claims"]]
        return "\n".join(["| the paper says | here |", "|---|---|", *rows, ""])
    machine, versions = record["machine"], record["versions"]
    where = ["", f"{machine['device']}, torch {versions['torch']}, {record['date'][:10]}.", ""]
    if columns == "findings":
        findings = record["findings"]
        if isinstance(findings, Mapping):
            findings = [f"{name}: {value}" for name, value in findings.items()]
        return "\n".join([*(f"- {finding}" for finding in findings), *where])
    settings, figures, *words = (part.strip() for part in columns.split("|"))
    names, numbers = ([_heading(column) for column in part.split(",")] for part in (settings, figures))
    words_kept = [word.strip() for word in words[0].split(",")] if words else [""]
    lines = [
        "| " + " | ".join(heading for _, heading in (*names, *numbers)) + " |",
        "|" + "---|" * len(names) + "---:|" * len(numbers),
    ]
    for row in record["rows"]:
        if any(word in row["name"] for word in words_kept):
            cells = [str(row.get(name, row["setting"].get(name, ""))) for name, _ in names]
            cells += [_figure(row.get(name, row["extra"].get(name)), row["status"]) for name, _ in numbers]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, *where])


def _heading(column: str) -> tuple[str, str]:
    """The name of a column in the record, and its heading."""
    name, _, heading = (part.strip() for part in column.partition(" as "))
    return name, heading or HEADINGS.get(name, name)


def _figure(value: float | None, status: str) -> str:
    if value is None:
        return "" if status == "ok" else status
    return f"{value:.1e}" if abs(value) < 1e-3 else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def main(paths: list[str]) -> None:
    """Fill the tables of these files, which must be in a checkout with ``results``."""
    for path in map(Path, paths):
        fill_page(path, partial(filled, root=root_of(path)))


if __name__ == "__main__":
    main(sys.argv[1:])
