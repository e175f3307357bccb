"""The files of the site: all pages of docs/, the pages beside it, and whatever these link to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeAlias

from website import api, paths
from website.paths import ROOT

Sections: TypeAlias = list[dict[str, Any]]
"""A navigation as mkdocs.yml has it: pages and lists of them by their titles."""
BESIDE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "src/statespan/ops/ssm/README.md")
NOTEBOOKS = ("docs/tutorial.md", "docs/own-signal.md", "docs/forecasting.md", "docs/streaming.md")
"""Pages that can also be downloaded as notebooks."""


def tables() -> list[str]:
    """The pages of the papers' tables and figures."""
    found = (ROOT / "results/reproduce").glob("*.md")
    return [path.relative_to(ROOT).as_posix() for path in sorted(found, key=in_order)]


def in_order(path: Path) -> list[str]:
    """A key that sorts the numbers in names as numbers."""
    return [part.zfill(3) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]


def first_pages() -> list[str]:
    """The pages that are on the site whether anything links to them or not."""
    return [f"docs/{path.name}" for path in sorted(ROOT.glob("docs/*.md"))] + [*BESIDE, *tables()]


def files() -> dict[str, str]:
    """Each file of the site, as a path in the repository, with the page that needs it."""
    needed = dict.fromkeys(first_pages(), "")
    queue = list(needed)
    for page in queue:
        if not page.endswith(".md"):
            continue
        for match in paths.links((ROOT / page).read_text(encoding="utf-8")):
            name = paths.target(page, match[1])
            if not (ROOT / name).is_file():
                raise FileNotFoundError(f"{page} links to {name}, which is no file")
            if name not in needed:
                needed[name] = page
                queue.append(name)
    return needed


def title(name: str) -> str:
    """The title of a page, without what follows a colon."""
    return (ROOT / name).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").partition(":")[0]


def places(nav: Sections) -> list[str]:
    """The pages of a navigation, in order."""
    found: list[str] = []
    for section in nav:
        for place in section.values():
            found += [place] if isinstance(place, str) else places(place)
    return found


def navigation(nav: Sections) -> Sections:
    """The navigation of mkdocs.yml with what it need not name: the reference, the papers' tables and further guides."""
    reference = [{group.title: group.file} for group in api.GROUPS] + [{"Papers' workshop": "api/papers.md"}]
    papers = [{title(name): paths.site_path(name)} for name in tables()]
    named = {*places(nav), *places(papers)}
    rest = [name for name in first_pages() if paths.site_path(name) not in named]
    more: dict[str, Sections] = {
        "API": reference,
        "Results": [{"Tables and figures": papers}],
        "Guide": [{title(name): paths.site_path(name)} for name in rest],
    }
    return [
        {name: place if isinstance(place, str) else [*place, *more.get(name, [])] for name, place in section.items()}
        for section in nav
    ]


def text(name: str) -> str:
    """The Markdown of a page of the site."""
    content = (ROOT / name).read_text(encoding="utf-8")
    if name.endswith(".py"):
        return f"# {name.rpartition('/')[2]}\n\n`{name}`\n\n```python\n{content}```\n"
    return paths.for_the_site(name, content)
