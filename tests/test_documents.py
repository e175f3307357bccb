"""README and docs agree with the records, the code and each other."""

import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import typer

from statespan import data
from statespan.cli import plot
from statespan.cli.app import app
from statespan.papers.records import table
from statespan.papers.runs import parse_axis, product
from statespan.papers.tables import coverage
from statespan.papers.tables.forecasting.table import findings
from statespan.papers.tables.registry import choose
from statespan.train import recipes
from tests import tree
from website import paths

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
COMMANDS = sorted(
    {
        line.strip()
        for page in PAGES
        for line in re.findall(r"^(?: {4})?(?:torchrun [-\w ]*-m )?(statespan \w.*)$", page.read_text(), re.MULTILINE)
        if line.split()[1] != "implements"  # prose, not a command
    }
)


def test_readme_shows_the_recorded_run():
    record = json.loads((ROOT / "results/digits.json").read_text())
    readme = (ROOT / "README.md").read_text()
    accuracy, seconds = 100 * record["test"]["accuracy"], record["wall_seconds"]
    pixels, steps = record["every_second_pixel"], record["step_by_step"]
    assert record["overrides"] == []
    for line in (
        f"{record['parameters']:,} parameters, weights of the best validation (step {record['best_step']})",
        f"test accuracy {accuracy:.1f}% after {record['epochs']:g} epochs, {seconds:.0f} s",
        f"every second pixel  {100 * pixels['accuracy']:.1f}% with dt_scale=2.0 and no training "
        f"({100 * pixels['accuracy_at_rate_1']:.1f}% with dt_scale=1.0)",
        f"step by step        {steps['identical']} of {steps['images']} predictions identical, "
        f"scores differ by {steps['largest_difference']:.0e}",
    ):
        assert line in readme.splitlines()
    script = (ROOT / "examples/digits.py").read_text()
    for words in ("weights of the best validation (step", "with dt_scale=2.0 and no training", "predictions identical"):
        assert words in readme, words
        assert words in script, words


def test_training_page_shows_the_recorded_text():
    record = json.loads((ROOT / "results/own-text.json").read_text())
    page = " ".join((ROOT / "docs/training.md").read_text().split())
    valid, test = (record[part]["bits_per_character"] for part in ("valid", "test"))
    for words in (
        f"{record['parameters']:,} parameters",
        f"{record['text']['bytes']:,} characters",
        f"{record['steps']:,} steps took {record['cpu_seconds']:.0f} s of CPU time",
        f"{valid:.3f} bits per character in validation and {test:.3f} in the test",
    ):
        assert words in page
    shown = re.search(r"temperature ([\d.]+): (LEONTES: .*?) The text is", page)
    assert float(shown[1]) == record["sample"]["temperature"]
    assert shown[2] in " ".join(record["sample"]["text"].split())


@pytest.mark.parametrize("page", ["README.md", "docs/results.md"])
def test_result_tables_match_the_records(page):
    text = (ROOT / page).read_text()
    assert [match["kind"] for match in table.PLACE.finditer(text)] == (
        ["short"] if page == "README.md" else ["overview", "long"]
    )
    assert table.filled(text, ROOT, "../" * page.count("/")) == text


def test_augmented_results_are_compared_with_augmented_ones():
    """S4 section 4.3: 93.16 with flips and crops, beside 91.13 (Table 6) without."""
    short, long = ((ROOT / page).read_text() for page in ("README.md", "docs/results.md"))
    assert "the papers' was not" not in short + long
    (row,) = [line for line in short.splitlines() if line.startswith("| sCIFAR |")]
    assert row.split(" | ")[1:4:2] == ["91.80", "93.16"]
    runs = long.partition("results/tasks: long")[2]
    rows = [line for line in runs.splitlines() if line.startswith("| sCIFAR |")]
    assert rows
    for row in rows:
        assert row.split(" | ")[2] == ("93.16 †" if "data.augment=true" in row else "91.80")
    assert recipes.read("scifar-s4").about.number == "91.13"


def test_readme_marks_results_that_are_not_comparable():
    rows = {line.split(" | ")[0][2:]: line for line in (ROOT / "README.md").read_text().splitlines() if "|" in line}
    marked = ("LRA ListOps", "LRA Pathfinder", "LRA Path-X", "BIDMC HR", "BIDMC RR", "BIDMC SpO2", "Speech, raw")
    unmarked = {
        name: cell
        for name in (*marked, "Speech, raw, 0.5×")
        for cell in rows[name].rstrip(" |").split(" | ")[2::2]  # the columns of our results
        if cell != "–" and "≠" not in cell and not (name.startswith("BIDMC") and "†" not in cell)
    }
    assert unmarked == {}  # plain BIDMC runs use the papers' kind of split; crops overlap it
    assert [name for name in ("LRA ListOps", "BIDMC HR", "Speech, raw") if "≠" not in rows[name]] == []
    assert [name for name in ("sMNIST", "pMNIST", "sCIFAR", "LRA Image", "LRA Text") if "≠" in rows[name]] == []
    seen = ("sMNIST", "LRA ListOps", "LRA Text", "BIDMC HR", "BIDMC RR", "BIDMC SpO2")
    assert [name for name in seen if "§" not in rows[name]] == []


