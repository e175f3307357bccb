"""``statespan recipes``: the command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from statespan._fail import fail
from statespan._suggest import suggest
from statespan.cli import common
from statespan.papers import recipes as paper_recipes

if TYPE_CHECKING:
    from statespan.train.recipes import RecipeEntry

HELP = """List what can be trained, with the results.

\b
Examples:
  statespan recipes                    all of them
  statespan recipes smnist             those with smnist in their name or task
  statespan recipes etth1-s4           one, with the rows of the papers' tables that its overrides give
  statespan recipes smnist-s4d --yaml  the whole recipe with its header, to save as a file and edit

Names are task-model-initialization. Without the initialization a name means LegS, the default of the layers: scifar-s4d
is scifar-s4d-legs, unless a recipe has exactly that name.

"ours" is the mean over seeds, with standard deviation and number of seeds, of the runs closest to the paper's row; the
signs are explained below the table. With --results, "ours" comes from the runs in your folder.
"""


def recipes(
    word: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A recipe, or part of names.", show_default=False)
    ] = None,
    yaml: Annotated[bool, typer.Option("--yaml", help="Print the recipe itself.")] = False,
    results: Annotated[
        Path | None,
        typer.Option(help="A folder of runs to show. [default: the records of this package]", show_default=False),
    ] = None,
) -> None:
    """List recipes; :data:`HELP` is the text for users."""
    common.need_training("recipes")
    from statespan.train import recipes as catalogue

    if yaml:
        _print_yaml(word)
        return
    entries = catalogue.table()
    matches = [entry for entry in entries if word is None or word in entry.name or word in entry.task]
    name = None if word is None else catalogue.find(word)
    if name is not None and not matches:  # an alias
        matches = [entry for entry in entries if entry.name == name]
    if not matches:
        words = {part for entry in entries for part in (entry.name, *entry.name.split("-"), *entry.task.split(", "))}
        hint = suggest(word or "", sorted(words), "see statespan recipes")
        fail(f"no recipe has {word!r} in its name or task{hint}")
    numbers = paper_recipes.ours()
    if results is not None:
        if not results.is_dir():
            fail(f"--results must be a folder of runs, got {results}")
        from statespan.papers.records.ours import ours

        numbers = ours(results)
    _table(matches, numbers)
    if name is not None and (name == word or len(matches) == 1):
        for row in catalogue.rows(name):  # other rows of the papers' tables, and the overrides that reach them
            changes = " ".join(row.overrides) or "without overrides"
            common.terminal().print(f"  {row.label}: {row.number}  {changes}", markup=False, soft_wrap=True)
        _sweep(name)


def _sweep(name: str) -> None:
    """Print the values of a recipe's sweep."""
    from statespan.train import recipes as catalogue

    recipe = catalogue.read(name)
    if recipe.sweep:
        values = "; ".join(f"{key}: {', '.join(map(str, values))}" for key, values in recipe.sweep.items())
        count = catalogue.combinations(recipe)
        line = f"  sweep of {count} combinations, {values}  statespan ablate {name} --sweep"
        common.terminal().print(line, markup=False, soft_wrap=True)


def _print_yaml(name: str | None) -> None:
    """Print the complete recipe of this name, to save and edit."""
    from statespan.train import recipes as catalogue

    if name is None or catalogue.find(name) is None:
        got = "" if name is None else f", got {name!r}"
        hint = suggest(name or "", catalogue.names(), "see statespan recipes")
        fail(f"--yaml needs the name of a recipe{got}{hint}")
    print(catalogue.text(name), end="")


def _table(entries: list[RecipeEntry], ours: dict[str, str]) -> None:
    from statespan.papers.records.signs import MEANINGS

    console = common.terminal()
    ordered = sorted(entries, key=lambda entry: (entry.name.startswith("ablation"), entry.name))
    papers = {entry.name: f"{entry.number} ¶" if entry.select == "test" else entry.number for entry in entries}
    rows = [(one.name, one.task, one.table, papers[one.name], ours.get(one.name, "")) for one in ordered]
    table = common.table("name", "task", "table", "paper", "ours", right=("paper", "ours"))
    for row in rows:
        table.add_row(*row)
    if not common.fits(table):  # names say what the task is, and the heading that these are tables
        table = common.table("name", "table", "paper", "ours", right=("paper", "ours"), wrapped=("table", "ours"))
        for name, _, place, *numbers in rows:
            table.add_row(name, re.sub(" Tables?", "", place).replace("section", "sec."), *numbers)
    console.print(table)
    shown = "".join(papers[entry.name] + ours.get(entry.name, "") for entry in entries)
    for sign, meaning in MEANINGS.items():
        if sign in shown:
            console.print(f"  {sign} {meaning}", markup=False, soft_wrap=True)
    if swept := [entry.name for entry in ordered if entry.combinations]:
        console.print(f"with a sweep (statespan ablate NAME --sweep): {', '.join(swept)}", markup=False)
    console.print("statespan train NAME trains one; statespan recipes NAME --yaml shows one")
