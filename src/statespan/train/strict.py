"""A small, strict subset of YAML: plain data only, unique keys, no anchors, nothing that expands when read."""

from __future__ import annotations

import math
import re
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from statespan._extras import require

if TYPE_CHECKING:
    import yaml

LARGEST = 65_536  # characters of a file
DEEPEST = 12  # levels of nesting
_WORD = r"[A-Za-z][A-Za-z0-9_-]*"
KEY = re.compile(rf"{_WORD}\Z")
DOTTED_KEY = re.compile(rf"{_WORD}(?:\.{_WORD})*\Z")  # of a sweep

# YAML 1.1 reads "no" as False, 1:30 as 90, 1e-3 as text and 2020-01-01 as a date; only these are numbers and words here
_SCALARS = {
    "null": (r"null|~|", [*"n~", ""]),
    "bool": (r"true|false", [*"tf"]),
    "int": (r"[-+]?(?:0|[1-9][0-9]*)", [*"-+0123456789"]),
    "float": (r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?", [*"-+.0123456789"]),
}


class ConfigError(ValueError):
    """A recipe or an override is wrong; the message is one line that names the key, the value and what is allowed.

    Example:
        >>> from statespan.train import Train
        >>> try:
        ...     Train(lr=-1.0)
        ... except ConfigError as error:
        ...     print(error)
        train.lr is -1.0; allowed: a number > 0
    """


class _Strict(NamedTuple):
    """PyYAML's loader and dumper with the scalars of this module."""

    loader: type[yaml.SafeLoader]
    dumper: type[yaml.SafeDumper]


@cache
def _strict() -> _Strict:
    """Import PyYAML, which only reading and writing recipes needs: not the rest of training, nor benchmarks."""
    require("a recipe needs", "train", "yaml")
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - its own spelling

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            """Write aliases in full."""
            return True

    for tag, (pattern, first) in _SCALARS.items():
        resolver = (f"tag:yaml.org,2002:{tag}", re.compile(rf"(?:{pattern})\Z"), first)
        Loader.add_implicit_resolver(*resolver)
        Dumper.add_implicit_resolver(*resolver)  # on top of its own: text that either would read as a number is quoted
    return _Strict(Loader, Dumper)


def parse(text: str, where: str = "the recipe") -> Any:
    """Read one document of strict YAML, which messages call ``where``, into plain data.

    That is None, bool, int, float, str, lists, and dicts whose keys are names; anything else is a ConfigError.

    Example:
        >>> parse("{lr: 1e-3, layer: s4d, betas: [0.9, 0.999], clip: null, note: no}")
        {'lr': 0.001, 'layer': 's4d', 'betas': [0.9, 0.999], 'clip': None, 'note': 'no'}
    """
    if len(text) > LARGEST:
        raise ConfigError(f"{where} has {len(text)} characters; allowed: at most {LARGEST}")
    strict = _strict()
    import yaml

    try:
        _check_events(text, where)
        node = strict.loader(text).get_single_node()
        return None if node is None else _plain(node, where)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or type(error).__name__
        raise ConfigError(f"{where} is not readable YAML:{place} {show(str(problem))}") from None


def dump(data: Any) -> str:
    """Write plain data as YAML that :func:`parse` reads back unchanged; tuples become lists."""
    strict = _strict()
    import yaml

    try:
        return yaml.dump(data, Dumper=strict.dumper, sort_keys=False, allow_unicode=True, width=120)
    except yaml.YAMLError as error:
        raise ConfigError(f"the recipe has {show(str(error.args[-1]))}; allowed: plain data only") from None


def show(value: object, limit: int = 60) -> str:
    """Show a value in one line of bounded length."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except ValueError:  # an integer with too many digits to print
        text = f"a {type(value).__name__} that is too large to print"
    text = text.encode("unicode_escape").decode() if not text.isprintable() else text
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def set_value(data: dict[str, Any], path: list[str], value: Any, what: str) -> None:
    """Set a value in nested plain data; messages begin with ``what``."""
    section = data
    for depth, part in enumerate(path[:-1]):
        section = section.setdefault(part, {})
        if not isinstance(section, dict):
            raise ConfigError(f"{what}: {'.'.join(path[: depth + 1])} is {show(section)}, not a section")
    section[path[-1]] = value


def _check_events(text: str, where: str) -> None:
    """Reject deep nesting, anchors and multiple documents before anything is built."""
    import yaml

    depth = documents = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        documents += isinstance(event, yaml.DocumentStartEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ConfigError(f"{where} is nested too deeply; allowed: {DEEPEST} levels")
        if anchor := getattr(event, "anchor", None):  # of an alias, too
            raise ConfigError(f"{where} has the anchor or alias {show(anchor)}; allowed: plain data only")
        if tag := getattr(event, "tag", None):
            raise ConfigError(f"{where} has the tag {show(tag)}; allowed: plain data only")
    if documents > 1:
        raise ConfigError(f"{where} has {documents} documents; allowed: one")


def _plain(node: yaml.Node, where: str) -> Any:
    import yaml

    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str) or not DOTTED_KEY.match(key):
                shown = show(key) if isinstance(key, str) else "a list or a mapping"
                raise ConfigError(f"{where} has the key {shown}; allowed: names of letters, digits, _ and -")
            if key in mapping:
                raise ConfigError(
                    f"{where} has the key {show(key)} twice, again in line {key_node.start_mark.line + 1}"
                )
            mapping[key] = _plain(value_node, where)
        return mapping
    if isinstance(node, yaml.SequenceNode):
        return [_plain(child, where) for child in node.value]
    return _scalar(node, where)


def _scalar(node: yaml.Node, where: str) -> Any:
    text: str = node.value
    kind = node.tag.rpartition(":")[2]
    if kind == "int" and len(text) <= 20 and abs(int(text)) < 2**63:
        return int(text)
    if kind in ("int", "float"):
        number = float(text)
        if not math.isfinite(number):
            raise ConfigError(f"{where} has the number {show(text)}; allowed: finite ones")
        return number
    return {"null": None, "bool": text == "true"}.get(kind, text)
