"""Generated tables in Markdown pages."""

import pytest

from statespan.papers.markdown import fill, fill_page, marker, root_of

PLACE = marker(r"lines: (?P<count>\d+)")
MARKED = "before\n<!-- lines: 2 -->\nold\n<!-- end -->\nbetween\n<!-- lines: 0 -->\n<!-- end -->\n"
PAGE = f"{MARKED}<!-- other -->\nx\n<!-- end -->\n"
FILLED = PAGE.replace("old\n", "line\nline\n")


def lines(match):
    return "line\n" * int(match["count"])


def test_every_marked_table_is_filled_and_nothing_else():
    assert fill(PAGE, PLACE, lines) == FILLED
    assert fill(FILLED, PLACE, lines) == FILLED


def test_a_page_is_rewritten_only_if_that_changes_it(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    fill_page(page, lambda text: fill(text, PLACE, lines))
    assert page.read_text() == FILLED
    monkeypatch.setattr("statespan.papers.markdown.replace_file", lambda *_: pytest.fail("written again"))
    fill_page(page, lambda text: fill(text, PLACE, lines))


def test_the_root_of_a_page_is_the_folder_that_holds_results(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "docs").mkdir()
    assert root_of(tmp_path / "docs" / "page.md") == root_of(tmp_path / "README.md") == tmp_path.resolve()
