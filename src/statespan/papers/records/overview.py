"""The overview of results: the papers' number of each task, ours by their protocol and with tricks, the best known.

It fills a place of the form ``<!-- results/tasks: overview -->``; see :mod:`statespan.papers.records.table`. The best
known results are in best.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

from statespan.papers.records import table
from statespan.papers.records.schema import Record
from statespan.papers.records.table import NONE, RunGroup
from statespan.papers.records.tasks import TASKS, ResultTask, paper
from statespan.papers.records.text_table import TextTable

HEADS = ("task", "paper", "plain", "with tricks", "best known today", "time, hardware")
RECALLED = "≈"
_FILE = Path(__file__).with_name("best.yaml")


class BestKnown(NamedTuple):
    """The best published result for a task.

    Example:
        >>> str(BestKnown("99.7", "a model", 2023, recalled=True)), str(BestKnown("99.7"))
        ('≈99.7 (a model, 2023)', '99.7 (source not noted)')
    """

    number: str
    model: str = ""
    year: int | None = None
    recalled: bool = False  # not read again in its paper

    def __str__(self) -> str:
        """The number with its source, marked if it is only recalled."""
        source = f"{self.model}, {self.year}" if self.model else "source not noted"
        return f"{RECALLED * self.recalled}{self.number} ({source})"


@cache
def best_known() -> dict[str, BestKnown]:
    """The best published results by the key of their task.

    Example:
        >>> print(best_known()["listops"], best_known()["smnist"])
        63.85 (B2S6, 2025) ≈99.72 (CCNN, 2022)
    """
    entries = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return {key: BestKnown(**entry) for key, entry in entries.items()}


def make(records: Mapping[str, Record]) -> str:
    """The overview as Markdown."""
    rows, shown = [], []
    for task in TASKS:
        groups = table.groups(task, records)
        plain, tricks = (next((one for one in groups if one.is_plain is kind), None) for kind in (True, False))
        best = best_known().get(task.key)
        cells = (_number(plain, task), _number(tricks, task), NONE if best is None else str(best))
        rows.append([task.name, paper(task) or NONE, *cells, _times(plain, tricks)])
        shown += [(task, group) for group in (plain, tricks) if group is not None]
    lines = TextTable(HEADS, rows, words=(0, len(HEADS) - 1)).markdown()
    return "\n".join([*lines, "", NOTE, "", *table.sign_notes(shown), *_task_notes(), ""])


NOTE = (
    "Test accuracy in %; RMSE for BIDMC; mean squared error for forecasts; bits per dimension for images, per byte for "
    "enwik8. *paper*: the best of S4 and S4D without augmentation. *plain*: the papers' protocol (unmodified training "
    "data, random initial weights), as mean ± standard deviation (number of seeds). *with tricks*: augmented training "
    "data or pretrained weights. If several recipes exist, the one with the best validation score is shown. *time*: of "
    f"one run, plain; with tricks. {NONE}: no such run or number. *best known today*: of any model; "
    f"{RECALLED}: recalled, not read again in its paper, so check it before you cite it."
)


def _number(group: RunGroup | None, task: ResultTask) -> str:
    """Mean, spread and number of seeds, with signs."""
    if group is None:
        return NONE
    text, signs = group.text(task), group.signs(task)
    return text if len(group.records) > 1 else f"{text.removesuffix(signs)} (1){signs}"


def _times(plain: RunGroup | None, tricks: RunGroup | None) -> str:
    groups = [group for group in (plain, tricks) if group is not None]
    if not groups:
        return NONE
    devices = sorted({table.device(record) for group in groups for record in group.records.values()})
    times = ["–" if group is None else table.spread_text(group.minutes, "{:.3g}") for group in (plain, tricks)]
    return f"{'; '.join(times)} min, {' or '.join(devices)}"


def _task_notes() -> Sequence[str]:
    notes: dict[str, list[str]] = {}
    for task in TASKS:
        if task.note:
            notes.setdefault(task.note, []).append(task.name)
    return [f"- {', '.join(names)}: {note}." for note, names in notes.items()]
