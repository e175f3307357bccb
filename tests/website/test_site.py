"""The site has every page once, its links lead somewhere, and the reference has every public name."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from website import api, check, pages, paths

ROOT = paths.ROOT
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def test_the_navigation_has_every_page_once():
    nav = pages.navigation(CONFIG["nav"])
    shown = pages.places(nav)
    assert len(shown) == len(set(shown))
    known = {paths.site_path(name) for name in pages.files()} | {group.file for group in api.GROUPS} | {"api/papers.md"}
    assert [place for place in shown if place not in known] == []
    assert {paths.site_path(name) for name in pages.first_pages()} <= set(shown)
    assert {group.file for group in api.GROUPS} <= set(shown)
    assert set(pages.NOTEBOOKS) <= {f"docs/{place}" for place in shown}
    assert len(pages.tables()) > 20


def test_a_page_that_mkdocs_yml_does_not_name_is_a_guide(monkeypatch):
    monkeypatch.setattr(pages, "first_pages", lambda: ["README.md", "docs/timeseries.md"])
    monkeypatch.setattr(pages, "tables", lambda: [])
    nav = pages.navigation([{"Home": "index.md"}, {"Guide": [{"Layers": "layers.md"}]}])
    assert nav == [{"Home": "index.md"}, {"Guide": [{"Layers": "layers.md"}, {"Time series": "timeseries.md"}]}]


def test_links_on_the_site_lead_to_its_files():
    places = {paths.site_path(name) for name in pages.files()}
    count = 0
    for name in pages.files():
        if not name.endswith(".md"):
            continue
        here = paths.site_path(name)
        for match in paths.links(pages.text(name)):
            assert paths.target(here, match[1]) in places, f"{name}: {match[0]}"
            count += 1
    assert count > 300


@pytest.mark.parametrize(
    ("page", "written", "shown"),
    [
        ("README.md", "[a](docs/layers.md#padding)", "[a](layers.md#padding)"),
        ("README.md", "![a](results/rates.png)", "![a](results/rates.png)"),
        ("docs/layers.md", "[a](../README.md)", "[a](index.md)"),
        ("docs/layers.md", "[a](training.md), [b](#padding)", "[a](training.md), [b](#padding)"),
        ("docs/layers.md", "[`a`](../examples/s4_minimal.py)", "[`a`](examples/s4_minimal.py.md)"),
        ("docs/layers.md", "[a](https://example.org/x.md)", "[a](https://example.org/x.md)"),
        ("docs/layers.md", "`[a](../README.md)`", "`[a](../README.md)`"),
        ("docs/layers.md", "```\n[a](../README.md)\n```\n", "```\n[a](../README.md)\n```\n"),
        ("results/reproduce/s4-table2.md", "[a](../../docs/engine.md)", "[a](../../engine.md)"),
    ],
)
def test_links_in_the_terms_of_the_site(page, written, shown):
    assert paths.for_the_site(page, written) == shown


def test_a_link_to_nothing_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "README.md").write_text("[a](none.md)")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "first_pages", lambda: ["README.md"])
    with pytest.raises(FileNotFoundError, match=r"README\.md links to none\.md"):
        pages.files()


def test_the_reference_has_every_public_name_once():
    shown = [name for group in api.GROUPS for name in api.names(group)]
    objects = [getattr(import_module(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in shown]
    assert len(shown) == len(set(shown)) > 100
    for group in api.GROUPS:
        module = import_module(group.path)
        for name in module.__all__:
            value = getattr(module, name)
            described = name == "__version__" or any(value is known for known in objects)
            assert described or type(value).__name__ == "module", f"{group.path}.{name}"
        page = api.page(group)
        assert page.startswith(f"# {group.title}\n")
        assert (ROOT / "docs" / group.guide).is_file()
    folders = {path.parent.name for path in (ROOT / "src/statespan").glob("*/__init__.py")}
    assert folders - {group.module for group in api.GROUPS} <= {"cli", "papers", "view"}  # used by their commands


def test_the_page_of_the_workshop_lists_its_packages():
    text = api.workshop()
    for path in (ROOT / "src/statespan/papers").glob("*/__init__.py"):
        assert f"`statespan.papers.{path.parent.name}` | " in text


def test_the_check_finds_what_is_wrong(tmp_path):
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1><a href="b.html#top">b</a><img src="a.png"><a href="#top">t</a>'
    )
    (tmp_path / "b.html").write_text('<a href="a.html#none">a</a><script src="https://cdn.example.org/x.js"></script>')
    assert check.problems(tmp_path) == [
        "a.html links to b.html#top, but there is no such heading",
        "a.html links to a.png, which is not there",
        "b.html loads https://cdn.example.org/x.js from another host",
        "b.html links to a.html#none, but there is no such heading",
    ]
    assert check.main(tmp_path) == 1
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "b.html").write_text('<p id="top"><a href="a.html#top">a</a><a href="https://example.org">x</a></p>')
    assert check.main(tmp_path) == 0
    assert check.problems(tmp_path / "none") != []


def test_the_site_loads_nothing_from_other_hosts():
    assert CONFIG["theme"]["font"] is False
    assert CONFIG["strict"] is True
    assert set(CONFIG["validation"]["links"].values()) == set(CONFIG["validation"]["nav"].values()) == {"warn"}
    assert "http" not in (ROOT / "docs/style.css").read_text()


def test_the_locked_packages_are_those_of_the_extra():
    extra = re.search(r"^docs = (\[.*\])$", (ROOT / "pyproject.toml").read_text(), re.M)[1]
    named = [line for line in (ROOT / "requirements/site.in").read_text().splitlines() if not line.startswith("#")]
    assert named == ast.literal_eval(extra)
    locked = dict(re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / "requirements/site.lock.txt").read_text(), re.M))
    tests = dict(re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / "requirements/ci.lock.txt").read_text(), re.M))
    assert {name: (locked[name], tests[name]) for name in locked.keys() & tests if locked[name] != tests[name]} == {}
    pins = dict(re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / "constraints.txt").read_text(), re.M))
    assert {name: locked[name] for name in ("mkdocs", "mkdocs-material", "mkdocstrings", "mkdocstrings-python")} == {
        name: pins[name] for name in ("mkdocs", "mkdocs-material", "mkdocstrings", "mkdocstrings-python")
    }


def test_only_the_hook_and_the_extension_need_the_packages_of_the_site():
    for path in Path(api.__file__).parent.glob("*.py"):
        imported = {
            (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).partition(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
        }
        assert path.stem in ("hooks", "docstrings") or not imported & {"mkdocs", "griffe"}, path
