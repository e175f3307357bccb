"""What installed packages add to statespan, for ``statespan train --plugins``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from statespan import _plugins
from statespan._plugins import Offer, PluginError
from statespan._registry import Registry
from statespan.cli import common

NONE = """No installed package adds anything. To add a layer, put its class in a package with this in pyproject.toml:

  [project.entry-points."statespan.layers"]
  mine = "my_package:Mine"

Install the package, and use model.layer=mine. docs/extending.md also shows initializations, datasets, models,
optimizers, schedules, metrics, recipes and commands."""


class Added(NamedTuple):
    """What a package adds to a group, or why it cannot.

    Example:
        >>> Added(offer=None, names=("conv", "lstm")).problem
        ''
    """

    offer: Offer
    names: tuple[str, ...]
    problem: str = ""


def show() -> None:
    """Print a row for each package and group, then the problems."""
    rows = installed()
    if not rows:
        common.say(NONE)
        return
    table = common.table("package", "version", "group", "names", wrapped=["names"])
    packages: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        names = packages.setdefault((row.offer.package, row.offer.version, row.offer.group), [])
        names.extend(row.names)
    for key, names in packages.items():
        table.add_row(*key, ", ".join(names) or "nothing")
    common.terminal().print(table)
    for row in rows:
        if row.problem:
            common.say(f"left out: {row.problem}")


def installed() -> list[Added]:
    """What packages other than statespan add. This imports all of it."""
    rows = []
    for group, names_of in _groups().items():
        for offer in _plugins.offers(group):
            if offer.package == _plugins.OWN:
                continue
            try:
                rows.append(Added(offer, names_of(offer)))
            except PluginError as error:
                rows.append(Added(offer, (), str(error)))
    return sorted(rows, key=lambda row: row.offer.package)


def _groups() -> dict[str, Callable[[Offer], tuple[str, ...]]]:
    """For each group, a function from an entry point to the names that it adds."""
    from statespan.data.registry import REGISTRY
    from statespan.models.config import ADDED_LAYERS
    from statespan.models.registry import ADDED_MODELS
    from statespan.ssm.inits import ADDED_INITS
    from statespan.train.parts import METRICS, OPTIMIZERS, SCHEDULES

    registries: tuple[Registry[Any], ...] = (
        ADDED_LAYERS, ADDED_INITS, REGISTRY, ADDED_MODELS, OPTIMIZERS, SCHEDULES, METRICS,
    )  # fmt: skip
    groups: dict[str, Callable[[Offer], tuple[str, ...]]] = {each.group: _named(each) for each in registries}
    return {**groups, "statespan.recipes": _recipes, "statespan.commands": _command, "statespan.plots": _module}


def _named(registry: Registry[Any]) -> Callable[[Offer], tuple[str, ...]]:
    def names(offer: Offer) -> tuple[str, ...]:
        if registry.by_module:
            _plugins.load(offer)
            return tuple(name for name, owner in registry.owners().items() if owner.startswith(f"{offer.owner} ("))
        if offer.name in registry.built_in:
            raise PluginError(f"the {registry.kind} {offer.name!r} of {offer.owner} has the name of a built-in one")
        try:
            registry.find(offer.name)
        except PluginError:
            raise
        except ValueError as error:  # not a name
            raise PluginError(f"{offer.owner}: {error}") from error
        return (offer.name,)

    return names


def _recipes(offer: Offer) -> tuple[str, ...]:
    from statespan.train import recipes

    theirs = recipes.in_folder(Path(str(_plugins.load(offer).__file__)).parent)
    if taken := [name for name, content in theirs.items() if recipes.content(name) != content]:
        raise PluginError(f"the recipe {taken[0]!r} of {offer.owner} has the name of another one")
    return tuple(theirs)


def _command(offer: Offer) -> tuple[str, ...]:
    from statespan.cli.app import COMMANDS

    if offer.name in COMMANDS:
        raise PluginError(f"the command {offer.name!r} of {offer.owner} has the name of a built-in one")
    return _module(offer)


def _module(offer: Offer) -> tuple[str, ...]:
    _plugins.load(offer)
    return (offer.name,)
