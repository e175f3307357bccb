"""Pages: whole, with all their pictures, and nothing in them that was not measured."""

import json
import re
import sys

import pytest

from statespan.papers.tables.figures import FIGURES
from statespan.papers.tables.registry import TABLES
from statespan.papers.tables.write import write_figure, write_table
from tests.cli.make import invoke, one_line
from tests.papers.tables.fill import fill
from tests.papers.tables.test_tables import options
from tests.pictures import cut_text


def pictures_are_there(folder, name):
    html = (folder / f"{name}.html").read_text()
    sources = re.findall(r'<img src="([^"]*)"', html)
    assert all(source.startswith("data:image/png;base64,iVBOR") for source in sources)
    assert not re.search(r'(?:src|href)="(?!data:)', html)  # needs no other file
    markdown = (folder / f"{name}.md").read_text()
    linked = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", markdown)
    assert all((folder / path).read_bytes()[:4] == b"\x89PNG" for path in linked)
    assert len(linked) == len(sources)
    assert all(0 < (folder / path).stat().st_size < 150_000 for path in linked)
    return len(linked)


@pytest.mark.share(3)
@pytest.mark.parametrize("name", FIGURES)
def test_figures(name, tmp_path):
    drawn = FIGURES[name]()
    write_figure(name, name, drawn, tmp_path)
    assert pictures_are_there(tmp_path, name) == 1
    assert (tmp_path / f"{name}.svg").read_text().startswith("<?xml")
    assert all(len(text) > 40 for text in drawn.paragraphs)
    assert {scale for axes in drawn.figure.axes for scale in (axes.get_xscale(), axes.get_yscale())} <= {
        "linear",
        "log",
    }
    assert cut_text(drawn.figure) == []
    assert json.loads((tmp_path / f"{name}.json").read_text())["numbers"] == drawn.numbers


def test_a_table_with_numbers(tmp_path):
    table, chosen = TABLES["s4d-table2"](), options(tmp_path, only=("scifar",))
    fill(table, chosen, offset=-5.0)
    counts = write_table(table, chosen, tmp_path)
    assert counts == {"done": 10, "not run": 20}
    text = (tmp_path / "s4d-table2.md").read_text()
    assert "| bilinear, exp | 85.20 (0.18) | 80.20 ± 0.00 (2) | -5.00 | 89.52 (0.01) | not run |" in text
    assert "scifar 8 epochs instead of 100." in text
    assert "(ii) Training B is consistently slightly better. | **holds** | sCIFAR, trained B" in text
    assert pictures_are_there(tmp_path, "s4d-table2") == 2
    record = json.loads((tmp_path / "s4d-table2.json").read_text())
    assert [claim["verdict"] for claim in record["claims"]] == ["holds"] * 4


def test_a_table_without_its_data_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("STATESPAN_OFFLINE", "1")
    arguments = ["reproduce", "s4-table12", "--only", "mnist", "--data", tmp_path, "--out", tmp_path / "out"]
    arguments += ["--tasks", tmp_path / "none"]
    done = invoke(*arguments, "--processes", 0, "--device", "cpu")
    assert done.exit_code == 0, done.stderr
    text = (tmp_path / "out/s4-table12.md").read_text()
    assert "| S4 | 99.63 | data missing |  | 98.70 | data missing |  | 91.13 | – |  |" in text
    assert (
        "S4 / sMNIST: `statespan train smnist-s4 data.warp=false`; the files of dataset 'smnist' are not here" in text
    )
    assert "S4 / sCIFAR: `statespan train scifar-s4`" in text
    assert pictures_are_there(tmp_path / "out", "s4-table12") == 0


def test_the_command_runs_cells_and_writes_pages(tmp_path, monkeypatch):
    """A table of one cell, trained in seconds; then again, from what is there."""
    from statespan.papers.tables import registry
    from statespan.papers.tables.spec import Column, PaperTable, Printed, Trained

    entries = (Trained("S4D", "digits", "99.0", "digits-s4d"), Printed("other", "digits", "50.0"))
    small = PaperTable("s4-table9", "Small", "About.", (Column("digits"),), entries)
    monkeypatch.setitem(registry.TABLES, "s4-table9", lambda: small)
    arguments = ["reproduce", "s4-table9", "train.steps=3", "--out", tmp_path, "--processes", 0, "--device", "cpu"]
    first = invoke(*arguments)
    assert first.exit_code == 0, first.stderr
    assert "1 done" in first.stdout
    record = json.loads((tmp_path / "s4-table9.json").read_text())
    assert 0 <= record["numbers"][0]["ours"] <= 100
    assert not list((tmp_path / "cells").glob("digits-*"))
    (cell,) = json.loads((tmp_path / "s4-table9.cells.json").read_text())["cells"].values()
    assert (cell["recipe"]["name"], cell["steps"], len(cell["curve"])) == ("digits-s4d", 3, 1)
    before = (tmp_path / "s4-table9.cells.json").stat().st_mtime_ns
    assert invoke(*arguments).exit_code == 0
    assert (tmp_path / "s4-table9.cells.json").stat().st_mtime_ns == before
    assert json.loads((tmp_path / "s4-table9.json").read_text())["numbers"] == record["numbers"]
    assert pictures_are_there(tmp_path, "s4-table9") == 1


