"""The registry of reproducible tables and figures."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from statespan._suggest import suggest
from statespan.papers.tables.definitions import build, sections
from statespan.papers.tables.figures import FIGURES
from statespan.papers.tables.spec import PaperTable

TABLES: dict[str, Callable[[], PaperTable]] = {name: partial(build, name) for name in sections("tables.yaml")}
FILTERS = "s4-figure2"
NOTES = sections("notes.yaml")
"""What has no numbers to reproduce: a summary, a title and paragraphs by name."""


def summaries() -> dict[str, str]:
    """A one-line summary of each table and figure by name, in the papers' order.

    Example:
        >>> list(summaries())[:3]
        ['s4-table1', 's4-table2', 's4-table3']
    """
    every = {name: section["summary"] for name, section in {**NOTES, **sections("tables.yaml")}.items()}
    every[FILTERS] = "Filters of a trained model as images."
    every |= {name: str(figure.__doc__) for name, figure in FIGURES.items()}
    return {name: every[name] for name in sorted(every, key=_order)}


def _order(name: str) -> tuple[str, int, float, str]:
    """The papers' order: tables, then sections, then figures."""
    match = re.fullmatch(r"(s4d?)-(table|section|figure)([\d.]+)(\w?)", name)
    assert match is not None, name
    return match[1], ("table", "section", "figure").index(match[2]), float(match[3]), match[4]


def choose(words: list[str]) -> list[str]:
    """Resolve full names, common prefixes, "figures", "tables" or "all"; a ValueError suggests a name for any other.

    Example:
        >>> choose(["s4d-table3", "s4-table2"])
        ['s4d-table3a', 's4d-table3b', 's4-table2']
    """
    names = list(summaries())
    chosen: list[str] = []
    for word in words:
        if word == "all":
            chosen += names
        elif word in names:
            chosen.append(word)
        elif word in ("figures", "tables"):
            chosen += [name for name in names if f"-{word[:-1]}" in name]
        else:
            matches = [name for name in names if name.startswith(word)]
            if word[-1:].isdigit():  # s4d-table1 is not the beginning of s4d-table10
                matches = [name for name in matches if not name[len(word) :][:1].isdigit()]
            if not matches or not word:
                hint = suggest(word, [*names, "all", "figures", "tables"])
                raise ValueError(f"NAME must be a table or figure that --list shows, got {word!r}{hint}")
            chosen += matches
    return list(dict.fromkeys(chosen))
