"""Tables read published runs: the nearest to each row, with their signs; nothing is invented for what is missing."""

import dataclasses
import json
from pathlib import Path

import pytest

from statespan.papers.records import schema
from statespan.papers.tables import definitions
from statespan.papers.tables.cells import missing, numbers_table
from statespan.papers.tables.collect import ReproduceOptions, cells_of, numbers
from statespan.papers.tables.registry import NOTES, TABLES
from statespan.papers.tables.spec import Compared, Counted, RowMean, Trained
from statespan.papers.tables.write import plain, write_table
from statespan.train import recipes
from tests.cli.make import invoke

ROOT = Path(__file__).parents[3]
PAGES = [
    *(f"s4-table{n}" for n in (4, 5, 6, 9, 10, 12, 13, 14)),
    "s4-section4.3",
    *(f"s4d-table{n}" for n in (4, 5, 6, 9, 10, 11)),
]


def publish(folder, name, *changes, value, seed=0, half=None):
    """A record of a published run with made-up numbers."""
    recipe = recipes.read(name, [*changes, f"train.seed={seed}"])
    metric = "rmse" if "bidmc" in name else "accuracy"
    record = {
        "recipe": recipe.to_dict(), "overrides": list(changes), "seed": seed, "metric": metric,
        "test": {metric: value}, "valid": {metric: value}, "steps": 1, "epochs": 1.0, "best_step": 1, "parameters": 1,
        "wall_seconds": 90.0, "machine": {"device": "a GPU"}, "versions": {"torch": "0", "commit": "0123456789abcdef"},
        "history": {"epoch": [1.0, 2.0], f"valid_{metric}": [value / 2, value]},
        "rates": None if half is None else {"2": {metric: half}},
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    schema.write(folder / f"{len(list(folder.iterdir())):03}.json", record)


@pytest.fixture
def options(tmp_path):
    return ReproduceOptions("minutes", None, (), (), tmp_path / "cells", ROOT / "results/bench", tmp_path / "tasks")


def found(name, options):
    return {(one.entry.row, one.entry.column): one for one in numbers(TABLES[name](), options)}


def test_seeds_are_averaged_and_speed_does_not_matter(options):
    for seed, value in ((0, 0.88), (1, 0.90)):
        publish(options.tasks, "lra-image-s4", "train.precision=bf16", "train.compile=both", value=value, seed=seed)
    one = found("s4-table4", options)["S4", "Image"]
    assert (one.ours, one.values, one.signs, one.status) == (pytest.approx(89.0), (88.0, 90.0), "", "done")
    assert one.delta == pytest.approx(0.35)
    assert "seed 0, 1.5 min on a GPU, commit 0123456789 (`000.json`); seed 1" in one.source
    left = {cell.recipe.name for cell in cells_of([TABLES["s4-table4"]()], options)}
    assert left == {f"lra-{task}-s4" for task in ("listops", "text", "retrieval", "pathfinder", "pathx")}


def test_every_form_counts_and_honest_selection_comes_first(options):
    publish(options.tasks, "lra-text-s4-published", value=0.87)
    one = found("s4-table4", options)["S4", "Text"]
    assert (one.ours, one.signs) == (pytest.approx(87.0), "¶")
    publish(options.tasks, "lra-text-s4-code", value=0.86)
    one = found("s4-table4", options)["S4", "Text"]
    assert (one.ours, one.signs) == (pytest.approx(86.0), "")


def test_a_plain_run_comes_before_a_better_one_with_tricks(options):
    publish(options.tasks, "smnist-s4", value=0.999)  # the recipe warps the digits
    one = found("s4-table6", options)["S4", "sMNIST"]
    assert (one.signs, one.delta, one.is_comparable) == ("†§", None, False)
    assert any(cell.recipe.name == "smnist-s4" for cell in cells_of([TABLES["s4-table6"]()], options))
    publish(options.tasks, "smnist-s4", "data.warp=false", value=0.995)
    one = found("s4-table6", options)["S4", "sMNIST"]
    assert (one.ours, one.signs, one.delta) == (pytest.approx(99.5), "", pytest.approx(-0.13))
    assert not any(cell.recipe.name == "smnist-s4" for cell in cells_of([TABLES["s4-table6"]()], options))


def test_a_run_fills_the_row_whose_settings_it_has(options):
    publish(options.tasks, "scifar-s4", "data.augment=true", value=0.93)
    publish(options.tasks, "scifar-s4", "model.norm=batch", "train.epochs=100", value=0.89)
    rows = found("s4-table6", options)
    assert rows["S4", "sCIFAR"].status == "waiting"
    augmented, batch = rows["S4, flips and crops", "sCIFAR"], rows["S4, BatchNorm", "sCIFAR"]
    assert (augmented.ours, augmented.signs, augmented.delta) == (pytest.approx(93.0), "†", pytest.approx(-0.16))
    assert (batch.ours, batch.signs) == (pytest.approx(89.0), "*")
    section = found("s4-section4.3", options)
    assert section["S4", "flips and crops"].ours == augmented.ours
    assert section["S4", "other norm"].ours == batch.ours
    assert round(section["S4", "parameters"].ours / 1e6, 1) == 7.9


def test_half_the_rate_comes_from_the_record(options):
    publish(options.tasks, "sc10-s4", value=0.97, half=0.95)
    rows = found("s4-table5", options)
    assert (rows["S4", "Raw"].ours, rows["S4", "0.5x"].ours) == (pytest.approx(97.0), pytest.approx(95.0))
    assert rows["S4", "MFCC"].status == "waiting"


def test_an_average_needs_all_of_its_numbers(options):
    tasks = ("listops", "text", "retrieval", "image", "pathfinder")
    for task in tasks:
        publish(options.tasks, f"lra-{task}-s4", value=0.8)
    assert found("s4-table4", options)["S4", "Avg"].ours is None
    publish(options.tasks, "lra-pathx-s4", value=0.5)
    one = found("s4-table4", options)["S4", "Avg"]
    assert (one.ours, one.entry.paper) == (pytest.approx(75.0), "86.09")
    assert "≠" in one.signs  # as of ListOps, which is generated


@pytest.mark.parametrize("name", ["s4-table4", "s4-table10", "s4d-table5"])
def test_the_printed_averages_are_those_of_the_printed_numbers(name):
    """X counts as chance; the paper rounds."""
    table = TABLES[name]()
    by_row = {}
    for entry in table.entries:
        by_row.setdefault(entry.row, {})[entry.column] = entry.paper
    for row in by_row.values():
        average = row.pop("Avg")
        values = [50.0 if value == "X" else float(value) for value in row.values()]
        assert sum(values) / 6 == pytest.approx(float(average), abs=0.0151)


def test_ablations_take_runs_with_the_settings_of_their_cells_only(options):
    publish(options.tasks, "ablation-scifar-s4d-inv", "model.ssm.init=inv2", value=0.8)
    publish(options.tasks, "ablation-scifar-s4d-inv", value=0.84, seed=1)
    publish(options.tasks, "ablation-scifar-s4d-inv", value=0.82)
    minutes = found("s4d-table3a", options)
    assert {one.status for one in minutes.values()} == {"waiting"}
    full = dataclasses.replace(options, budget="full")
    rows = found("s4d-table3a", full)
    assert rows["S4D-Inv", "sCIFAR"].values == (82.0, 84.0)
    assert rows["S4D-Inv2", "sCIFAR"].status == "partly"
    assert rows["S4D-Inv2", "sCIFAR"].values == (80.0,)
    first = found("s4d-table3b", full)["S4D-Inv, trained", "sCIFAR first"]
    assert first.values == (41.0, 42.0)
    keys = [cell.key for cell in cells_of([TABLES["s4d-table3a"]()], full)]
    assert sum("ablation-scifar-s4d-inv-" in key and "inv2" in key for key in keys) == 1


def test_a_baseline_with_a_recipe_is_trained_beside_the_cited_number(options, monkeypatch):
    known = [*recipes.names(), "smnist-tcn"]
    monkeypatch.setattr(definitions.recipes, "names", lambda: known)
    baselines = definitions.sections("tables.yaml")["s4-table6"]["baselines"]
    monkeypatch.setitem(baselines, "TCN", "tcn")
    table = TABLES["s4-table6"]()
    entries = {(entry.row, entry.column): entry for entry in table.entries}
    tcn = entries["TCN", "sMNIST"]
    assert isinstance(tcn, Trained)
    assert (tcn.recipe, tcn.paper, tcn.overrides) == ("smnist-tcn", "99.0", ("data.warp=false",))
    assert not isinstance(entries["TCN", "pMNIST"], Trained)
    assert "TCN" in table.cited


def test_runs_on_other_data_do_not_fill_a_row(options):
    publish(options.tasks, "bidmc-hr-s4-legs", "data.split=patients", value=3.0)
    assert found("s4d-table10", options)["S4-LegS", "HR"].status == "waiting"
    publish(options.tasks, "bidmc-hr-s4-legs", "model.d_state=64", value=0.4)
    one = found("s4d-table10", options)["S4-LegS", "HR"]
    assert (one.ours, one.signs, one.delta) == (0.4, "*", pytest.approx(0.068))


def test_what_is_missing_has_a_dash_and_a_command(options):
    table = TABLES["s4-table4"]()
    results = numbers(table, options)
    rows = {row[0]: row for row in numbers_table(table, results).rows}
    assert rows["S4"][1::3] == ["59.60", "86.82", "90.90", "88.65", "94.20", "96.35", "86.09"]
    assert rows["S4"][2::3] == ["–"] * 7
    assert rows["Transformer (cited)"][1:4] == ["36.37", "", ""]
    lines = missing(table, results)
    assert "S4 / Text: `statespan train lra-text-s4-code`" in lines  # the form that the queue trains
    assert len(lines) == 6
    five = TABLES["s4-table5"]()
    assert {"ODE-RNN", "CKConv", "LSSL", "NRDE"} == set(five.cited)  # appendix D.2: the others were run by the authors


@pytest.mark.parametrize("name", PAGES)
def test_every_missing_number_of_a_page_names_a_recipe(name, options, tmp_path):
    table = TABLES[name]()
    write_table(table, options, tmp_path)
    text = (tmp_path / f"{name}.md").read_text()
    trained = [entry for entry in table.entries if isinstance(entry, Trained)]
    assert trained
    assert text.count("statespan train ") == len({(entry.recipe, entry.overrides) for entry in trained})
    record = json.loads((tmp_path / f"{name}.json").read_text())
    ours = [one for one in record["numbers"] if one.get("ours") is not None]
    kinds = {(entry.row, entry.column): entry for entry in table.entries}
    assert all(isinstance(kinds[one["row"], one["column"]], Counted) for one in ours)


@pytest.mark.parametrize("name", [*PAGES, "s4d-table7", "s4d-table8", "s4d-table12", "s4d-table1", "s4-table11"])
def test_the_committed_pages_are_those_of_the_records(name):
    results = ROOT / "results"
    record = json.loads((results / f"reproduce/{name}.json").read_text())
    changes, only = tuple(record["changes"]), ("scifar", "bidmc") if name in ("s4d-table7", "s4d-table8") else ()
    options = ReproduceOptions(
        record["budget"], None, only, changes, results / "reproduce/cells", results / "bench", results / "tasks"
    )
    assert [plain(one) for one in numbers(TABLES[name](), options)] == record["numbers"]


def test_settings_of_table_1_and_12():
    one = {(e.row, e.column): e for e in TABLES["s4d-table1"]().entries}
    assert all(isinstance(entry, Compared) for entry in one.values())
    assert {place for place, entry in one.items() if entry.paper != entry.ours} == {
        ("S4", "kernel"), ("S4D", "discretization"), ("S4D", "Re A"), ("S4D", "B trained"),
        ("S4D", "initialization of A"),
    }  # fmt: skip
    assert one["S4", "kernel"].ours == "krylov"
    twelve = TABLES["s4d-table12"]().entries
    assert len(twelve) == 9 * 12
    assert [(e.row, e.column, e.paper, e.ours) for e in twelve if e.paper != e.ours] == []


def test_counts_of_parameters_are_those_of_the_papers(options):
    rows = found("s4d-table11", options)
    counted = {row: one.ours for (row, _), one in rows.items() if isinstance(one.entry, Counted)}
    for row in ("S4-LegS", "S4-FouT", "S4-LegS+FouT", "S4D-LegS", "S4D-Inv", "S4D-Lin"):
        count = counted[row]
        assert count == pytest.approx(307e3 if row.startswith("S4-") else 306e3, abs=1e3)


def test_ratios_of_tables_2_and_7(options):
    rows = found("s4-table2", options)
    for width in (128, 256, 512):
        lssl, s4 = rows["LSSL", f"ms, {width}"], rows["S4, chunk engine", f"ms, {width}"]
        assert rows["ratio, chunk engine", f"ms, {width}"].ours == pytest.approx(lssl.ours / s4.ours, rel=1e-12)
    assert rows["ratio, chunk engine", "MB, 512"].entry.paper == "392"
    seven = found("s4-table7", options)
    findings = json.loads((ROOT / "results/bench/s4_table7-cuda.json").read_text())["findings"]
    assert f"S4 base over Transformer: {seven['S4 (base)', '×'].ours:.1f}x" in findings
    assert f"S4 large over Transformer: {seven['S4 (large)', '×'].ours:.1f}x" in findings
    assert seven["PixelCNN++", "2D bias"].entry.paper == "2D conv."


@pytest.mark.parametrize("name", list(NOTES))
def test_what_has_no_numbers_has_a_page(name, tmp_path):
    done = invoke("reproduce", name, "--out", tmp_path)
    assert done.exit_code == 0, done.stderr
    text = (tmp_path / f"{name}.md").read_text()
    assert text.startswith(f"# {NOTES[name]['title']}\n")
    assert json.loads((tmp_path / f"{name}.json").read_text())["numbers"] == []


def test_averages_have_columns_of_their_table():
    for make in TABLES.values():
        table = make()
        names = {column.name for column in table.columns}
        assert all({*entry.columns} < names for entry in table.entries if isinstance(entry, RowMean))
