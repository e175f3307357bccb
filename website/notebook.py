"""Notebooks from pages: the same text, the examples as cells with the results that the page shows.

    python -m website.notebook        # redraw the pictures of the pages that draw their own (pages.NOTEBOOKS)

Where a picture follows an example, it is the ``figure`` of that example: the notebook draws it, and the command above
writes it for the page. Other pictures are attached to the text.
"""

from __future__ import annotations

import base64
import doctest
import json
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from website.paths import ROOT

PIECES = re.compile(r"^```python\n(?P<code>>>> .*?)^```\n(?:\n!\[[^\]]*\]\((?P<picture>[^)]*)\)\n)?", re.M | re.S)
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^):]*)\)")
LINK_TO_FILE = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|attachment:)[^)]*\)")


def text(name: str) -> str:
    """The notebook of a page of the repository, as JSON."""
    cells = cells_of(ROOT / name)
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(book, ensure_ascii=False, indent=1)


def cells_of(page: Path) -> list[dict[str, Any]]:
    """The cells of a page, without ids."""
    source = page.read_text(encoding="utf-8")
    cells, end = [], 0
    for match in PIECES.finditer(source):
        cells += prose(page, source[end : match.start()])
        cells += session(match["code"])
        if match["picture"]:
            cells[-1]["source"] += "\nfigure"
            cells[-1]["outputs"] = [display({"image/png": encoded(page.parent / match["picture"])})]
        end = match.end()
    return cells + prose(page, source[end:])


def prose(page: Path, source: str) -> list[dict[str, Any]]:
    """A cell of text with its pictures attached; links to other pages keep their words only."""
    pictures = {path: encoded(page.parent / path) for _, path in PICTURE.findall(source)}
    shown = PICTURE.sub(lambda match: f"![{match[1]}](attachment:{match[2].replace('/', '-')})", source)
    shown = LINK_TO_FILE.sub(r"\1", shown).strip()
    if not shown:
        return []
    cell: dict[str, Any] = {"cell_type": "markdown", "metadata": {}, "source": shown}
    if pictures:
        cell["attachments"] = {path.replace("/", "-"): {"image/png": data} for path, data in pictures.items()}
    return [cell]


def session(source: str) -> list[dict[str, Any]]:
    """A cell for the lines up to each shown result."""
    cells: list[dict[str, Any]] = []
    lines: list[str] = []
    for example in doctest.DocTestParser().get_examples(source):
        lines.append(example.source.rstrip("\n"))
        if example.want:
            cells.append(code(lines, example.want.rstrip("\n")))
            lines = []
    return [*cells, code(lines, "")] if lines else cells


def code(lines: list[str], result: str) -> dict[str, Any]:
    """A cell of code with what it printed or returned."""
    if result and re.match(r"print\(|(for|if|while|with) ", lines[-1]):
        outputs = [{"output_type": "stream", "name": "stdout", "text": f"{result}\n"}]
    else:
        outputs = [display({"text/plain": result})] if result else []
    cell: dict[str, Any] = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": outputs}
    return {**cell, "source": "\n".join(lines)}


def display(data: dict[str, str]) -> dict[str, Any]:
    """A result that is shown."""
    return {"output_type": "display_data", "data": data, "metadata": {}}


def encoded(picture: Path) -> str:
    """A picture as a notebook holds it."""
    return base64.b64encode(picture.read_bytes()).decode()


def drawn(page: Path) -> dict[str, Any]:
    """The figures of a page by the name of their picture, from running its examples."""
    names: dict[str, Any] = {}
    figures = {}
    for match in PIECES.finditer(page.read_text(encoding="utf-8")):
        for example in doctest.DocTestParser().get_examples(match["code"]):
            with redirect_stdout(StringIO()):
                exec(compile(example.source, page.name, "single"), names)
        if match["picture"]:
            figures[match["picture"]] = names["figure"]
    return figures


def main() -> None:
    """Redraw the pictures."""
    from statespan.plot import save
    from website.pages import NOTEBOOKS

    for name in NOTEBOOKS:
        page = ROOT / name
        for picture, figure in drawn(page).items():
            (page.parent / picture).parent.mkdir(exist_ok=True)
            print(*(path.relative_to(ROOT) for path in save(figure, page.parent / picture)))


if __name__ == "__main__":
    main()
