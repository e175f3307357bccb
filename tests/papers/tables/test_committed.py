"""The tables that are in the repository: made from the cells that are there, by the rules of now."""

import json
from pathlib import Path

import pytest

from statespan.papers.runs.cell import Cell
from statespan.papers.tables import write
from statespan.papers.tables.cells import CITED
from statespan.papers.tables.claims import CLAIMS, TableNumbers, conclusions
from statespan.papers.tables.collect import ReproduceOptions, numbers
from statespan.papers.tables.registry import TABLES
from statespan.train import read_recipe

RESULTS = Path(__file__).parents[3] / "results"
FILES = sorted((RESULTS / "reproduce").glob("*.cells.json"))
CELLS = {key: record for path in FILES for key, record in json.loads(path.read_text())["cells"].items()}


def test_every_cell_is_still_known_by_its_name():
    """A setting that is new in all recipes would make other cells of them, and the tables empty."""
    assert len(CELLS) > 100
    for key, record in CELLS.items():
        assert Cell(read_recipe(record["recipe"])).key.rpartition("-")[2] == key.rpartition("-")[2]


@pytest.mark.parametrize("name", list(CLAIMS))
def test_the_pages_say_what_the_cells_say(name):
    record = json.loads((RESULTS / f"reproduce/{name}.json").read_text())
    changes, cells = tuple(record["changes"]), RESULTS / "reproduce/cells"
    options = ReproduceOptions(record["budget"], 2, ("scifar", "bidmc"), changes, cells, RESULTS / "bench")
    table = TABLES[name]()
    found = numbers(table, options)
    assert [(one.status, list(one.values)) for one in found] == [(n["status"], n["values"]) for n in record["numbers"]]
    assert sum(one.status == "done" and len(one.values) == 2 for one in found) >= 20
    verdicts = [(claim.text, claim.verdict, list(claim.evidence)) for claim in conclusions(TableNumbers(table, found))]
    assert verdicts == [(claim["text"], claim["verdict"], claim["evidence"]) for claim in record["claims"]]


@pytest.mark.parametrize("name", ["s4-table2", "s4-table3", "s4-table7", "s4-table8"])
def test_the_pages_of_speeds_say_what_the_benchmarks_say(name):
    record = json.loads((RESULTS / f"reproduce/{name}.json").read_text())
    options = ReproduceOptions(record["budget"], None, (), (), RESULTS / "reproduce/cells", RESULTS / "bench")
    table = TABLES[name]()
    found = numbers(table, options)
    assert [write.plain(one) for one in found] == record["numbers"]
    page = (RESULTS / f"reproduce/{name}.md").read_text()
    assert table.about in page
    for row in table.rows:
        assert f"\n| {row}{CITED * (row in table.cited)} |" in page
