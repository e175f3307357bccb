"""Plug-ins of installed packages, found through entry points.

Only installed packages are asked, so a recipe or a file can never choose code. The groups are:

- ``statespan.commands``: modules with a function of the command's name, and its ``HELP``.
- ``statespan.datasets``: modules that register datasets when they are imported.
- ``statespan.plots``: modules with a function ``plot`` from folders to a figure, for ``statespan plot NAME``.
- ``statespan.recipes``: packages with YAML files in their folder.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from types import ModuleType


def names(group: str) -> list[str]:
    """The names of a group's entry points, without importing them.

    Example:
        >>> names("statespan.datasets")
        ['papers']
    """
    return sorted({entry.name for entry in entry_points(group=group)})


@cache
def modules(group: str) -> dict[str, ModuleType]:
    """The modules that installed packages offer to a group, by the names of their entry points.

    Example:
        >>> sorted(modules("statespan.datasets"))
        ['papers']
    """
    return {entry.name: entry.load() for entry in sorted(entry_points(group=group), key=lambda entry: entry.name)}
