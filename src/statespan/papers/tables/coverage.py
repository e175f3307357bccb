"""The numbers of the papers' tables with and without a recipe.

``python -m statespan.papers.tables.coverage docs/reproduce.md`` fills every place of the form

    <!-- recipes: coverage -->
    <!-- end -->
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

from statespan.papers import markdown
from statespan.papers import recipes as paper_recipes
from statespan.papers.records.matching import FORMS
from statespan.papers.records.record import named_recipe
from statespan.papers.records.text_table import TextTable
from statespan.papers.tables.registry import TABLES
from statespan.papers.tables.spec import Printed, Trained
from statespan.train import recipes

PLACE = markdown.marker("recipes: coverage")


def tables_of(text: str) -> list[str]:
    """The tables, or sections, that a recipe names.

    Example:
        >>> tables_of("S4 Table 4, S4D Table 5"), tables_of("S4 Tables 6, 12"), tables_of("S4 section 4.3")
        (['S4 Table 4', 'S4D Table 5'], ['S4 Table 6', 'S4 Table 12'], ['S4 section 4.3'])
    """
    names = []
    for paper, numbers, section in re.findall(r"(S4D?) (?:Tables? (\w+(?:, \d+\w?)*)|(section [\d.]+))", text):
        names += [f"{paper} {section}"] if section else [f"{paper} Table {number}" for number in numbers.split(", ")]
    return names


def covered() -> dict[str, tuple[int, set[str]]]:
    """For each table, how many of its numbers have a recipe, with or without overrides, and which recipes."""
    numbers: Counter[str] = Counter()
    used: dict[str, set[str]] = {}
    for name in recipes.names():
        printed_in = named_recipe(name).about.table
        places = tables_of(printed_in)
        for row in recipes.rows(name):
            place = re.match(r"(Table \w+|section [\d.]+),", row.label)
            assert place is not None  # a header that test_recipes.py refuses
            places.append(f"{printed_in.partition(' ')[0]} {place[1]}")
        for place_name in places:
            numbers[place_name] += not name.endswith(FORMS)
            used.setdefault(place_name, set()).add(name)
    return {name: (numbers[name], used[name]) for name in sorted(numbers, key=_order)}


def without() -> dict[str, list[str]]:
    """For each table, the models whose numbers have no recipe."""
    models = {}
    for name, make in TABLES.items():
        paper, kind, number = re.fullmatch(r"(s4d?)-(table|section)(.+)", name).groups()  # type: ignore[union-attr]
        entries = make().entries
        trained = {entry.row for entry in entries if isinstance(entry, Trained)}
        printed = [entry.row for entry in entries if isinstance(entry, Printed) and entry.row not in trained]
        rows = dict.fromkeys(row.partition(" (ours")[0] for row in printed)
        models[f"{paper.upper()} {'Table' if kind == 'table' else kind} {number}"] = list(rows)
    return models


def table() -> str:
    """The coverage table as Markdown."""
    run, others, tables = paper_recipes.ours(), without(), covered()
    heads = ("table", "numbers with a recipe", "recipes", "run here", "models without a recipe")
    rows = [
        (name, str(count), str(len(used)), str(len(used & run.keys())), ", ".join(others.get(name, [])))
        for name, (count, used) in tables.items()
    ]
    names = recipes.names()
    ours = sum(named_recipe(name).about.number is None for name in names)
    count = f"{len(names)} recipes, {ours} of them for no number of these papers; {len(run)} were run."
    return "\n".join([*TextTable(heads, rows, (0, 4)).markdown(), "", count, ""])


def filled(text: str) -> str:
    """The text with every table regenerated."""
    return markdown.fill(text, PLACE, lambda match: table())


def _order(name: str) -> tuple[str, int, str]:
    number = re.search(r"\d+", name.partition(" ")[2])
    return name.partition(" ")[0], 100 if "section" in name else int(number[0]) if number else 0, name


if __name__ == "__main__":
    for page in sys.argv[1:]:
        markdown.fill_page(Path(page), filled)
