"""Tables of results, generated from the records; no number is typed by hand.

``python -m statespan.papers.records.table README.md docs/results.md`` fills every place of the form

    <!-- results/tasks: short -->
    <!-- end -->

with a table of the tasks. "short" has one row per task: the result under the papers' protocol, the result with
augmentation or pretrained weights in a column of its own, and the recipes of both. "long" has one row per recipe and
every column. "overview" is :mod:`statespan.papers.records.overview`. Tasks without a record are marked.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from statespan._text import metric_number
from statespan.papers import markdown
from statespan.papers.records.record import model_name, seconds_before
from statespan.papers.records.schema import Record, read_runs
from statespan.papers.records.signs import (
    AUGMENTED,
    CHANGES,
    DIFFERENT,
    SEEN,
    SELECTED,
    SIGNS,
    STARTED,
    augmented,
    difference,
    is_plain,
    selected,
)
from statespan.papers.records.signs import signs as signs_of
from statespan.papers.records.tasks import TASKS, ResultTask, other, paper, paper_augmented, value
from statespan.papers.records.text_table import TextTable

PLACE = markdown.marker(r"(?P<path>[\w/.-]+): (?P<kind>short|long|overview)")
NOT_YET, NONE = "not run yet", "–"
SHORT = ("task", "paper", "ours", "paper, augmented", "ours, with tricks", "recipes")
LONG = (
    "task", "recipe", "paper", "aim", "ours", "seeds", "rows", "parameters", "epochs", "time", "on", "commit", "record",
)  # fmt: skip
NUMBERS = {*SHORT[1:5], "aim", "parameters", "epochs", "time"}
FORECASTS = {
    "task": "ETT, Weather forecasting", "recipe": "etth1-s4 …", "paper": "S4 Table 9", "aim": "Table 9"
}  # fmt: skip
UNITS = (
    "Metrics: test accuracy in %; RMSE for BIDMC; perplexity for WikiText-2 and hidden tokens; bits per pixel for "
    "MNIST density. Several seeds are shown as mean ± standard deviation (number of seeds)."
)


class RunGroup(NamedTuple):
    """The records of one recipe with one set of overrides, by file, one per seed.

    Example:
        >>> group = RunGroup("smnist-s4", ("train.epochs=100",), records={})
        >>> group.recipe, group.minutes
        ('smnist-s4', [])
    """

    recipe: str
    overrides: tuple[str, ...]
    records: dict[str, Record]

    def text(self, task: ResultTask) -> str:
        """The mean over the seeds, its spread if there are several, and the signs."""
        numbers = [number for record in self.records.values() if (number := value(record, task)) is not None]
        return summary(numbers, task.metric) + self.signs(task)

    def signs(self, task: ResultTask) -> str:
        """Signs after the number; see :mod:`statespan.papers.records.signs`."""
        every = "".join(signs_of(record, task) for record in self.records.values())
        signs = "".join(sign for sign in SIGNS if sign in every)
        return f" {signs}" if signs else ""

    def validation(self, task: ResultTask) -> float:
        """The mean validation score, by which runs are ranked, independent of test scores."""
        worst = float("-inf") if task.larger else float("inf")
        return fmean(float(record["valid"].get(task.metric, worst)) for record in self.records.values())

    @property
    def is_plain(self) -> bool:
        """Whether the runs followed the papers' protocol."""
        return all(is_plain(record) for record in self.records.values())

    @property
    def minutes(self) -> list[float]:
        """The minutes of each run, including the training of its starting weights."""
        return [(record["wall_seconds"] + seconds_before(record)) / 60 for record in self.records.values()]


def summary(numbers: Sequence[float], metric: str) -> str:
    """A mean as printed in tables, with standard deviation and number of seeds if there are several.

    Example:
        >>> summary([99.4, 99.6], "accuracy"), summary([0.332], "rmse")
        ('99.50 ± 0.14 (2)', '0.332')
    """
    text = metric_number(fmean(numbers), metric)
    return text if len(numbers) == 1 else f"{text} ± {metric_number(stdev(numbers), metric)} ({len(numbers)})"


def groups(task: ResultTask, records: Mapping[str, Record]) -> list[RunGroup]:
    """The runs of a task, ordered by validation score, best first; those selected on the test data come last."""
    unsorted = _grouped({file: record for file, record in records.items() if task.holds(record)})
    ranked = sorted(unsorted, key=lambda group: group.validation(task), reverse=task.larger)
    return sorted(ranked, key=lambda group: any(map(selected, group.records.values())))


