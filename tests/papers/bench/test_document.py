"""Tables of the documentation: what they show is what the records say."""

import json
from pathlib import Path

import pytest

from statespan.papers.bench.document import filled, main

ROOT = Path(__file__).parents[3]
RECORD = {
    "rows": [
        {"name": "fast", "setting": {"length": 10}, "status": "ok", "time_ms": 0.12345, "extra": {"copies": 1234.5}},
        {"name": "slow", "setting": {"length": 20}, "status": "failed", "time_ms": None, "extra": {}},
    ],
    "findings": ["twice as fast", "half the memory"],
    "machine": {"device": "a machine"},
    "versions": {"torch": "9.9"},
    "date": "2030-01-02T03:04:05+00:00",
}
PAGE = "before\n<!-- results/x.json: name, length | time_ms, copies{words} -->\nold\n<!-- end -->\nbehind\n"


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results/x.json").write_text(json.dumps(RECORD))
    return tmp_path


def test_table(checkout):
    text = filled(PAGE.format(words=""), checkout)
    assert text.splitlines() == [
        "before",
        "<!-- results/x.json: name, length | time_ms, copies -->",
        "|  | length | ms | copies |",
        "|---|---|---:|---:|",
        "| fast | 10 | 0.123 | 1,234 |",
        "| slow | 20 | failed | failed |",
        "",
        "a machine, torch 9.9, 2030-01-02.",
        "<!-- end -->",
        "behind",
    ]
    assert filled(text, checkout) == text


def test_a_column_may_have_another_heading(checkout):
    place = "<!-- results/x.json: name, length as L | time_ms, copies as times a copy -->\n<!-- end -->\n"
    lines = filled(place, checkout).splitlines()
    assert lines[1] == "|  | L | ms | times a copy |"
    assert lines[3] == "| fast | 10 | 0.123 | 1,234 |"


def test_findings(checkout):
    text = filled("<!-- results/x.json: findings -->\n<!-- end -->\n", checkout)
    assert text.splitlines()[1:-1] == [
        "- twice as fast",
        "- half the memory",
        "",
        "a machine, torch 9.9, 2030-01-02.",
    ]
    assert filled(text, checkout) == text


def test_claims(checkout):
    claims = [{"text": "It is so.", "verdict": "holds in 1, reversed in 2 of 3", "evidence": ["a", "b", "c"]}]
    (checkout / "results/y.json").write_text(json.dumps({"claims": claims}))
    text = filled("<!-- results/y.json: claims -->\nold\n<!-- end -->\n", checkout)
    assert text.splitlines()[1:-1] == [
        "| the paper says | here |",
        "|---|---|",
        "| It is so. | holds in 1, reversed in 2 of 3 |",
    ]
    assert filled(text, checkout) == text


def test_only_some_rows(checkout):
    assert "fast" not in filled(PAGE.format(words=" | slow, other"), checkout)


def test_missing_record(checkout):
    (checkout / "results/x.json").unlink()
    assert "not measured yet: results/x.json" in filled(PAGE.format(words=""), checkout)


def test_command(checkout):
    (checkout / "page.md").write_text(PAGE.format(words=""))
    main([str(checkout / "page.md")])
    assert (checkout / "page.md").read_text() == filled(PAGE.format(words=""), checkout)


PAGES = (
    "docs/engine.md",
    "docs/generation.md",
    "docs/reproduce.md",
    "docs/timeseries.md",
    "docs/training.md",
    "README.md",
)


@pytest.mark.parametrize("page", PAGES)
def test_documents_show_the_records(page):
    text = (ROOT / page).read_text()
    assert filled(text, ROOT) == text
