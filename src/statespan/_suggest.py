"""Suggestions for unknown words: one wording for all messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST = 80  # characters of a word that are compared, so that a huge one costs no time


def suggest(word: str, known: Iterable[str], otherwise: str = "", *, most: int = 1) -> str:
    """'; did you mean …?' with the ``most`` nearest known words if any are close; ``otherwise`` is advice to add.

    Example:
        >>> suggest("trian", ["train", "test"])
        '; did you mean train?'
        >>> suggest("trian", ["train", "test"], "see --help")
        '; did you mean train? Otherwise see --help'
        >>> suggest("x", ["train", "test"], "see --help"), suggest("x", ["train", "test"])
        ('; see --help', '')
    """
    matches = difflib.get_close_matches(word[:LONGEST], list(known), n=most)
    if matches:
        return f"; did you mean {' or '.join(matches)}?" + (f" Otherwise {otherwise}" if otherwise else "")
    return f"; {otherwise}" if otherwise else ""