def _grouped(records: Mapping[str, Record]) -> list[RunGroup]:
    """Group runs that differ only in the seed; older runs may have used an earlier version of the recipe."""
    by_settings: dict[tuple[str, tuple[str, ...], bool], dict[str, Record]] = {}
    for file, record in records.items():
        key = (record["recipe"]["name"], tuple(record["overrides"]), is_plain(record))
        by_settings.setdefault(key, {})[file] = record
    return [RunGroup(recipe, overrides, runs) for (recipe, overrides, _), runs in by_settings.items()]


def filled(text: str, root: Path, up: str = "") -> str:
    """The text with every table regenerated from the records under ``root``; ``up`` leads from the page to it."""

    def table(match: re.Match[str]) -> str:
        if match["kind"] == "overview":
            from statespan.papers.records import overview  # it is built on this module

            return overview.make(read_runs(root / match["path"]))
        return make(read_runs(root / match["path"]), match["kind"], f"{up}{match['path']}", up)

    return markdown.fill(text, PLACE, table)


def make(records: Mapping[str, Record], kind: str, folder: str, up: str = "") -> str:
    """A table as Markdown."""
    columns = SHORT if kind == "short" else LONG
    rows: list[dict[str, str]] = []
    shown: list[tuple[ResultTask, RunGroup]] = []
    for task in TASKS:
        known = {file for _, group in shown for file in group.records}
        remaining = {file: record for file, record in records.items() if file not in known}
        task_groups = groups(task, records if task.short else {} if kind == "short" else remaining)
        if not task.short and not task_groups:
            continue
        if kind == "short":
            best = [next((group for group in task_groups if group.is_plain is plain), None) for plain in (True, False)]
            rows.append(_short(task, *best))
            task_groups = [group for group in best if group is not None]
        else:
            task_groups.sort(key=lambda group: not group.is_plain)  # the papers' protocol first, each best first
            rows += [_cells(task, group, folder) for group in task_groups] or [_cells(task, None, folder)]
        shown += [(task, group) for group in task_groups]
    see_forecasts = f"see [time series]({'timeseries.md' if up else 'docs/timeseries.md'})"
    rows.append({**FORECASTS, "ours": see_forecasts})
    if kind == "long":
        known = {file for _, group in shown for file in group.records}
        others = []  # tasks that are not in the list, such as small ones of our own
        for group in _grouped({file: record for file, record in records.items() if file not in known}):
            first = next(iter(group.records.values()))
            others.append((other(first, model_name(first)), group))
        rows += [_cells(task, group, folder) for task, group in others]
        shown += others
    words = [number for number, column in enumerate(columns) if column not in NUMBERS]
    text_table = TextTable(columns, [[row.get(column, "") for column in columns] for row in rows], words)
    notes = _short_notes(shown) if kind == "short" else _long_notes(shown)
    return "\n".join([*text_table.markdown(), "", *notes, ""])


def _short(task: ResultTask, plain: RunGroup | None, tricks: RunGroup | None) -> dict[str, str]:
    return {
        "task": task.name,
        "paper": paper(task) or NONE,
        "ours": NONE if plain is None else plain.text(task),
        "paper, augmented": paper_augmented(task) or NONE,
        "ours, with tricks": NONE if tricks is None else tricks.text(task),
        "recipes": ", ".join(dict.fromkeys(f"`{group.recipe}`" for group in (plain, tricks) if group)),
    }


def _cells(task: ResultTask, group: RunGroup | None, folder: str) -> dict[str, str]:
    sign = "≥" if task.larger else "≤"
    cells = {
        "task": task.name,
        "paper": paper(task) or NONE,
        "aim": "report" if task.aim is None else "> chance" if task.above else f"{sign} {task.aim:g}",
        "ours": NOT_YET,
    }
    if group is None:
        return cells
    runs = list(group.records.values())
    rows, parameters = runs[0].get("rows") or {}, runs[0]["parameters"]
    if augmented(runs[0]) and paper_augmented(task):
        cells["paper"] = f"{paper_augmented(task)} {AUGMENTED}"
    numbers = [(record["seed"], value(record, task)) for record in runs]
    changed = f" `{' '.join(group.overrides)}`" if group.overrides else ""
    return cells | {
        "recipe": group.recipe + changed,
        "ours": group.text(task),
        "seeds": ", ".join(
            f"{metric_number(number, task.metric)} ({seed})" for seed, number in numbers if number is not None
        ),
        "rows": " / ".join(f"{rows[split]:,}" for split in ("train", "test") if split in rows),
        "parameters": f"{parameters / 1e6:.2f} M" if parameters >= 100_000 else f"{parameters:,}",
        "epochs": spread_text([record["epochs"] for record in runs], "{:.4g}"),
        "time": spread_text(group.minutes, "{:.3g}") + " min",
        "on": ", ".join(sorted({device(record) for record in runs})),
        "commit": ", ".join(dict.fromkeys(str(record["versions"].get("commit", ""))[:10] for record in runs)),
        "record": " ".join(f"[{record['seed']}]({folder}/{file})" for file, record in group.records.items()),
    }


