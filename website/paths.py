"""Where each file of the repository is on the site, and links between pages in the terms of the site.

Pages link to files of the repository, as a Git host needs it. The site has the files of docs/ at its root, README.md as
its first page, and a page for each Python file that some page links to.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FENCES = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$|`[^`\n]+`|<!--.*?-->", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()([^)#:\s]*)(#[^):\s]*)?(?=\))")


def site_path(path: str) -> str:
    """The path on the site of a file of the repository, as MkDocs names its sources."""
    if path == "README.md":
        return "index.md"
    if path.endswith(".py"):
        return f"{path}.md"
    return path.removeprefix("docs/")


def links(text: str) -> Iterator[re.Match[str]]:
    """The links of a page to files and headings, those inside code left out."""
    code = [match.span() for match in FENCES.finditer(text)]
    for match in LINK.finditer(text):
        if not any(start <= match.start() < end for start, end in code):
            yield match


def target(path: str, link: str) -> str:
    """The file of the repository that a link on the page ``path`` leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link)) if link else path


def for_the_site(path: str, text: str) -> str:
    """The text of the page ``path`` with links between files of the site."""
    folder = posixpath.dirname(site_path(path))
    parts, end = [], 0
    for match in links(text):
        parts.append(text[end : match.start()])
        if match[1]:
            parts.append(posixpath.relpath(site_path(target(path, match[1])), folder or "."))
        parts.append(match[2] or "")
        end = match.end()
    return "".join(parts) + text[end:]


def anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub forms it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def slug(heading: str, separator: str) -> str:
    """:func:`anchor` with the arguments that Markdown's table of contents passes."""
    return anchor(re.sub(r"<[^>]*>", "", heading))
