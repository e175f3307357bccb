"""Tables and pictures say what the records say."""

import json
from pathlib import Path

import pytest

from statespan.published import picture, table
from statespan.published.tasks import TASKS, paper
from tests.commands.make import invoke, one_line

ROOT = Path(__file__).parent.parent.parent


def record(recipe, data, seed, number, *, metric="accuracy", minutes=5.0, overrides=(), **more):
    """A record with made-up numbers."""
    history = {"epoch": [1.0, 2.0], "seconds": [60.0, 60 * minutes], f"valid_{metric}": [number / 2, number]}
    return {
        "recipe": {"name": recipe, "data": data}, "overrides": list(overrides), "seed": seed, "metric": metric,
        "test": {metric: number}, "valid": {metric: number}, "steps": 10, "epochs": 2.0, "best_step": 10,
        "parameters": 250_000, "wall_seconds": 60 * minutes, "hardware": {"device": "NVIDIA H200", "processes": 1},
        "versions": {}, "history": history, "rows": {"train": 5000, "test": 10}, **more,
    }  # fmt: skip


@pytest.fixture
def records():
    patients = {"name": "bidmc-hr", "split": "patients"}
    half = {"rates": {"2": {"accuracy": 0.25}}}
    return {
        "a-seed0.json": record("smnist-s4d", {"name": "smnist"}, 0, 0.9),
        "a-seed1.json": record("smnist-s4d", {"name": "smnist"}, 1, 0.91, minutes=7.0),
        "b-seed0.json": record("smnist-s4", {"name": "smnist"}, 0, 0.95, overrides=["train.lr=0.1"]),
        "c-seed0.json": record("x", {"name": "bidmc-hr"}, 0, 0.4, metric="rmse"),
        "d-seed0.json": record("x", patients, 0, 7.5, metric="rmse", overrides=['data.split="patients"']),
        "e-seed0.json": record("sc10-s4", {"name": "sc10", "features": "raw"}, 0, 0.5, **half),
        "f-seed3.json": record("own", {"name": "digits"}, 3, 0.75),
        "g-seed0.json": record("masked", {"name": "text", "find": True}, 0, 3.5, metric="perplexity"),
    }


def cells(text, name):
    return [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith(f"| {name} |")
    ]


def test_easier_levels_are_not_the_task():
    easy = [{"name": "pathfinder", "contour": 6}, {"name": "path-x", "contour": 9}]
    records = {f"{i}.json": record(f"x{i}", data, 0, 0.99) for i, data in enumerate(easy)}
    long = table.make(records, "long", "results/tasks")
    assert [cells(long, name)[0][4] for name in ("LRA Pathfinder", "LRA Path-X")] == ["not run yet"] * 2
    names = ("pathfinder, contours of 6 dashes", "path-x, contours of 9 dashes")
    assert [cells(long, name)[0][4] for name in names] == ["99.00"] * 2
    records["same.json"] = record("x", {"name": "pathfinder", "contour": 14}, 0, 0.96)
    records["unsaid.json"] = record("y", {"name": "pathfinder"}, 0, 0.95)
    assert [row[4] for row in cells(table.make(records, "long", ""), "LRA Pathfinder")] == ["96.00", "95.00"]
    made = "LRA ListOps, LRA Pathfinder, LRA Path-X: of data made here by the benchmark's rules"
    assert made in table.make(records, "short", "")


def test_tables(records):
    long, short = (table.make(records, kind, "results/tasks") for kind in ("long", "short"))
    best, second = cells(long, "sMNIST")
    assert best[:6] == ["sMNIST", "smnist-s4 `train.lr=0.1`", "99.63", "≥ 99.6", "95.00", "95.00 (0)"]
    assert second[4:] == [
        "90.50", "90.00 (0), 91.00 (1)", "5,000 / 10", "0.25 M", "2", "5 to 7 min", "NVIDIA H200",
        "[0](results/tasks/a-seed0.json) [1](results/tasks/a-seed1.json)",
    ]  # fmt: skip
    assert cells(short, "sMNIST") == [["sMNIST", "99.63", "95.00", "0.25 M", "5 min", "NVIDIA H200"]]
    assert [row[4] for row in cells(long, "BIDMC HR")] == ["0.400"]
    assert [row[2:5] for row in cells(long, "BIDMC HR, new patients")] == [["–", "report", "7.500"]]
    assert [row[4] for row in cells(long, "Speech, raw, 0.5×")] == ["25.00"]
    assert cells(long, "LRA Image") == [["LRA Image", "", "89.07", "≥ 88.5", "not run yet", *[""] * 7]]
    assert [row[4:6] for row in cells(long, "digits")] == [["75.00", "75.00 (3)"]]
    assert [row[4] for row in cells(long, "text, hidden tokens")] == ["3.500"]
    assert [row[4] for row in cells(long, "LRA Text")] == ["not run yet"]
    assert cells(short, "digits") == []
    assert long.count("not run yet") == len(TASKS) - 5
    assert "†" not in long + short
    records["b-seed0.json"]["valid"]["accuracy"] = 0.5  # the test has no say in which recipe comes first
    assert [row[4] for row in cells(table.make(records, "long", ""), "sMNIST")] == ["90.50", "95.00"]


