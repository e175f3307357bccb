"""Our result of each recipe, in one line; ``statespan recipes`` shows it beside the paper's number.

``python -m statespan.papers.records.ours`` writes the file that comes with the package, from the records of a checkout;
``statespan publish`` does it too. Of several runs of a recipe those count that are nearest to the paper's row: the same
task first, then the papers' protocol, then the fewest changes of the model and of other settings. Seeds are averaged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from statespan._io import replace_file
from statespan.papers import recipes as paper_recipes
from statespan.papers.records.matching import SPEED, TRICKS
from statespan.papers.records.record import differences, named_recipe
from statespan.papers.records.schema import Record, every_run
from statespan.papers.records.signs import CHANGED, is_plain, signs
from statespan.papers.records.table import summary
from statespan.papers.records.tasks import TASKS, other


def ours(folder: Path) -> dict[str, str]:
    """Our number for each recipe that has one, with its signs, from the results below a folder."""
    runs_by_recipe: dict[str, dict[tuple[str, ...], dict[int, Record]]] = {}
    for record in every_run(folder):
        try:
            name, metric = record["recipe"]["name"], record["metric"]
            numbers = [float(record[part][metric]) for part in ("test", "valid")]
            changes = [text for text in differences(name, record["recipe"]) if text.partition("=")[0] not in SPEED]
            seed = int(record["seed"])
        except (ValueError, KeyError, TypeError, AttributeError):  # of another kind, or of no recipe here
            continue
        if all(map(math.isfinite, numbers)):
            runs_by_recipe.setdefault(name, {}).setdefault(tuple(changes), {})[seed] = record
    return {name: _text(name, runs) for name, runs in sorted(runs_by_recipe.items())}


def write(root: Path) -> Path | None:
    """Write the package's file from the records of a checkout; None if ``root`` is not one."""
    target = root / "src" / "statespan" / "papers" / "recipes" / paper_recipes.OURS.name
    if not target.parent.is_dir():
        return None
    replace_file(target, content(root).encode())
    return target


def content(root: Path) -> str:
    """The content of the package's file, from the records in ``results`` of a checkout."""
    return json.dumps(ours(root / "results"), indent=1, ensure_ascii=False) + "\n"


def _text(name: str, runs: Mapping[tuple[str, ...], Mapping[int, Record]]) -> str:
    nearest = min(runs, key=lambda key: _rank(key, next(iter(runs[key].values()))))
    records = list(runs[nearest].values())
    metric = records[0]["metric"]
    part = "valid" if "validation" in named_recipe(name).about.note else "test"
    factor = 100.0 if metric == "accuracy" else 1.0
    text = summary([factor * float(record[part][metric]) for record in records], metric)
    task = next((task for task in TASKS if task.holds(records[0])), other(records[0], ""))
    sign = signs(records[0], task)
    settings = [change for change in nearest if change.partition("=")[0] not in TRICKS]
    return text + (sign or " " * bool(settings)) + (CHANGED if settings else "")


def _rank(key: tuple[str, ...], record: Record) -> tuple[int, bool, int, int]:
    """The distance of a run from the paper's row: the smallest is the nearest."""
    names = [change.partition("=")[0] for change in key]
    other_data = sum(name.startswith("data.") and name not in TRICKS for name in names)
    return other_data, not is_plain(record), sum(name.startswith("model.") for name in names), len(names)


if __name__ == "__main__":
    print(write(Path(__file__).resolve().parents[4]) or "not in a checkout")
