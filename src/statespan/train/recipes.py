"""The recipes of installed packages, found by the entry points of the group ``statespan.recipes``.

A YAML file in such a package is one recipe, or a family of them (:mod:`statespan.train._family`). Either way a recipe
is self-contained text. Its header says which table and number of a paper it is for, what it needs, and where its
settings come from. It lists other rows of the table that differ in an option only, each with its number and
overrides, and the settings that were chosen after test scores had been seen, so that tables can mark the results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from statespan import _plugins
from statespan._suggest import suggest
from statespan.train._family import complete, expand, is_family
from statespan.train.strict import ConfigError, show

if TYPE_CHECKING:
    from statespan.train.config import Recipe

__all__ = ["LateSetting", "PaperRow", "RecipeEntry", "find", "late_settings", "names", "read", "rows", "table", "text"]


class RecipeEntry(NamedTuple):
    """A line of the list of recipes: its data, the paper's number ("" if none) and the split that selects weights.

    Example:
        >>> entry = RecipeEntry("smnist-s4", task="smnist", table="S4 Table 6", number="99.63")
        >>> entry.select, entry.combinations
        ('valid', 0)
    """

    name: str
    task: str
    table: str
    number: str
    select: str = "valid"
    combinations: int = 0
    """Those of its sweep; 0 without one."""


class PaperRow(NamedTuple):
    """Another row of a table, reached from a recipe by overrides; ``number`` is as printed there.

    Example:
        >>> row = PaperRow("S4D-Lin", "99.5", ("model.ssm.init=lin",))
        >>> row.label, row.overrides
        ('S4D-Lin', ('model.ssm.init=lin',))
    """

    label: str
    number: str
    overrides: tuple[str, ...]


class LateSetting(NamedTuple):
    """A setting chosen after seeing test scores: ``key=value`` or "always", and the reason.

    Example:
        >>> late = LateSetting("train.lr=0.004", "a higher rate was better in the test")
        >>> late.setting
        'train.lr=0.004'
    """

    setting: str
    why: str


@cache
def _rows_of(file: Path, modified: int) -> dict[str, dict[str, Any] | str]:
    """The content of a file by recipe: rows of a family, or the text of a single recipe.

    ``modified`` is the file's time stamp: an edited file is read again.
    """
    text = file.read_text(encoding="utf-8")
    return dict(expand(text, file.name)) if is_family(text) else {file.stem: text}


def _known() -> dict[str, dict[str, Any] | str]:
    """The content of all files by recipe."""
    folders = [Path(str(module.__file__)).parent for module in _plugins.modules("statespan.recipes").values()]
    known: dict[str, dict[str, Any] | str] = {}
    for folder in folders:
        known = in_folder(folder) | known  # our own come first, and keep their names
    return known


def in_folder(folder: Path) -> dict[str, dict[str, Any] | str]:
    """The content of the files of a folder by recipe."""
    known: dict[str, dict[str, Any] | str] = {}
    for file in sorted(folder.glob("*.yaml")):
        known |= _rows_of(file, file.stat().st_mtime_ns)
    return known


def content(name: str) -> dict[str, Any] | str | None:
    """The content of the recipe of exactly this name."""
    return _known().get(name)


def names() -> list[str]:
    """The names of all recipes.

    Example:
        >>> "digits-s4d" in names()
        True
    """
    return sorted(_known())


def find(name: str) -> str | None:
    """The full name of a recipe, or None if there is none.

    Names are task-model-initialization, such as "scifar-s4d-inv". Two aliases work wherever a recipe is named, unless
    another recipe has that very name. Without an initialization a name means LegS, the default of the layers:
    "scifar-s4d" is "scifar-s4d-legs". And a recipe whose name leaves its initialization out also has the longer name:
    "lra-image-s4-legs" is "lra-image-s4".

    Example:
        >>> find("scifar-s4d"), find("lra-image-s4-legs"), find("digits-s4d-lin"), find("digit-s4d")
        ('scifar-s4d-legs', 'lra-image-s4', 'digits-s4d', None)
    """
    known = _known()
    if name in known:
        return name
    if f"{name}-legs" in known:
        return f"{name}-legs"
    shorter, _, init = name.rpartition("-")
    return shorter if shorter in known and read(shorter).model.get("ssm", {}).get("init") == init else None


def text(name: str) -> str:
    """A recipe as self-contained YAML with its header, to save, edit and train.

    Example:
        >>> text("lra-image-s4d-inv").splitlines()[0]
        '# S4D-Inv on LRA Image.'
        >>> text("digit-s4d")
        Traceback (most recent call last):
        ...
        statespan.train.strict.ConfigError: there is no recipe 'digit-s4d'; did you mean digits-s4d?
    """
    full = find(name)
    if full is None:
        shown = show(name)
        raise ConfigError(f"there is no recipe {shown!r}{suggest(shown, names())}")
    row = _known()[full]
    return row if isinstance(row, str) else complete(full, row)


def read(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe and apply dotted overrides.

    Example:
        >>> read("smnist-s4d", ["train.epochs=1"]).train.epochs
        1
    """
    from statespan.train.config import read_recipe

    return read_recipe(text(name), overrides)


def _listed(name: str, heading: str) -> list[str]:
    """The lines of a list in the header of a recipe."""
    lines = iter(text(name).splitlines())
    for line in lines:
        if line.startswith(f"# {heading} "):
            return [item.removeprefix("#   ") for item in takewhile(lambda item: item.startswith("#   "), lines)]
    return []


def rows(name: str) -> list[PaperRow]:
    """The other rows of the tables that this recipe reaches by overrides.

    Example:
        >>> rows("scifar-s4")[0]
        PaperRow(label='section 4.3, flips and crops', number='93.16', overrides=('data.augment=true',))
    """
    listed = [line.split(" | ") for line in _listed(name, "Rows")]
    return [
        PaperRow(label, number, () if overrides == "none" else tuple(overrides.split()))
        for label, number, overrides in listed
    ]


def late_settings(name: str) -> list[LateSetting]:
    """The settings of a recipe that were chosen after seeing test scores, as listed in its header.

    Example:
        >>> [late.setting for late in late_settings("smnist-s4")], late_settings("lra-image-s4")
        (['data.warp=true'], [])
    """
    return [LateSetting(*line.split(" | ", 1)) for line in _listed(name, "After test scores")]


def combinations(recipe: Recipe) -> int:
    """The number of combinations of a recipe's sweep; 0 without one."""
    return math.prod(map(len, recipe.sweep.values())) if recipe.sweep else 0


def table() -> list[RecipeEntry]:
    """One line for each recipe, as ``statespan recipes`` lists them.

    Example:
        >>> entry = next(entry for entry in table() if entry.name == "lra-listops-s4")
        >>> entry.task, entry.table, entry.number
        ('listops, classifier', 'S4 Table 4, S4D Table 5', '59.60')
    """
    entries = []
    for name in names():
        recipe = read(name)
        task = f"{recipe.data['name']}, {recipe.model['name']}"
        number = "" if recipe.about.number is None else str(recipe.about.number)
        entries.append(RecipeEntry(name, task, recipe.about.table, number, recipe.train.select, combinations(recipe)))
    return entries
