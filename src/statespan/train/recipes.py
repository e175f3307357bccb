"""The recipes of installed packages, found by the entry points of the group ``statespan.recipes``.

The header of a file says which table and number it is for, what it needs, and where its settings come from. A file
whose table has rows that differ in an option only lists them as rows, each with its number and its overrides. Settings
that were chosen after test scores had been seen are listed too, so that tables can mark the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from statespan import _plugins

if TYPE_CHECKING:
    from statespan.train.config import Recipe

__all__ = ["Choice", "Entry", "Row", "choices", "names", "path", "read", "rows", "table"]


class Entry(NamedTuple):
    """A recipe in one line: what it trains on and what the paper reached; number is "" where no paper has it."""

    name: str
    task: str
    table: str
    number: str


class Row(NamedTuple):
    """Another row of a table, reached from a recipe by overrides; number is as the table prints it."""

    label: str
    number: str
    overrides: tuple[str, ...]


class Choice(NamedTuple):
    """A setting that was chosen after test scores had been seen: as ``key=value``, or "always"; and why."""

    setting: str
    why: str


def _files() -> dict[str, Path]:
    """The files of all recipes by name."""
    folders = [Path(str(module.__file__)).parent for module in _plugins.modules("statespan.recipes").values()]
    return {file.stem: file for folder in folders for file in folder.glob("*.yaml")}


def names() -> list[str]:
    """The names of all recipes.

    Example:
        >>> "digits-s4d" in names()
        True
    """
    return sorted(_files())


def path(name: str) -> Path:
    """The file of a recipe.

    Args:
        name: One of :func:`names`.

    Raises:
        ConfigError: There is no such recipe.

    Example:
        >>> path("digits-s4d").name
        'digits-s4d.yaml'
        >>> path("digit-s4d")
        Traceback (most recent call last):
        ...
        statespan.train.strict.ConfigError: there is no recipe 'digit-s4d'; did you mean digits-s4d?
    """
    from statespan._suggest import suggest
    from statespan.train.strict import ConfigError, show

    known = _files()
    if name not in known:  # also keeps names such as ../x from being read
        text = show(name)
        raise ConfigError(f"there is no recipe {text!r}{suggest(text, known)}")
    return known[name]


def read(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe and apply dotted overrides.

    Args:
        name: One of :func:`names`.
        overrides: Such as ``"train.lr=0.001"``.

    Raises:
        ConfigError: There is no such recipe, or an override is wrong.

    Example:
        >>> read("smnist-s4d", ["train.epochs=1"]).train.epochs
        1
    """
    from statespan.train.config import read_recipe

    return read_recipe(path(name), overrides)


def rows(name: str) -> list[Row]:
    """The other rows of the tables that this recipe reaches by overrides.

    Args:
        name: One of :func:`names`.

    Example:
        >>> rows("scifar-s4")[0]
        Row(label='section 4.3, flips and crops', number='93.16', overrides=('data.augment=true',))
    """
    found = []
    for line in path(name).read_text(encoding="utf-8").splitlines():
        if line.startswith("#   ") and line.count(" | ") == 2:
            label, number, overrides = line.removeprefix("#   ").split(" | ")
            found.append(Row(label, number, () if overrides == "none" else tuple(overrides.split())))
    return found


def choices(name: str) -> list[Choice]:
    """The settings of a recipe that were chosen after test scores had been seen, as its header lists them.

    Args:
        name: One of :func:`names`.

    Example:
        >>> [choice.setting for choice in choices("smnist-s4")], choices("lra-image-s4")
        (['data.warp=true'], [])
    """
    found = []
    lines = iter(path(name).read_text(encoding="utf-8").splitlines())
    for line in lines:
        if line.startswith("# After test scores "):
            for item in lines:
                if not item.startswith("#   "):
                    break
                setting, _, why = item.removeprefix("#   ").partition(" | ")
                found.append(Choice(setting, why))
    return found


def table() -> list[Entry]:
    """All recipes in one line each, as ``statespan recipes`` lists them.

    Example:
        >>> next(entry for entry in table() if entry.name == "lra-listops-s4")
        Entry(name='lra-listops-s4', task='listops, classifier', table='S4 Table 4, S4D Table 5', number='59.60')
    """
    found = []
    for name in names():
        recipe = read(name)
        number = "" if recipe.about.number is None else str(recipe.about.number)
        found.append(Entry(name, f"{recipe.data['name']}, {recipe.model['name']}", recipe.about.table, number))
    return found
