"""Recipes for the papers' results with S4, S4D and DSS and a few of our own, with our numbers."""

import json
from pathlib import Path

OURS = Path(__file__).parent / "ours.json"
"""Our numbers, written by :mod:`statespan.papers.records.ours`."""


def ours() -> dict[str, str]:
    """Our result of each recipe that was run, with the signs that ``statespan recipes`` explains.

    Example:
        >>> ours()["digits-s4d"]
        '98.61 §'
    """
    return dict(json.loads(OURS.read_text(encoding="utf-8")))
