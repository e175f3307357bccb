"""The registry of reproducible tables and figures."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from statespan._suggest import suggest
from statespan.papers.tables.definitions import build, sections
from statespan.papers.tables.figures import FIGURES
from statespan.papers.tables.spec import PaperTable

TABLES: dict[str, Callable[[], PaperTable]] = {name: partial(build, name) for name in sections("tables.yaml")}
FILTERS = "s4-figure2"


@dataclass(frozen=True)
class Item:
    """A table or figure: its name and a one-line summary."""

    name: str
    summary: str

    @property
    def is_table(self) -> bool:
        """Whether it is a table."""
        return self.name in TABLES


def items() -> list[Item]:
    """All items in the papers' order.

    Example:
        >>> [item.name for item in items()][:3]
        ['s4-table2', 's4-table3', 's4-table4']
    """
    names = [name for name in TABLES if name.startswith("s4-")] + [FILTERS]
    names += [name for name in TABLES if name.startswith("s4d-")] + list(FIGURES)
    return [Item(name, _summary(name)) for name in names]


def _summary(name: str) -> str:
    if name == FILTERS:
        return "Filters of a trained model as images."
    if name in TABLES:
        return sections("tables.yaml")[name]["summary"]
    return (inspect.getdoc(FIGURES[name]) or "").partition("\n")[0]


def choose(words: list[str]) -> list[str]:
    """Resolve names: full names, common prefixes, "figures", "tables" or "all".

    Raises:
        ValueError: One means nothing.

    Example:
        >>> choose(["s4d-table3", "s4-table2"])
        ['s4d-table3a', 's4d-table3b', 's4-table2']
    """
    known = [item.name for item in items()]
    chosen: list[str] = []
    for word in words:
        if word == "all":
            chosen += known
        elif word in known:
            chosen.append(word)
        elif word in ("figures", "tables"):
            chosen += [name for name in known if f"-{word[:-1]}" in name]
        else:
            begun = [name for name in known if name.startswith(word)]
            if word[-1:].isdigit():  # s4d-table1 is not the beginning of s4d-table10
                begun = [name for name in begun if not name[len(word) :][:1].isdigit()]
            if not begun or not word:
                hint = suggest(word, [*known, "all", "figures", "tables"])
                raise ValueError(f"NAME must be a table or figure that --list shows, got {word!r}{hint}")
            chosen += begun
    return list(dict.fromkeys(chosen))