@pytest.mark.parametrize("kind", ["long", "short"])
@pytest.mark.parametrize("change", [{"warp": True}, {"speed": 0.2}, {"crop": 20}])
def test_what_was_trained_on_changed_data_is_marked(records, kind, change):
    records["b-seed0.json"]["recipe"]["data"] |= change
    records["c-seed0.json"]["recipe"]["data"] |= {"augment": False, "speed": 0.0, "crop": 32}
    made = table.make(records, kind, "")
    assert "95.00 †" in cells(made, "sMNIST")[0]
    assert "0.400" in cells(made, "BIDMC HR")[0]
    assert made.count("†") == 2  # the number, and what the sign says
    options = ", ".join(f"`data.{name}`" for name in ("augment", "warp", "shuffle", "hide", "speed", "crop"))
    assert f"†: the training data was changed at random ({options})" in made


def test_what_began_with_other_weights_is_marked_and_its_time_is_whole(records):
    records["b-seed0.json"]["start"] = {"name": "other", "wall_seconds": 180.0}
    records["b-seed0.json"]["recipe"]["data"]["hide"] = 0.1
    made = table.make(records, "short", "")
    assert cells(made, "sMNIST") == [["sMNIST", "99.63", "95.00 †‡", "0.25 M", "8 min", "NVIDIA H200"]]
    assert made.count("‡") == 2
    assert "‡: begun with the weights of another recipe, whose time is counted, too." in made
    before = [x for x, _ in picture._points({**records["b-seed0.json"], "start": None})]
    assert before
    assert [x for x, _ in picture._points(records["b-seed0.json"])] == pytest.approx([x + 3 for x in before])


def test_the_papers_numbers_are_the_recipes():
    """The best of S4 and S4D in the papers' tables."""
    wanted = {
        "sMNIST": "99.63", "pMNIST": "98.70", "LRA ListOps": "60.52", "LRA Image": "89.07", "sCIFAR": "91.80",
        "LRA Text": "87.34", "LRA Pathfinder": "94.46", "LRA Path-X": "96.35", "BIDMC HR": "0.332",
        "BIDMC RR": "0.163", "BIDMC SpO2": "0.068", "Speech, raw": "98.32", "Speech, raw, 0.5×": "96.30",
    }  # fmt: skip
    assert {task.name: paper(task) for task in TASKS if paper(task)} == wanted


def test_pictures(records, tmp_path):
    figure = picture.times(records)
    drawn = {axes.get_title(loc="left"): axes for axes in figure.axes if axes.get_visible()}
    papers = ["sMNIST", "BIDMC HR", "BIDMC HR, new patients", "Speech, raw"]
    assert list(drawn) == [*papers, "digits", "text, hidden tokens"]
    lines = [line.get_xydata().tolist() for line in drawn["sMNIST"].lines]
    assert [[1.0, 45.0], [7.0, 91.0]] not in lines
    assert [[1.0, 45.5], [7.0, 91.0]] in lines
    assert [[7.0, 91.0]] in lines  # the test
    assert [y for _, y in lines[-1]] == [99.63, 99.63]
    said = [text.get_text() for text in drawn["BIDMC HR"].get_legend().get_texts()]
    assert said == ["x", "paper 0.332", "reference: 500 epochs"]
    helped = record("x", {"name": "bidmc-hr", "crop": 20}, 0, 0.2, metric="rmse", start={"wall_seconds": 0.0})
    (axes,) = (one for one in picture.times({"h-seed0.json": helped}).axes if one.get_title(loc="left") == "BIDMC HR")
    assert axes.get_legend().get_texts()[0].get_text() == "x †‡"  # as in the tables
    for name, one in records.items():
        (tmp_path / name).write_text(json.dumps(one))
    assert invoke("plot", "times", tmp_path, "--out", tmp_path / "t.png").exit_code == 0
    assert (tmp_path / "t.png").stat().st_size > 5000
    assert "no published runs" in one_line(invoke("plot", "times", ROOT / "docs", "--out", tmp_path / "x.png"))
