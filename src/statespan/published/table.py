"""Tables of results, made from the records: no number is typed by hand.

``python -m statespan.published.table README.md docs/results.md`` fills every place of the form

    <!-- results/tasks: short -->
    <!-- end -->

with a table of the tasks; "long" has a line for each recipe and every column. A task without a record says so.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from statespan.published.record import model_name, read_records, seconds_before
from statespan.published.tasks import DRAWN, MADE, TASKS, Task, judged, other, paper, show, value

PLACE = re.compile(r"(<!-- (?P<path>[\w/.-]+): (?P<kind>short|long) -->\n)(?P<table>.*?)(<!-- end -->)", re.S)
NOT_YET = "not run yet"
SHORT = ("task", "paper", "ours", "parameters", "time", "on")
LONG = ("task", "recipe", "paper", "aim", "ours", "seeds", "rows", "parameters", "epochs", "time", "on", "record")
NUMBERS = {"paper", "aim", "ours", "parameters", "epochs", "time"}
# options of datasets that change what is trained on, and the values that do not
CHANGES = {"augment": False, "warp": False, "shuffle": False, "hide": 0.0, "speed": 0.0, "crop": 32}
FORECASTS = "ETT, Weather forecasting"

Record = Mapping[str, Any]


class Group(NamedTuple):
    """The records of one recipe with one set of changes, by file, one for each seed."""

    recipe: str
    overrides: tuple[str, ...]
    records: dict[str, Record]

    def mean(self, task: Task) -> float:
        """Over the seeds."""
        return fmean(number for record in self.records.values() if (number := value(record, task)) is not None)

    def mark(self) -> str:
        """Signs behind the number, see :func:`mark`."""
        return mark(next(iter(self.records.values())))

    def judged(self, task: Task) -> float:
        """The mean in validation."""
        return fmean(judged(record, task) for record in self.records.values())


def mark(record: Record) -> str:
    """Signs of a record: † if the training data was changed, ‡ if trained weights were begun with."""
    data = record["recipe"]["data"]
    changed = any(data.get(option, nothing) != nothing for option, nothing in CHANGES.items())
    signs = ("†" if changed else "") + ("‡" if record.get("start") else "")
    return f" {signs}" if signs else ""


def groups(task: Task, records: Mapping[str, Record]) -> list[Group]:
    """The runs of a task, the best in validation first."""
    found: dict[tuple[str, tuple[str, ...]], dict[str, Record]] = {}
    for file, record in records.items():
        if task.holds(record):
            key = (record["recipe"]["name"], tuple(record["overrides"]))
            found.setdefault(key, {})[file] = record
    made = [Group(*key, some) for key, some in found.items()]
    return sorted(made, key=lambda group: group.judged(task), reverse=task.larger)


def filled(text: str, root: Path, up: str = "") -> str:
    """The text with every table made anew from the records under ``root``; ``up`` leads from the page to it."""

    def table(match: re.Match[str]) -> str:
        records = read_records(root / match["path"])
        body = make(records, match["kind"], f"{up}{match['path']}", up)
        return f"{match[1]}{body}{match[5]}"

    return PLACE.sub(table, text)


def make(records: Mapping[str, Record], kind: str, folder: str, up: str = "") -> str:
    """A table as Markdown."""
    columns = SHORT if kind == "short" else LONG
    lines = ["| " + " | ".join(columns) + " |", "|" + "".join("---:|" if c in NUMBERS else "---|" for c in columns)]
    known: set[str] = set()
    for task in TASKS:
        found = groups(task, records)
        known |= {file for group in found for file in group.records}
        some: Sequence[Group | None] = found[:1] if kind == "short" else found
        lines += [_line(_cells(task, group, folder), columns) for group in some or [None]]
    lines.append(_line(_forecasts(up), columns))
    if kind == "long":
        others = _others({file: record for file, record in records.items() if file not in known})
        lines += [_line(_cells(task, group, folder), columns) for task, group in others]
    lines += ["", *_notes(kind, "".join(lines)), ""]
    return "\n".join(lines)


def _cells(task: Task, group: Group | None, folder: str) -> dict[str, str]:
    sign = "≥" if task.larger else "≤"
    cells = {
        "task": task.name,
        "paper": paper(task) or "–",
        "aim": "report" if task.aim is None else "> chance" if task.above else f"{sign} {task.aim:g}",
        "ours": NOT_YET,
    }
    if group is None:
        return cells
    some = list(group.records.values())
    numbers = [(record["seed"], value(record, task)) for record in some]
    changed = f" `{' '.join(group.overrides)}`" if group.overrides else ""
    return cells | {
        "recipe": group.recipe + changed,
        "ours": show(group.mean(task), task.metric) + group.mark(),
        "seeds": ", ".join(f"{show(number, task.metric)} ({seed})" for seed, number in numbers if number is not None),
        "rows": _rows(some[0].get("rows") or {}),
        "parameters": _count(some[0]["parameters"]),
        "epochs": _spread([record["epochs"] for record in some], "{:.4g}"),
        "time": _spread([(record["wall_seconds"] + seconds_before(record)) / 60 for record in some], "{:.3g}") + " min",
        "on": ", ".join(sorted({_device(record) for record in some})),
        "record": " ".join(f"[{record['seed']}]({folder}/{file})" for file, record in group.records.items()),
    }


def _forecasts(up: str) -> dict[str, str]:
    where = f"see [time series]({'timeseries.md' if up else 'docs/timeseries.md'})"
    return {"task": FORECASTS, "recipe": "etth1-s4 …", "paper": "S4 Table 9", "aim": "Table 9", "ours": where}


def _others(records: Mapping[str, Record]) -> list[tuple[Task, Group]]:
    """Records of tasks that are not in the list, such as small ones of our own."""
    found: dict[tuple[str, tuple[str, ...]], dict[str, Record]] = {}
    for file, record in records.items():
        found.setdefault((record["recipe"]["name"], tuple(record["overrides"])), {})[file] = record
    made = []
    for key, some in found.items():
        one = next(iter(some.values()))
        made.append((other(one, model_name(one)), Group(*key, some)))
    return made


def _notes(kind: str, table: str) -> list[str]:
    short = "Test accuracy in %, RMSE (BIDMC), perplexity (WikiText-2, hidden tokens) or bits a pixel (MNIST density). "
    paper_says = "*paper*: the best of S4 and S4D. *ours*: the mean over seeds, each run a file in `results/tasks`. "
    time = "*time*: compiling, training and validation."
    options = ", ".join(f"`data.{option}`" for option in CHANGES)
    if "†" in table:
        time += f" †: the training data was changed at random ({options}); the papers' was not, as far as they say."
    if "‡" in table:
        time += " ‡: begun with the weights of another recipe, whose time is counted, too."
    if kind == "short":
        made = ", ".join(task.name for task in TASKS if task.note in (MADE, DRAWN))
        time += f" {made}: of data made here by the benchmark's rules, not those of its release."
        return [short + paper_says + "Of several recipes the one that is best in validation. " + time]
    notes = [f"- {task.name}: {task.note}." for task in TASKS if task.note]
    return [short + paper_says + time + " *seeds*: each number, and its seed. *rows*: train, test.", "", *notes]


def _line(cells: Mapping[str, str], columns: Sequence[str]) -> str:
    return "| " + " | ".join(cells.get(column, "").replace("|", "\\|") for column in columns) + " |"


def _spread(numbers: list[float], form: str) -> str:
    low, high = form.format(min(numbers)), form.format(max(numbers))
    return low if low == high else f"{low} to {high}"


def _rows(rows: Mapping[str, int]) -> str:
    return " / ".join(f"{rows[split]:,}" for split in ("train", "test") if split in rows)


def _count(number: int) -> str:
    return f"{number / 1e6:.2f} M" if number >= 100_000 else f"{number:,}"


def _device(record: Record) -> str:
    name = re.sub(r"\((R|TM)\)|Processor|CPU| @.*?(?=,|$)", "", record["hardware"]["device"])
    processes = record["hardware"].get("processes", 1)
    return " ".join(name.split()).replace(" ,", ",") + (f" × {processes}" if processes > 1 else "")


def fill_page(path: Path) -> None:
    """Fill the tables of a page that lies in a checkout, beside ``results`` or below."""
    from statespan.train.fsio import replace_file

    root = next(p for p in path.resolve().parents if (p / "results").is_dir())
    depth = len(path.resolve().relative_to(root).parts) - 1
    text = path.read_text(encoding="utf-8")
    made = filled(text, root, "../" * depth)
    if made != text:
        replace_file(path, made.encode())


def main(paths: list[str]) -> None:
    """Fill the tables of these pages."""
    for path in paths:
        fill_page(Path(path))


if __name__ == "__main__":
    main(sys.argv[1:])