def _short_notes(shown: Sequence[tuple[ResultTask, RunGroup]]) -> list[str]:
    text = (
        f"{UNITS} *paper*: the best of S4 and S4D. *ours*: the papers' protocol (unmodified training data, random "
        "initial weights). *with tricks*: augmented training data or pretrained weights; the papers report "
        "augmentation for sCIFAR only (S4 section 4.3). *recipes*: the recipe of *ours*, then that of *with tricks*, "
        f"before overrides. {NONE}: no such run or number. If several recipes exist, the one with the best validation "
        "score is shown."
    )
    if shown:
        minutes = [time for _, group in shown for time in group.minutes]
        devices = sorted({device(record) for _, group in shown for record in group.records.values()})
        text += f" Each run took {spread_text(minutes, '{:.3g}')} min ({' or '.join(devices)})."
    return [text, "", *sign_notes(shown)]


def _long_notes(shown: Sequence[tuple[ResultTask, RunGroup]]) -> list[str]:
    text = (
        f"{UNITS} *paper*: the best of S4 and S4D; with {AUGMENTED}, the S4 paper's result with augmentation (section "
        "4.3). *time*: compilation, training and validation. *seeds*: each result with its seed. *rows*: training and "
        "test."
    )
    notes: dict[str, list[str]] = {}
    seen = {task.name for task, _ in shown}
    for task in TASKS:
        if task.note and (task.short or task.name in seen):
            notes.setdefault(task.note, []).append(task.name)
    return [text, "", *sign_notes(shown), *(f"- {', '.join(names)}: {note}." for note, names in notes.items())]


def sign_notes(shown: Sequence[tuple[ResultTask, RunGroup]]) -> list[str]:
    """A list that explains the signs in a table and missing results."""
    used = "".join(group.signs(task) for task, group in shown)
    notes = []
    if AUGMENTED in used:
        options = ", ".join(f"`data.{option}`" for option in CHANGES)
        notes.append(f"{AUGMENTED}: the training data was randomly augmented ({options}).")
    if STARTED in used:
        notes.append(f"{STARTED}: initialised with the weights of another recipe; the time includes its training.")
    if DIFFERENT in used:
        reasons: dict[str, dict[str, None]] = {}
        for task, group in shown:
            for record in group.records.values():
                if why := difference(record, task):
                    reasons.setdefault(why, {})[task.name] = None
        why = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
        notes.append(f"{DIFFERENT}: not comparable with the paper's number: the data or its split differs ({why}).")
    if SEEN in used:
        notes.append(f"{SEEN}: some settings were chosen after seeing test scores; the recipe's header says which.")
    if SELECTED in used:
        notes.append(f"{SELECTED}: the test data selected the weights, as in the paper; the number is too good.")
    plain = {task.name for task, group in shown if group.is_plain}
    notes += [f"{task.name}: {task.scratch}." for task in TASKS if task.scratch and task.name not in plain]
    return [f"- {note}" for note in notes]


def spread_text(numbers: list[float], form: str) -> str:
    """The range of some numbers, or the number if they are all alike."""
    smallest, largest = form.format(min(numbers)), form.format(max(numbers))
    return smallest if smallest == largest else f"{smallest} to {largest}"


def device(record: Record) -> str:
    """The machine of a record, in short."""
    name = re.sub(r"\((R|TM)\)|Processor|CPU| @.*?(?=,|$)", "", record["machine"]["device"])
    processes = record["machine"].get("processes", 1)
    return " ".join(name.split()).replace(" ,", ",") + (f" × {processes}" if processes > 1 else "")


def fill_page(path: Path) -> None:
    """Fill the tables of a page in a checkout, beside ``results`` or below."""
    root = markdown.root_of(path)
    depth = len(path.resolve().relative_to(root).parts) - 1
    markdown.fill_page(path, lambda text: filled(text, root, "../" * depth))


if __name__ == "__main__":
    for page in sys.argv[1:]:
        fill_page(Path(page))
