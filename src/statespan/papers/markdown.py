"""Generated tables in Markdown pages: each stands between a comment that describes it and ``<!-- end -->``."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from statespan._io import replace_file


def marker(pattern: str) -> re.Pattern[str]:
    """A pattern that matches a comment with this content, the table below it and the end marker."""
    return re.compile(rf"(?P<head><!-- {pattern} -->\n)(?P<table>.*?)(?P<end><!-- end -->)", re.S)


def fill(text: str, place: re.Pattern[str], table: Callable[[re.Match[str]], str]) -> str:
    """The text with every table regenerated.

    Args:
        text: A page.
        place: A :func:`marker`.
        table: From the match of a marker to the lines of its table.

    Example:
        >>> page = "<!-- numbers: 2 -->" + chr(10) + "old <!-- end --> rest"
        >>> fill(page, marker(r"numbers: (?P<count>[0-9]+)"), lambda match: "x" * int(match["count"])).splitlines()
        ['<!-- numbers: 2 -->', 'xx<!-- end --> rest']
    """
    return place.sub(lambda match: f"{match['head']}{table(match)}{match['end']}", text)


def fill_page(path: Path, filled: Callable[[str], str]) -> None:
    """Rewrite a page atomically if its content changes."""
    text = path.read_text(encoding="utf-8")
    if (new := filled(text)) != text:
        replace_file(path, new.encode())


def root_of(page: Path) -> Path:
    """The checkout of a page: the folder above it that holds ``results``."""
    return next(folder for folder in page.resolve().parents if (folder / "results").is_dir())
