"""The sweep of a recipe: keys and the values that ``statespan ablate RECIPE --sweep`` combines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from statespan.train.strict import ConfigError, dump, show

SECTIONS = ("data", "model", "train")


def read_sweep(data: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The values by dotted key, in order; a ConfigError for anything but lists of distinct values.

    Example:
        >>> read_sweep({"train.lr": [0.001, 0.0005], "model": {"ssm": {"init": ["lin", "inv"]}}})
        {'train.lr': (0.001, 0.0005), 'model.ssm.init': ('lin', 'inv')}
        >>> read_sweep({"train.lr": 0.001})
        Traceback (most recent call last):
        ...
        statespan.train.strict.ConfigError: sweep.train.lr is 0.001; allowed: a list of values
    """
    sweep: dict[str, tuple[Any, ...]] = {}
    for key, values in flatten(data).items():
        section, dot, _ = key.partition(".")
        if section not in SECTIONS or not dot:
            raise ConfigError(f"sweep.{show(key)} is not a key of a recipe; allowed: keys of {', '.join(SECTIONS)}")
        if key == "train.seed":
            raise ConfigError("sweep.train.seed is not allowed: --seeds sets the seeds of every combination")
        if not isinstance(values, list) or not values:
            raise ConfigError(f"sweep.{show(key)} is {show(values)}; allowed: a list of values")
        texts = [dump(value) for value in values]
        repeated = [value for value, text in zip(values, texts) if texts.count(text) > 1]
        if repeated:
            raise ConfigError(f"sweep.{show(key)} has the value {show(repeated[0])} twice")
        sweep[key] = tuple(values)
    return sweep


def flatten(data: Mapping[str, Any]) -> dict[str, Any]:
    """Nested sections as dotted keys, each once."""
    flat: dict[str, Any] = {}
    for key, value in _flat("", data):
        if key in flat:
            raise ConfigError(f"sweep has the key {show(key)} twice")
        flat[key] = value
    return flat


def _flat(prefix: str, data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", value
