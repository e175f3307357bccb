"""The benchmarks by name, from catalog.json: what each measures, and its sizes as [usual, that of ``--quick``].

`statespan bench --help` shows it, so this module imports neither torch nor YAML.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DTYPES = ("float64", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Listing:
    """A benchmark as the help shows it; a size is a number, or a tuple of numbers, shapes or names.

    Example:
        >>> listing = CATALOG["op"]
        >>> listing.name, sorted(listing.sizes) == sorted(listing.quick)
        ('op', True)
    """

    name: str
    summary: str
    caption: str  # the setting in words, for the table and the record
    sizes: Mapping[str, Any]
    quick: Mapping[str, Any]  # the sizes of ``--quick``


def _read() -> dict[str, Listing]:
    listings = {}
    catalog = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    for name, entry in catalog.items():
        usual, quick = ({size: _tuples(pair[which]) for size, pair in entry["sizes"].items()} for which in (0, 1))
        listings[name] = Listing(name, entry["summary"], entry["caption"], usual, quick)
    return listings


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


CATALOG = _read()
