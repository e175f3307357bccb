"""Recipe families: YAML files whose rows are recipes that share most of their settings.

A family is a tree. A node has settings (the sections of a recipe, or parts of them), fields that say where they come
from (:data:`FIELDS`), and below it ``groups`` of nodes or ``rows``, which are the recipes by name. A node applies
to everything below it, unless a lower node overrides it; sections are merged key by key.

Only plain data is read. The result is a complete recipe as text, which :mod:`statespan.train.config` checks like any
other.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Any

from statespan._suggest import suggest
from statespan.train.strict import ConfigError, dump, parse, show

SECTIONS = ("data", "model", "train", "sweep")
ABOUT = ("table", "number", "time", "note")
FIELDS = {
    "title": "the recipe in one sentence; {label} stands for the label",
    "label": "the name of the model in the paper",
    "table": "the paper's table",
    "number": "its number",
    "note": "what the number measures",
    "needs": "data and hardware",
    "time": "how long training takes",
    "settings": "where the settings come from",
    "remarks": "anything else, in paragraphs",
    "first": "the commands that train this recipe and those it starts from, a line each",
    "after_test_scores": "lines of 'setting | why': what was chosen after test scores had been seen",
    "others": "lines of 'row | number | overrides': other rows of the table",
    "seen": "the records of our runs",
    "superseded": "records that no longer count",
}
_FAMILY = re.compile(r"^(?:rows|groups):", re.MULTILINE)


def is_family(text: str) -> bool:
    """Whether a YAML file is a family rather than a single recipe."""
    return _FAMILY.search(text) is not None


def expand(text: str, where: str) -> dict[str, dict[str, Any]]:
    """The rows of a family by name, each with all that the nodes above it say; ``where`` names it in messages."""
    rows: dict[str, dict[str, Any]] = {}
    for name, row in _leaves(parse(text, where), {}, where):
        if name in rows:
            raise ConfigError(f"{where} has two rows {show(name)}; each name may occur once")
        rows[name] = row
    return rows


def complete(name: str, row: dict[str, Any]) -> str:
    """The recipe of an expanded row as self-contained YAML with its header.

    Example:
        >>> family = '''
        ... title: "{label} on digits."
        ... data: {name: digits}
        ... model: {name: classifier, layer: s4d}
        ... rows:
        ...   digits-legs: {label: S4D-LegS}
        ...   digits-inv: {label: S4D-Inv, model: {ssm: {init: inv}}}
        ... '''
        >>> print(complete("digits-inv", expand(family, "the family")["digits-inv"]))
        # S4D-Inv on digits.
        #
        # Paper: none
        # Needs: nothing special
        # Time: not measured yet
        name: digits-inv
        data:
          name: digits
        model:
          name: classifier
          layer: s4d
          ssm:
            init: inv
        <BLANKLINE>
    """
    sections = {key: _ordered(row[key]) for key in SECTIONS if key in row}
    about = {key: row[key] for key in ABOUT if key in row}
    return _header(row) + dump({"name": name, **sections, **({"about": about} if about else {})})


def _leaves(node: Any, inherited: dict[str, Any], where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the complete node of every row below a node."""
    _check_node(node, where, "groups", "rows")
    here = _merge(inherited, {key: value for key, value in node.items() if key not in ("groups", "rows")})
    groups, rows = node.get("groups", []), node.get("rows", {})
    if not isinstance(groups, list) or not isinstance(rows, dict):
        raise ConfigError(f"{where}: groups must be a list and rows a mapping, got {show(groups)} and {show(rows)}")
    for group in groups:
        yield from _leaves(group, here, where)
    for name, row in rows.items():
        _check_node(row, f"{where}: {name}")
        yield name, _merge(here, row)


def _check_node(node: Any, where: str, *branches: str) -> None:
    """Reject a node with other keys than sections, which are mappings, and fields, which are text."""
    if not isinstance(node, dict):
        raise ConfigError(f"{where} is {show(node)}; allowed: a mapping")
    allowed = (*SECTIONS, *FIELDS, *branches)
    for key, value in node.items():
        if key not in allowed:
            hint = suggest(key, allowed) or f"; allowed: {', '.join(allowed)}"
            raise ConfigError(f"{where}: {show(key)} is not a key of a family{hint}")
        if key in SECTIONS and not isinstance(value, dict):
            raise ConfigError(f"{where}: {key} is {show(value)}; allowed: a mapping")
        if key in FIELDS and not isinstance(value, str):
            raise ConfigError(f"{where}: {key} is {show(value)}; allowed: text")
    for key, bars in (("others", 2), ("after_test_scores", 1)):
        for line in node.get(key, "").splitlines():
            if line.count(" | ") != bars:
                raise ConfigError(f"{where}: {key} has the line {show(line)}; allowed: {FIELDS[key]}")


def _merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Mappings key by key, at every depth; anything else is replaced."""
    merged = dict(base)
    for key, value in changes.items():
        earlier = merged.get(key)
        merged[key] = _merge(earlier, value) if isinstance(earlier, dict) and isinstance(value, dict) else value
    return merged


def _ordered(section: dict[str, Any]) -> dict[str, Any]:
    """The keys that identify a section come first, wherever in the family they are set."""
    first = [key for key in ("name", "d_model", "d_state", "n_layers", "layer", "ssm") if key in section]
    return {key: section[key] for key in (*first, *section)}


def _header(node: dict[str, Any]) -> str:
    """The header comment of a recipe, from which :mod:`statespan.train.recipes` reads other rows and late settings."""
    number = f"{node.get('table', '')}: {node['number']} ({node.get('note', '')})" if "number" in node else "none"
    lines = [f"# {node.get('title', '').replace('{label}', node.get('label', ''))}", "#", f"# Paper: {number}"]
    lines += _wrapped("Needs: ", node.get("needs", "nothing special"))
    lines += _wrapped("Time: ", node.get("time", "not measured yet"))
    lines += _listed("Train in this order:", node.get("first", ""))
    lines += _wrapped("Settings: ", node.get("settings", ""))
    for paragraph in node.get("remarks", "").splitlines():
        lines += _wrapped("", paragraph)
    lines += _listed("Rows (table and row | number | overrides):", node.get("others", ""))
    lines += _listed("After test scores (settings | why):", node.get("after_test_scores", ""))
    for key in ("seen", "superseded"):
        lines += _wrapped(f"{key.capitalize()}: ", node.get(key, ""))
    return "".join(f"{line}\n" for line in lines)


def _wrapped(heading: str, text: str) -> list[str]:
    """A paragraph as comment lines; none for an empty text."""
    if not text.strip():
        return []
    text = f"{heading}{text.strip()}"
    return textwrap.wrap(
        text, 120, initial_indent="# ", subsequent_indent="#   ", break_long_words=False, break_on_hyphens=False
    )


def _listed(heading: str, text: str) -> list[str]:
    """A heading and a list, one entry per line; none for an empty text."""
    return [f"# {heading}", *(f"#   {line}" for line in text.splitlines())] if text else []
