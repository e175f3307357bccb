"""What installed packages add, found through their entry points.

Only installed packages are searched, so a recipe or a file can never choose code. In most groups an entry point has the
name of the part and refers to the object itself, so names are known before anything is imported:

- ``statespan.layers``, ``.inits``, ``.models``, ``.optimizers``, ``.schedules``, ``.metrics``: see
  :class:`statespan._registry.Registry`.

In the other groups they refer to modules:

- ``statespan.commands``: modules with ``HELP`` and a function that has the command's name.
- ``statespan.datasets``: modules that register datasets when they are imported.
- ``statespan.plots``: modules with a function ``plot`` that turns folders into a figure, for ``statespan plot NAME``.
- ``statespan.recipes``: packages with YAML files in their folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, NamedTuple

from statespan._fail import complain

OWN = "statespan"
LABELLED = ("statespan.datasets", "statespan.recipes")
"""Groups in which the name of an entry point is only a label; several packages may use the same."""

_importing: ContextVar[str | None] = ContextVar("importing", default=None)


class PluginError(ValueError):
    """A part of an installed package cannot be used; the message is one line that names the package."""


class Offer(NamedTuple):
    """An entry point of an installed package."""

    group: str
    name: str
    target: str
    """The module or object that it refers to, as ``module`` or ``module:object``."""
    package: str
    version: str

    @property
    def owner(self) -> str:
        """The package and its version."""
        return f"{self.package} {self.version}".rstrip()

    @property
    def root(self) -> str:
        """The top-level module."""
        return self.target.partition(":")[0].partition(".")[0]


@cache
def offers(group: str) -> tuple[Offer, ...]:
    """The entry points of a group, statespan's own first; nothing is imported.

    Example:
        >>> [(offer.name, offer.package) for offer in offers("statespan.datasets")]
        [('papers', 'statespan')]
    """
    found = {_offer(entry) for entry in entry_points(group=group)}
    return tuple(sorted(found, key=lambda offer: (offer.package != OWN, offer.name, offer.package)))


def _offer(entry: EntryPoint) -> Offer:
    metadata = None if entry.dist is None else entry.dist.metadata
    package = metadata["Name"] if metadata is not None and "Name" in metadata else "an unnamed package"
    version = metadata["Version"] if metadata is not None and "Version" in metadata else ""
    return Offer(entry.group, entry.name, entry.value, package, version)


def load(offer: Offer) -> Any:
    """Import the target of an entry point, once.

    Raises:
        PluginError: It cannot be imported. Later calls raise the same error.
    """
    found = _load(offer)
    if isinstance(found, PluginError):
        raise found
    return found


@cache
def _load(offer: Offer) -> Any:
    try:
        with importing(offer.owner):
            return EntryPoint(offer.name, offer.target, offer.group).load()
    except (Exception, SystemExit) as error:  # another package may raise anything
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        return PluginError(f"the package {offer.owner} cannot be imported ({offer.target}): {problem}")


@contextmanager
def importing(owner: str | None) -> Iterator[None]:
    """Record a package as the owner of all that is registered in this context."""
    token = _importing.set(owner)
    try:
        yield
    finally:
        _importing.reset(token)


def importer() -> str | None:
    """The package that is being imported, if any."""
    return _importing.get()


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

    A module that cannot be imported, or whose name is taken, is left out and reported in one line on standard error.

    Example:
        >>> sorted(modules("statespan.datasets"))
        ['papers']
    """
    imported: dict[str, ModuleType] = {}
    owners: dict[str, Offer] = {}
    for offer in offers(group):
        key = f"{offer.package}:{offer.name}" if group in LABELLED and offer.package != OWN else offer.name
        if key in owners:
            complain(f"{group}: {offer.name} of {offer.owner} is left out: {owners[key].owner} uses the same name")
            continue
        try:
            imported[key] = load(offer)
            owners[key] = offer
        except PluginError as error:
            complain(f"{error}; the rest of statespan works without it")
    return imported
