"""The tables of both papers, built from tables.yaml and from the recipes, which state what the papers report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from statespan.papers.records.record import named_recipe
from statespan.papers.tables.choices import LAYERS, choices, settings
from statespan.papers.tables.spec import (
    Column,
    Compared,
    Counted,
    Measured,
    PaperTable,
    Printed,
    RowMean,
    TableEntry,
    Trained,
)
from statespan.train import recipes
from statespan.train.recipes import PaperRow


@cache  # one file has the sections of all tables, and reading YAML is slow
def sections(file: str) -> dict[str, dict[str, Any]]:
    """The sections of a file beside this module."""
    return yaml.safe_load((Path(__file__).parent / file).read_text(encoding="utf-8"))


def build(name: str) -> PaperTable:
    """The table of this name."""
    table = sections("tables.yaml")[name]
    columns: list[dict[str, Any]] = [
        {"name": column} if isinstance(column, str) else column for column in table["columns"]
    ]
    baselines = table.get("baselines", {})
    entries = [entry for section in table.get("before", ()) for entry in _printed(section, columns, baselines)]
    for row, options in {**table.get("rows", {}), **_series(table.get("series", {}))}.items():
        options = {"recipe": options} if isinstance(options, str) else options
        entries += _row(row, {"label": table.get("label", ""), **options}, columns)
    if "compared" in table:
        entries += _compared(table["compared"], [column["name"] for column in columns])
    entries += [entry for section in table.get("after", ()) for entry in _printed(section, columns, baselines)]
    headings = tuple(
        Column(column["name"], column.get("lower", False), column.get("unit", ""), column.get("text", False))
        for column in columns
    )
    others = {row for section in (*table.get("before", ()), *table.get("after", ())) for row in _section(section)}
    return PaperTable(
        name, table["title"], table["about"], headings, tuple(entries), table.get("seeds", 1),
        tuple(table.get("main", ())), table.get("published", False), frozenset(others - {*table.get("own", ())}),
    )  # fmt: skip


def _section(name: str) -> dict[str, Any]:
    return sections("printed.yaml")[name]


def _printed(section: str, columns: Sequence[Mapping[str, Any]], baselines: Mapping[str, str]) -> Iterator[TableEntry]:
    """The entries of other models: those with a recipe are trained here, the others only printed."""
    for row, numbers in _section(section).items():
        for column, number in zip(columns, numbers):
            trained = None
            if row in baselines and "recipe" in column:
                trained = _baseline(row, column, number, f"{column['recipe']}-{baselines[row]}")
            yield trained or Printed(row, column["name"], number)


def _baseline(row: str, column: Mapping[str, Any], number: str, recipe: str) -> Trained | Counted | None:
    """The entry of a model of others that has a recipe here; None without one."""
    if recipe not in recipes.names():
        return None
    if "info" in column:
        return Counted(row, column["name"], number, recipe, column["info"])
    overrides: tuple[str, ...] = tuple(column.get("overrides", ()))
    if label := column.get("other_label", column.get("label")):
        found = _labelled(recipe, label)
        if found is None:
            return None
        overrides = found.overrides
    return Trained(row, column["name"], number, recipe, overrides, column.get("value", "test"))


def _row(row: str, options: Mapping[str, Any], columns: Sequence[Mapping[str, Any]]) -> Iterator[TableEntry]:
    numbers = options.get("numbers", [None] * len(columns))
    spreads = options.get("spreads", [None] * len(columns))
    for column, number, spread in zip(columns, numbers, spreads):
        name = column["name"]
        if options.get("only", name) != name:
            continue
        if "printed" in column and number is None:
            section, place = column["printed"]
            number = _section(section)[row][place]
        if "average" in column:
            yield RowMean(row, name, number or "", tuple(column["average"]))
        elif "measured" in column and "name" in options:
            ratio = {"over": options["over"], "is_ratio": True} if "over" in options else {}
            yield Measured(row, name, number, name=options["name"], **{**column["measured"], **ratio})
        elif "recipe" in options and not column.get("text"):
            recipe = "-".join(filter(None, (column.get("recipe"), options["recipe"])))
            if "info" in column:
                yield Counted(row, name, number or "", recipe, column["info"])
                continue
            value, label = column.get("value", "test"), column.get("label") or options["label"].format(row=row)
            reported, overrides = _reported(recipe, label, value)
            paper = (reported if number is None else number) + (f" ({spread})" if spread else "")
            overrides = (*overrides, *column.get("overrides", ()))
            yield Trained(row, name, paper, recipe, overrides, value, options.get("against", ""))
        elif number is not None:
            yield Printed(row, name, number)


def _series(options: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The rows of a table of forecasts: each horizon of each dataset, from the recipes' own lists."""
    rows = {}
    for dataset, recipe in options.get("recipes", {}).items():
        listed = [row.label for row in recipes.rows(recipe) if row.label.startswith(f"{options['label']}, ")]
        for label in listed:
            rows[f"{dataset}, {label.split(', ')[1].removesuffix(' steps')}"] = {"recipe": recipe, "label": label}
        if options.get("own"):
            rows[f"{dataset}, {named_recipe(recipe).data['horizon']}"] = {"recipe": recipe}
    return rows


def _labelled(recipe: str, label: str) -> PaperRow | None:
    return next((row for row in recipes.rows(recipe) if row.label == label), None)


def _reported(recipe: str, label: str, value: str) -> tuple[str, tuple[str, ...]]:
    """What the paper reports and the overrides that lead there: the recipe's own, or of its row with this label."""
    about = named_recipe(recipe).about
    if label:
        row = _labelled(recipe, label)
        assert row is not None, (recipe, label)
        if value == "mae":
            return row.label.rpartition("MAE ")[2], row.overrides
        return "" if row.number == "?" else row.number, row.overrides
    if value == "mae":
        return about.note.rpartition("MAE ")[2], ()
    return "" if about.number is None else str(about.number), ()


def _compared(section: str, columns: Sequence[str]) -> Iterator[TableEntry]:
    """What the paper lists, beside the settings of recipes or the defaults of layers."""
    for row, values in _section(section).items():
        recipe, *paper = values if row not in LAYERS else ("", *values)
        ours = settings(named_recipe(recipe), columns) if recipe else choices(row, columns)
        for column, printed, setting in zip(columns, paper, ours):
            yield Compared(row, column, printed, setting)
