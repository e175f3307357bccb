"""Checks the built site: every link leads somewhere, and a page loads nothing from another host.

python -m website.check build/site
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href"}
"""What a browser fetches to show a page, by the tag and its attribute."""
NOT_FETCHED = {"canonical", "next", "prev", "alternate"}


class Page(HTMLParser):
    """The anchors of a page, its links, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag refers to."""
        values = {key: value or "" for key, value in attrs}
        self.anchors |= {values[key] for key in ("id", "name") if key in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag in LOADED and LOADED[tag] in values and values.get("rel") not in NOT_FETCHED:
            self.loaded.append(values[LOADED[tag]])


def problems(site: Path) -> list[str]:
    """What is wrong with a built site, one line each."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    found = [] if pages else [f"{site} has no pages"]
    for path, page in pages.items():
        name = path.relative_to(site)
        found += [f"{name} loads {url} from another host" for url in page.loaded if urlsplit(url).netloc]
        for url in [*page.links, *page.loaded]:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            if parts.path.startswith("/"):  # of the page for a wrong address, which may be shown anywhere
                target = site / unquote(parts.path.lstrip("/"))
            else:
                target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                found.append(f"{name} links to {url}, which is not there")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{name} links to {url}, but there is no such heading")
    return found


def main(site: Path) -> int:
    """Print the problems; 1 if there are any."""
    found = problems(site.resolve())
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{len(list(site.rglob('*.html')))} pages, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
