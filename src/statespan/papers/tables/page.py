"""A page as Markdown and as one self-contained HTML file.

A page is a list of blocks, and each block knows both of its forms.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from statespan.papers.records.text_table import TextTable, html_words

STYLE = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")


class Block(NamedTuple):
    """A part of a page: its lines of Markdown, and its HTML.

    Example:
        >>> block = Block(markdown=["## Results"], html="<h2>Results</h2>")
        >>> block.markdown == heading("Results").markdown
        True
    """

    markdown: Sequence[str]
    html: str


def heading(text: str) -> Block:
    """A second-level heading."""
    return Block([f"## {text}"], f"<h2>{html.escape(text)}</h2>")


def paragraph(text: str, *, note: bool = False) -> Block:
    """A paragraph, or a note in muted style. Words in backquotes are code."""
    kind = ' class="note"' if note else ""
    return Block([text], f"<p{kind}>{html_words(text)}</p>")


def bullets(items: Sequence[str]) -> Block:
    """A list."""
    return Block(
        [f"- {item}" for item in items], f"<ul>{''.join(f'<li>{html_words(item)}</li>' for item in items)}</ul>"
    )


def picture(path: Path, caption: str) -> Block:
    """A PNG file beside the page, which Markdown links to and HTML embeds."""
    data = base64.b64encode(path.read_bytes()).decode()
    words = html.escape(caption, quote=True)
    image = f'<img src="data:image/png;base64,{data}" alt="{words}">'
    return Block([f"![{caption}]({path.name})"], f"<figure>{image}<figcaption>{words}</figcaption></figure>")


def table(content: TextTable) -> Block:
    """A table."""
    return Block(content.markdown(), content.html())


def to_markdown(title: str, blocks: Sequence[Block]) -> str:
    """The page as Markdown."""
    return "\n\n".join([f"# {title}", *("\n".join(block.markdown) for block in blocks)]) + "\n"


def to_html(title: str, blocks: Sequence[Block]) -> str:
    """The page as HTML."""
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>",
        f"<h1>{html.escape(title)}</h1>",
        *(block.html for block in blocks),
    ]
    return "\n".join([*parts, "</body>\n</html>"]) + "\n"
