"""Tables of the documentation, made from the records: no figure is typed by hand.

``python -m statespan.papers.bench.document docs/engine.md`` fills every place of the form

    <!-- results/bench/op-cuda.json: name, heads, length | time_ms, graph_ms -->
    <!-- end -->

with a table of the record's rows: the settings named before the bar, the figures behind it. ``S4 as S4D-LegS`` gives a
column another heading. A second bar and words keep only the rows that contain one of them. ``findings`` in the place of
columns is for what the record says in words, ``claims`` for which of a paper's conclusions hold in a table of
``statespan reproduce``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PLACE = re.compile(r"(<!-- (?P<path>[\w/.-]+\.json): (?P<columns>[^>]*?) -->\n)(?P<table>.*?)(<!-- end -->)", re.S)
HEADINGS = {
    "name": "",
    "time_ms": "ms",
    "graph_ms": "ms as a graph",
    "floor_ms": "floor, ms",
    "ratio": "time / floor",
    "memory_mb": "MB",
    "error": "error",
    "step_ms": "ms a step",
    "overhead_percent": "added, %",
    "images_per_s": "images/s",
    "tokens_per_s": "tokens/s",
}


def filled(text: str, root: Path) -> str:
    """The text with every table made anew from the records under ``root``; missing records leave a note."""

    def table(match: re.Match[str]) -> str:
        path = root / match["path"]
        if not path.exists():
            body = f"*(not measured yet: {match['path']})*\n"
        else:
            body = _table(json.loads(path.read_text()), match["columns"])
        return f"{match[1]}{body}{match[5]}"

    return PLACE.sub(table, text)


def _table(record: Mapping[str, Any], columns: str) -> str:
    if columns.strip() == "claims":
        rows = [f"| {claim['text']} | {claim['verdict']} |" for claim in record["claims"]]
        return "\n".join(["| the paper says | here |", "|---|---|", *rows, ""])
    machine, versions = record["machine"], record["versions"]
    where = ["", f"{machine['device']}, torch {versions['torch']}, {record['date'][:10]}.", ""]
    if columns.strip() == "findings":
        found = record["findings"]
        said = [f"{what}: {value}" for what, value in found.items()] if isinstance(found, Mapping) else found
        return "\n".join([*(f"- {each}" for each in said), *where])
    settings, figures, *words = (part.strip() for part in columns.split("|"))
    heads = {name: head for c in (settings + "," + figures).split(",") for name, head in [_heading(c)]}
    names, numbers = ([_heading(c)[0] for c in part.split(",")] for part in (settings, figures))
    wanted = [w.strip() for w in words[0].split(",")] if words else [""]
    lines = [
        "| " + " | ".join(heads[c] for c in (*names, *numbers)) + " |",
        "|" + "---|" * len(names) + "---:|" * len(numbers),
    ]
    for row in record["rows"]:
        if any(word in row["name"] for word in wanted):
            cells = [str(row.get(c, row["setting"].get(c, ""))) for c in names]
            cells += [_figure(row.get(c, row["extra"].get(c)), row["status"]) for c in numbers]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, *where])


def _heading(column: str) -> tuple[str, str]:
    """The name of a column in the record, and its heading."""
    name, _, head = (part.strip() for part in column.partition(" as "))
    return name, head or HEADINGS.get(name, name)


def _figure(value: float | None, status: str) -> str:
    if value is None:
        return "" if status == "ok" else status
    return f"{value:.1e}" if abs(value) < 1e-3 else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def main(paths: list[str]) -> None:
    """Fill the tables of these files, which lie in a checkout beside ``results``."""
    for path in map(Path, paths):
        root = next(p for p in path.resolve().parents if (p / "results").is_dir())
        path.write_text(filled(path.read_text(), root))


if __name__ == "__main__":
    main(sys.argv[1:])
