"""The tables of both papers, built from tables.yaml and from the recipes, which state what the papers report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from statespan.papers.records.record import named_recipe
from statespan.papers.tables.spec import Column, Compared, Measured, PaperTable, Printed, TableEntry, Trained
from statespan.train import recipes


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
    names = [column["name"] for column in columns]
    entries = [entry for section in table.get("before", ()) for entry in _printed(section, names)]
    for row, options in table.get("rows", {}).items():
        options = {"recipe": options} if isinstance(options, str) else options
        entries += _row(row, {"label": table.get("label", ""), **options}, columns)
    if "compared" in table:
        entries += _settings(table["compared"], names)
    entries += [entry for section in table.get("after", ()) for entry in _printed(section, names)]
    headings = tuple(Column(column["name"], column.get("lower", False), column.get("unit", "")) for column in columns)
    main = tuple(table.get("main", ()))
    return PaperTable(name, table["title"], table["about"], headings, tuple(entries), table.get("seeds", 1), main)


def _printed(section: str, columns: Sequence[str]) -> Iterator[TableEntry]:
    """The entries of models that are not trained here."""
    for row, numbers in sections("printed.yaml")[section].items():
        yield from (Printed(row, column, number) for column, number in zip(columns, numbers))


def _row(row: str, options: Mapping[str, Any], columns: Sequence[Mapping[str, Any]]) -> Iterator[TableEntry]:
    numbers = options.get("numbers", [None] * len(columns))
    spreads = options.get("spreads", [None] * len(columns))
    for column, number, spread in zip(columns, numbers, spreads):
        name = column["name"]
        if options.get("only", name) != name:
            continue
        if "measured" in column:
            yield Measured(row, name, number, name=options["name"], **column["measured"])
        elif "recipe" in options:
            if "printed" in column:
                section, place = column["printed"]
                number = sections("printed.yaml")[section][row][place]
            recipe = "-".join(filter(None, (column.get("recipe"), options["recipe"])))
            value = column.get("value", "test")
            reported, overrides = _reported(recipe, options["label"].format(row=row), value)
            paper = (reported if number is None else number) + (f" ({spread})" if spread else "")
            yield Trained(row, name, paper, recipe, overrides, value, options.get("against", ""))
        elif number is not None:
            yield Printed(row, name, number)


def _reported(recipe: str, label: str, value: str) -> tuple[str, tuple[str, ...]]:
    """What the paper reports and the overrides that lead there: the recipe's own, or of its row with this label."""
    about = named_recipe(recipe).about
    if label:
        row = next(row for row in recipes.rows(recipe) if row.label == label)
        return "" if row.number == "?" else row.number, row.overrides
    if value == "mae":
        return about.note.rpartition("MAE ")[2], ()
    return "" if about.number is None else str(about.number), ()


def _settings(section: str, columns: Sequence[str]) -> Iterator[TableEntry]:
    for row, (recipe, *paper) in sections("printed.yaml")[section].items():
        chosen = named_recipe(recipe)
        model, train = chosen.model, chosen.train
        ours = (
            model["n_layers"], model["d_model"], model["norm"], model["prenorm"], model["dropout"], train.lr,
            train.batch, train.epochs, train.weight_decay,
        )  # fmt: skip
        for column, printed, setting in zip(columns, paper, ours):
            shown = str(setting).lower() if isinstance(setting, (bool, str)) else f"{setting:g}"
            yield Compared(row, column, printed, shown)
