"""A page as Markdown and as one self-contained HTML file.

A page is a list of blocks; both forms are written from the same list.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from statespan.papers.records.text_table import TextTable, html_words

STYLE = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Heading:
    """A second-level heading."""

    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph, or a note in muted style. Words in backquotes are code."""

    text: str
    note: bool = False


@dataclass(frozen=True)
class Picture:
    """A picture: a PNG file beside the page, and its alternative text."""

    path: Path
    caption: str


@dataclass(frozen=True)
class Bullets:
    """A list."""

    items: Sequence[str]


Block = Heading | Text | TextTable | Picture | Bullets


def markdown(title: str, blocks: Sequence[Block]) -> str:
    """The page as Markdown; pictures are linked relative to the page."""
    lines = [f"# {title}", ""]
    for block in blocks:
        if isinstance(block, Heading):
            lines += [f"## {block.text}", ""]
        elif isinstance(block, Text):
            lines += [block.text, ""]
        elif isinstance(block, Bullets):
            lines += [*(f"- {item}" for item in block.items), ""]
        elif isinstance(block, Picture):
            lines += [f"![{block.caption}]({block.path.name})", ""]
        else:
            lines += [*block.markdown(), ""]
    return "\n".join(lines).rstrip() + "\n"


def page(title: str, blocks: Sequence[Block]) -> str:
    """The page as HTML with embedded pictures."""
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>",
        f"<h1>{html.escape(title)}</h1>",
    ]
    for block in blocks:
        if isinstance(block, Heading):
            parts.append(f"<h2>{html.escape(block.text)}</h2>")
        elif isinstance(block, Text):
            kind = ' class="note"' if block.note else ""
            parts.append(f"<p{kind}>{html_words(block.text)}</p>")
        elif isinstance(block, Bullets):
            parts.append("<ul>" + "".join(f"<li>{html_words(item)}</li>" for item in block.items) + "</ul>")
        elif isinstance(block, Picture):
            data = base64.b64encode(block.path.read_bytes()).decode()
            words = html.escape(block.caption, quote=True)
            image = f'<img src="data:image/png;base64,{data}" alt="{words}">'
            parts.append(f"<figure>{image}<figcaption>{words}</figcaption></figure>")
        else:
            parts.append(block.html())
    return "\n".join([*parts, "</body>\n</html>"]) + "\n"
