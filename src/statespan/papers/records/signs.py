"""Signs after a number that matter when comparing it; all are derived from its record.

†  the training data was randomly augmented
‡  training started from trained weights
≠  not comparable: the data or its split differs from the papers'
§  settings were chosen after test scores had been seen, as the recipe's header says
¶  the weights were selected on the test data, as the paper did (``train.select=test``)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from statespan.data.registry import entry
from statespan.papers.records.schema import Record
from statespan.train import recipes

if TYPE_CHECKING:
    from statespan.papers.records.tasks import ResultTask

AUGMENTED, STARTED, DIFFERENT, SEEN, SELECTED = SIGNS = "†", "‡", "≠", "§", "¶"
CHANGED = "*"  # after the number of a recipe's row, if the run's settings differ from the row's
MEANINGS = {
    AUGMENTED: "augmented training data",
    STARTED: "started from trained weights",
    DIFFERENT: "not comparable with the paper: other data or another split",
    SEEN: "settings chosen after test scores had been seen",
    SELECTED: "weights selected on the test data, as the paper did",
    CHANGED: "settings that differ from the recipe's, such as fewer epochs",
}
# options of datasets that change what is trained on, and the values that do not
CHANGES: dict[str, Any] = {"augment": False, "warp": False, "shuffle": False, "hide": 0.0, "speed": 0.0, "crop": 32}
GENERATED = "generated here by the benchmark's rules, not its released files"
LISTS = "split by the archive's lists, not at random"
OVERLAP = "cropped training windows overlap test windows"


def augmented(record: Record) -> bool:
    """Whether the training data was randomly augmented."""
    options = record["recipe"]["data"]
    return any(options.get(option, nothing) != nothing for option, nothing in CHANGES.items())


def is_plain(record: Record) -> bool:
    """Whether a run followed the papers' protocol: unmodified training data, random initial weights."""
    return not augmented(record) and not record.get("start")


def difference(record: Record, task: ResultTask) -> str:
    """How the data or its split differs from the papers'; "" if it does not, or no paper has a number.

    A record does not say whether a set that can be generated was generated or read from files, so it counts as
    generated.
    """
    if not task.published:
        return ""
    options = record["recipe"]["data"]
    files = entry(options["name"]).files
    if files and all(source.optional for source in files):
        return GENERATED
    crop = CHANGES["crop"]
    if options.get("crop", crop) != crop and options.get("split", "windows") == "windows":
        return OVERLAP
    if options["name"] == "sc10" and options.get("split") == "official":
        return LISTS
    rows = (record.get("rows") or {}).get("train")
    if rows is not None and rows in task.known:
        return f"trained on {task.known[rows]}"
    if rows is not None and rows < task.whole:
        return f"trained on {rows:,} {task.part}"
    return ""


def seen(record: Record) -> bool:
    """Whether a record's settings depend on test scores, by its recipe's header."""
    recipe, name = record["recipe"], record["recipe"]["name"]
    return name in recipes.names() and any(_holds(late.setting, recipe) for late in recipes.late_settings(name))


def selected(record: Record) -> bool:
    """Whether the test data selected the weights."""
    return (record["recipe"].get("train") or {}).get("select") == "test"


def signs(record: Record, task: ResultTask) -> str:
    """All signs of a record, with a space in front; "" if it has none."""
    applies = {
        AUGMENTED: augmented(record),
        STARTED: bool(record.get("start")),
        DIFFERENT: bool(difference(record, task)),
        SEEN: seen(record),
        SELECTED: selected(record),
    }
    text = "".join(sign for sign, holds in applies.items() if holds)
    return f" {text}" if text else ""


def _holds(setting: str, recipe: Mapping[str, Any]) -> bool:
    """Whether a recipe has a setting of the form ``key=value``."""
    if setting == "always":
        return True
    key, _, wanted = setting.partition("=")
    value: Any = recipe
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return str(value).lower() == wanted.lower()
