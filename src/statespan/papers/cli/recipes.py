"""``statespan recipes``: the command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from statespan._fail import fail
from statespan._suggest import suggest
from statespan.cli import common
from statespan.papers import recipes as paper_recipes

if TYPE_CHECKING:
    from statespan.train.recipes import Entry, Row

HELP = """List what can be trained, with the papers' numbers and ours.

\b
Examples:
  statespan recipes                    all of them
  statespan recipes smnist             those with smnist in their name or task
  statespan recipes etth1-s4           one, and the other rows of the tables that changes of it give
  statespan recipes smnist-s4d --yaml  the whole recipe, to save as a file and change

"ours" is the mean over seeds with standard deviation and their number, of the runs that are nearest to the paper's row;
a line below explains the signs. With --results, it is what the runs in a folder of yours reached.
"""
SIGNS = {
    "†": "augmented training data",
    "‡": "begun with trained weights",
    "≠": "not comparable with the paper: other data or another split",
    "§": "settings chosen after test scores had been seen",
    "*": "other settings than the recipe's, such as fewer epochs",
}


def recipes(
    word: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A recipe, or a part of names.", show_default=False)
    ] = None,
    yaml: Annotated[bool, typer.Option("--yaml", help="Print the recipe itself.")] = False,
    results: Annotated[
        Path | None,
        typer.Option(help="Folder of runs to show instead. [default: what comes with statespan]", show_default=False),
    ] = None,
) -> None:
    """List recipes; :data:`HELP` is the text for users."""
    common.need_training()
    from statespan.train import recipes as every

    names = list(every.names())
    if yaml:
        if word not in names:
            what = "" if word is None else f", and {word!r} is none"
            fail(f"--yaml needs the name of a recipe{what}{suggest(word or '', names, 'see statespan recipes')}")
        print(every.path(word).read_text(encoding="utf-8"), end="")
        return
    found = every.table()
    chosen = [one for one in found if word is None or word in one.name or word in one.task]
    if not chosen:
        words = {part for one in found for part in (one.name, *one.name.split("-"), *one.task.split(", "))}
        hint = suggest(word or "", sorted(words), "see statespan recipes")
        fail(f"no recipe has {word!r} in its name or task{hint}")
    _table(chosen, paper_recipes.ours() if results is None else _own(results))
    if word in names:
        _rows(every.rows(word))


def _own(folder: Path) -> dict[str, str]:
    """What the runs in a folder reached."""
    if not folder.is_dir():
        fail(f"--results must be a folder of runs, got {folder}")
    from statespan.papers.records.ours import ours

    return ours(folder)


def _table(found: list[Entry], ours: dict[str, str]) -> None:
    from rich import box
    from rich.table import Table

    console = common.terminal()
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False)
    for name in ("name", "task", "table", "paper", "ours"):
        table.add_column(name, justify="right" if name in ("paper", "ours") else "left", no_wrap=name == "name")
    for one in sorted(found, key=lambda one: (one.name.startswith("ablation"), one.name)):  # what is asked for first
        table.add_row(one.name, one.task, one.table, one.number, ours.get(one.name, ""))
    console.print(table)
    shown = "".join(ours.get(one.name, "") for one in found)
    for sign, meaning in SIGNS.items():
        if sign in shown:
            console.print(f"  {sign} {meaning}", markup=False, soft_wrap=True)
    console.print("statespan train NAME trains one; statespan recipes NAME --yaml shows one")


def _rows(rows: list[Row]) -> None:
    """Other rows of the papers' tables, and what to put behind the recipe's name to get them."""
    console = common.terminal()
    for row in rows:
        changes = " ".join(row.overrides) or "as it is"
        console.print(f"  {row.label}: {row.number}  {changes}", markup=False, soft_wrap=True)