def test_a_cell_that_a_kill_left_unmerged_is_merged_the_next_time(tmp_path, monkeypatch):
    from statespan.papers.records import schema
    from statespan.papers.tables import registry
    from statespan.papers.tables.spec import Column, PaperTable, Trained

    small = PaperTable(
        "s4-table9", "Small", "About.", (Column("d"),), (Trained("S4D", "d", "99.0", "digits-s4d"),), seeds=2
    )
    monkeypatch.setitem(registry.TABLES, "s4-table9", lambda: small)
    arguments = ["reproduce", "s4-table9", "train.steps=3", "--out", tmp_path, "--processes", 0, "--device", "cpu"]
    with monkeypatch.context() as patch:
        patch.setattr(schema, "write_cells", lambda path, cells: sys.exit(137))
        assert invoke(*arguments).exit_code == 137
    times = [json.loads(path.read_text())["wall_seconds"] for path in sorted(tmp_path.glob("cells/*/result.json"))]
    assert len(times) == 2
    with monkeypatch.context() as patch:  # the next one dies while it writes the file
        patch.setattr("statespan._io.rename", lambda old, new: sys.exit(137))
        assert invoke(*arguments).exit_code == 137
    assert len(list(tmp_path.glob("cells/*/result.json"))) == 2
    assert invoke(*arguments).exit_code == 0
    cells = json.loads((tmp_path / "s4-table9.cells.json").read_text())["cells"]
    assert [cells[key]["wall_seconds"] for key in sorted(cells)] == times  # nothing was trained again
    assert not list(tmp_path.glob("cells/*/result.json"))


def test_cells_that_are_to_be_kept_stay_where_they_are(tmp_path, monkeypatch):
    from statespan.papers.tables import registry
    from statespan.papers.tables.spec import Column, PaperTable, Trained

    small = PaperTable("s4-table9", "Small", "About.", (Column("d"),), (Trained("S4D", "d", "99.0", "digits-s4d"),))
    monkeypatch.setitem(registry.TABLES, "s4-table9", lambda: small)
    arguments = ["train.steps=3", "--out", tmp_path, "--processes", 0, "--device", "cpu", "--keep", "model"]
    assert invoke("reproduce", "s4-table9", *arguments).exit_code == 0
    (model,) = tmp_path.glob("cells/digits-*/model/config.json")
    assert (tmp_path / "s4-table9.cells.json").is_file()
    assert invoke("reproduce", "s4-table9", *arguments).exit_code == 0
    assert model.is_file()


def test_list_shows_everything_with_its_cost():
    done = invoke("reproduce", "--list")
    assert done.exit_code == 0
    for name in ("s4-table9", "s4-figure2", "s4d-table3b", "s4d-figure5"):
        assert name in done.stdout
    assert "statespan bench s4_table2" in done.stdout


MISTAKES = {
    "no name": ([], "name a table or figure"),
    "unknown": (["s4d-tabel2"], "did you mean s4d-table2?"),
    "budget": (["s4d-figure1", "--budget", "hours"], "--budget must be minutes or full"),
    "seeds": (["s4d-figure1", "--seeds", "0"], "--seeds must be an integer >= 1, got 0"),
    "only": (["s4d-table2", "--only", "xyz"], "--only must have a part of a recipe's name"),
    "a change": (["s4d-table2", "train.lrr=1"], "train.lrr is not a key of train"),
    "out": (["s4d-figure1", "--out", "{file}"], "--out must be a folder that can be written to"),
    "processes": (["s4d-figure1", "--processes", "-2"], "--processes must be"),
    "device": (["s4d-figure1", "--device", "tpu"], "device is tpu"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    arguments, said = MISTAKES[name]
    done = invoke("reproduce", *(word.format(file=tmp_path / "file") for word in arguments))
    assert said in one_line(done)
