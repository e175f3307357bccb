"""Names that users and installed packages add to the built-in ones; one :class:`Registry` per kind."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from statespan import _plugins
from statespan._plugins import OWN, Offer, PluginError
from statespan._suggest import suggest
from statespan._version import __version__

Item = TypeVar("Item")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}\Z")


class Registered(NamedTuple):
    """A registered item and who registered it."""

    item: Any
    owner: str


class Registry(Generic[Item]):
    """The names of a kind that a ``register_*`` function or an entry point adds to the built-in ones.

    An entry point has the name of the part and refers to the object. It is imported when the name is first looked up,
    and never if the name is built in.

    Args:
        kind: What is registered, for messages, such as "layer".
        group: The group of the entry points.
        check: Called with a name and an item; raises a TypeError or a ValueError if the item is not of this kind.
        built_in: Names that cannot be registered. The registry does not contain their items; the caller does.
        by_module: Entry points refer to modules that register names when they are imported.

    Example:
        >>> def check(name, item):
        ...     if not callable(item):
        ...         raise TypeError(f"a window must be a function, got {item!r}")
        >>> windows = Registry("window", "example.windows", built_in=("hann",), check=check)
        >>> windows.register("flat", lambda n: [1.0] * n)
        >>> windows.names(), windows.find("flat")(2)
        (('hann', 'flat'), [1.0, 1.0])
        >>> windows.find("flatt")
        Traceback (most recent call last):
        ...
        ValueError: name must be one of ('hann', 'flat'), got 'flatt'; did you mean flat?
    """

    def __init__(
        self,
        kind: str,
        group: str,
        *,
        check: Callable[[str, Any], None],
        built_in: Collection[str] = (),
        by_module: bool = False,
    ) -> None:
        self.kind, self.group, self.built_in, self.check, self.by_module = kind, group, built_in, check, by_module
        self._items: dict[str, Registered] = {}

    def register(self, name: str, item: Item) -> None:
        """Add an item under a name that is not taken."""
        if not isinstance(name, str):
            raise TypeError(f"the name of a {self.kind} must be text, got {type(name).__name__} {name!r}")
        if not NAME.match(name):
            raise ValueError(
                f"the name of a {self.kind} must be at most 64 letters, digits, _ and -, a letter first, got {name!r}"
            )
        self.check(name, item)
        source = _source(item)
        others = [offer for offer in self._offers(name) if offer.root != source.partition(".")[0]]
        mine = [offer for offer in self._offers(name) if offer not in others]
        own = f"{OWN} {__version__}" if source.partition(".")[0] == OWN else None
        package = own or _plugins.importer() or (mine[0].owner if mine else None)
        owner = f"{package} ({source})" if package else source
        earlier = self._owner(name) or next((_target(offer) for offer in others if offer.owner != package), None)
        if earlier is not None:
            raise ValueError(
                f"the {self.kind} {name!r} is registered already, by {earlier}; {owner} must choose another name"
            )
        self._items[name] = Registered(item, owner)

    def added(self) -> tuple[str, ...]:
        """The names that are not built in, sorted. Nothing is imported unless entry points refer to modules."""
        offered = () if self.by_module else (o.name for o in _plugins.offers(self.group) if NAME.match(o.name))
        if self.by_module:
            _plugins.modules(self.group)
        return tuple(sorted({*self._items, *offered} - set(self.built_in)))

    def names(self) -> tuple[str, ...]:
        """All names, the built-in ones first."""
        return (*self.built_in, *self.added())

    def find(self, name: Any, argument: str = "name") -> Item:
        """The item that was added under a name.

        Args:
            name: The name; built-in ones are not found.
            argument: The argument that gave it, for messages.

        Raises:
            ValueError: The name is not registered.
            PluginError: An installed package registers it, but the item cannot be used.
        """
        if isinstance(name, str) and name not in self._items:
            if self.by_module:
                _plugins.modules(self.group)
            else:
                self._load(name)
        self.check_name(name, argument)
        item: Item = self._items[name].item
        return item

    def check_name(self, name: Any, argument: str = "name") -> None:
        """Reject a name that is neither built in nor added; imports as little as :meth:`added`."""
        if isinstance(name, str) and (name in self.built_in or name in self._items):
            return
        known = self.names()
        if not isinstance(name, str):
            raise TypeError(f"{argument} must be one of {known}, got {type(name).__name__} {name!r}")
        if name not in known:
            raise ValueError(f"{argument} must be one of {known}, got {name!r}{suggest(name, known)}")

    def owners(self) -> Mapping[str, str]:
        """Who registered each name so far."""
        return {name: registered.owner for name, registered in self._items.items()}

    def _offers(self, name: str) -> list[Offer]:
        return [] if self.by_module else [offer for offer in _plugins.offers(self.group) if offer.name == name]

    def _owner(self, name: str) -> str | None:
        if name in self.built_in:
            return "statespan, where it is built in"
        return self._items[name].owner if name in self._items else None

    def _load(self, name: str) -> None:
        """Import the item that an installed package registers under a name, if there is one."""
        offers = self._offers(name) if NAME.match(name) and name not in self.built_in else []
        if len(offers) > 1:
            owners = " and by ".join(map(_target, offers))
            raise PluginError(f"the {self.kind} {name!r} is registered by {owners}; uninstall one of them")
        for offer in offers:
            item = _plugins.load(offer)
            if name in self._items:  # importing it registered it
                continue
            try:
                with _plugins.importing(offer.owner):
                    self.register(name, item)
            except (TypeError, ValueError) as error:
                raise PluginError(
                    f"the package {offer.owner} registers the {self.kind} {name!r} wrongly: {error}"
                ) from error


def keywords(function: Callable[..., Any], skip: Collection[str] = ()) -> dict[str, inspect.Parameter]:
    """The parameters of a function that can be given by name, except the first and those in ``skip``."""
    first, *rest = inspect.signature(function).parameters.values()
    free = (first.KEYWORD_ONLY, first.POSITIONAL_OR_KEYWORD)
    named = [first, *rest] if first.kind is first.KEYWORD_ONLY else rest
    return {p.name: p for p in named if p.kind in free and p.name not in skip}


def check_keys(name: str, options: Mapping[Any, Any], known: Collection[str]) -> None:
    """Reject unknown keys and suggest the nearest known one."""
    allowed = list(known)
    for key in options:
        if key not in allowed:
            raise ValueError(f"{name} has no {key!r}{suggest(str(key), allowed)} (allowed: {', '.join(allowed)})")


def check_function(kind: str, item: Any) -> None:
    """Reject what cannot be called."""
    if not callable(item):
        raise TypeError(f"a {kind} must be a function, got {type(item).__name__} {item!r}")


def _target(offer: Offer) -> str:
    return f"{offer.owner} ({offer.target.replace(':', '.')})"


def _source(item: Any) -> str:
    """Where a class, a function, or the class of an object is defined."""
    made = getattr(item, "loader", item)  # of a dataset
    made = made if hasattr(made, "__qualname__") else type(made)
    return f"{made.__module__}.{made.__qualname__}"