def test_coverage_table_matches_the_recipes():
    text = (ROOT / "docs/reproduce.md").read_text()
    assert len(coverage.PLACE.findall(text)) == 1
    assert coverage.filled(text) == text
    covered = coverage.covered()
    assert {name: covered[name][0] for name in ("S4 Table 4", "S4 section 4.3", "S4D Table 3b", "S4D Table 10")} == {
        "S4 Table 4": 6, "S4 section 4.3": 5, "S4D Table 3b": 42, "S4D Table 10": 18,
    }  # fmt: skip
    assert "TCN" in coverage.without()["S4 Table 6"]
    assert "LSSL" not in coverage.without()["S4 Table 6"]
    for page in PAGES:
        assert not re.search(r"recipe\s+for\s+each\s+row|file\s+for\s+each\s+row", page.read_text()), page.name


def test_forecast_columns_name_the_model_that_was_trained():
    record = json.loads((ROOT / "results/forecast-cuda.json").read_text())
    assert record["findings"] == findings(record["rows"])
    page = (ROOT / "docs/timeseries.md").read_text()
    assert "|  | horizon | S4D-LegS (best of 3 or mean) | S4 in the paper |" in page
    assert not re.search(r"^\|.*\| S4 \|", page, re.MULTILINE)
    s4_fits = [fit for fit in record["fits"] if fit["model"] == "S4"]
    assert {len(fit["tried"]) for fit in s4_fits} == {4}  # three variants and their mean
    assert {"variant" in fit or fit.get("combined") == 3 for fit in s4_fits} == {True}


def test_map_in_contributing_matches_the_tree():
    text = tree.PAGE.read_text()
    assert len(tree.PLACE.findall(text)) == 1
    assert tree.filled(text) == text, "python -m tests.tree updates the map"
    shown = "\n".join(tree.lines())
    for path in tree.PACKAGE.rglob("*.py"):  # independent of how the map is built
        word = path.parent.name + "/" if path.name == "__init__.py" else path.stem
        assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", shown), path


def test_records_contain_no_local_paths():
    for path in ROOT.glob("results/**/*.json"):
        assert not re.search(r'"[^"]*(?:/home/|/root|/tmp/|/Users/|/work/|[A-Z]:\\\\)', path.read_text()), path


def anchors(page):
    """The anchors of a page's headings."""
    return {paths.anchor(heading) for heading in re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)}


def test_links_resolve():
    for page in PAGES:
        for target, anchor in (match.groups(default="#") for match in paths.links(page.read_text())):
            anchor = anchor.removeprefix("#")
            path = page.parent / target if target else page
            assert path.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors(path), f"{page.name}: {target}#{anchor}"


def test_readme_is_short_and_links_every_page():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 200
    assert [page.name for page in ROOT.glob("docs/*.md") if f"](docs/{page.name})" not in text] == []


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_in_the_documents_parse(line):
    """The command, its options, recipe and keys exist."""
    _, name, *arguments = shlex.split(line.partition(" < ")[0], comments=True)
    command = typer.main.get_command(app()).commands[name]
    if name == "bench":
        return
    given = command.make_context(name, arguments).params  # a wrong option raises
    for key in ("recipe", "word"):
        text = given.get(key)
        if text and not text.endswith(".yaml") and not text.startswith("runs/"):
            assert [one for one in recipes.names() if text in one], text
            recipes.read(text, given.get("changes") or []) if key == "recipe" else None
    if name == "data" and given["name"]:
        assert given["name"] in data.names()
    if name == "plot":
        assert given["kind"] in plot.KINDS
    if name == "reproduce" and not given["listing"] and not given["queue"]:
        assert choose([word for word in given["names"] if "=" not in word])
    if name == "ablate":
        base = recipes.read(given["recipe"], given["changes"] or [])
        assert product(base, [parse_axis(text) for text in given["grid"]], given["seeds"])


def test_pictures_are_small():
    pictures = [*ROOT.glob("docs/*/*.png"), *ROOT.glob("results/reproduce/*.png")]
    assert len(pictures) > 20
    assert [path.name for path in pictures if not 1_000 < path.stat().st_size < 150_000] == []


def test_tutorial_shows_every_picture_of_its_script(tmp_path, monkeypatch):
    script = str(ROOT / "examples" / "tutorial.py")
    monkeypatch.setattr(sys, "argv", [script, "--out", str(tmp_path)])
    runpy.run_path(script, run_name="__main__")
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert re.findall(r"\(tutorial/([^)]*)\)", (ROOT / "docs/tutorial.md").read_text()) == drawn
    assert len(drawn) == 10


def test_every_dataset_and_model_is_documented():
    page = (ROOT / "docs/data.md").read_text()
    assert [name for name in data.names() if f"`{name}`" not in page] == []
    from statespan import models

    page = (ROOT / "docs/training.md").read_text()
    assert [name for name in models.names() if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_pages_install_from_a_clone(page):
    """The package is in no registry yet, so a name alone cannot be installed."""
    assert not re.search(r"pip install \S*statespan", page.read_text())
