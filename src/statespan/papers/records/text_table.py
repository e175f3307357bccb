"""A table of plain text as Markdown or HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TextTable:
    r"""A table: heads and rows of plain text.

    Example:
        >>> table = TextTable(heads=["", "ours"], rows=[["S4", "99.5"], ["S4D", "99.1"]])
        >>> print(*table.markdown(), sep="\n")
        |  | ours |
        |---|---:|
        | S4 | 99.5 |
        | S4D | 99.1 |
    """

    heads: Sequence[str]  # of the columns
    rows: Sequence[Sequence[str]]  # cells; words in backquotes are code
    words: Sequence[int] = (0,)  # the columns that are text rather than numbers

    def markdown(self) -> list[str]:
        r"""The lines of the table.

        Example:
            >>> print(*TextTable(["", "ours"], [["a|b", "1"]]).markdown(), sep="\n")
            |  | ours |
            |---|---:|
            | a\|b | 1 |
        """
        rule = "".join("---|" if column in self.words else "---:|" for column in range(len(self.heads)))
        rows = [[cell.replace("|", "\\|").replace("\n", "<br>") for cell in row] for row in self.rows]
        head, *lines = ("| " + " | ".join(row) + " |" for row in (self.heads, *rows))
        return [head, f"|{rule}", *lines]

    def html(self) -> str:
        """The table as HTML, which scrolls if it is too wide."""
        heads = "".join(self._cell("th", column, head) for column, head in enumerate(self.heads))
        rows = ("".join(self._cell("td", column, cell) for column, cell in enumerate(row)) for row in self.rows)
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'

    def _cell(self, tag: str, column: int, text: str) -> str:
        kinds = ["text"] * (column in self.words) + ["long"] * (len(text) > 40)
        kind = f' class="{" ".join(kinds)}"' if kinds else ""
        return f"<{tag}{kind}>{html_words(text)}</{tag}>"


def html_words(text: str) -> str:
    """Text as HTML, with `code` and **bold** words."""
    escaped = html.escape(text).replace("\n", "<br>")
    escaped = re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped)
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", escaped)
