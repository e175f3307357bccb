"""What MkDocs calls while it builds the site (`hooks` in mkdocs.yml)."""

from __future__ import annotations

import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from website import api, notebook, pages, paths
from website.paths import ROOT


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Anchors as on GitHub, and a navigation with all pages."""
    config.mdx_configs["toc"]["slugify"] = paths.slug
    config.nav = pages.navigation(config.nav or [])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages beside docs/, the files that pages link to, the reference and the notebooks."""
    for name in pages.files():
        place = paths.site_path(name)
        if files.get_file_from_path(place) is None:
            if place.endswith(".md"):
                files.append(File.generated(config, place, content=pages.text(name)))
            else:
                files.append(File.generated(config, place, abs_src_path=str(ROOT / name)))
    for group in api.GROUPS:
        files.append(File.generated(config, group.file, content=api.page(group)))
    files.append(File.generated(config, "api/papers.md", content=api.workshop()))
    for name in pages.NOTEBOOKS:
        place = paths.site_path(name).replace(".md", ".ipynb")
        files.append(File.generated(config, place, content=notebook.text(name)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links between files of the site, sessions as such, and a link to the notebook below the title."""
    name = f"docs/{page.file.src_uri}"
    if page.file.generated_by is None:
        markdown = paths.for_the_site(name, markdown)
    markdown = re.sub(r"^( *)```python\n(?=\1>>> )", r"\1```pycon\n", markdown, flags=re.MULTILINE)
    if name in pages.NOTEBOOKS:
        place = page.file.src_uri.replace(".md", ".ipynb")
        heading, rest = markdown.split("\n", 1)
        markdown = f"{heading}\n\n[Download this page as a notebook]({place}){{ .notebook }}\n{rest}"
    return markdown
