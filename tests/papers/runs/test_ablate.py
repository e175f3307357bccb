"""Grids: every combination once, the same table after any interruption, a failing cell among others."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from statespan._io import CheckpointError, locked
from statespan.papers.runs import Cell, check_rows, outcome, parse_axis, product, run_cells
from statespan.train import read_recipe, recipes
from tests.cli.make import invoke, one_line, write_own

GRID = ["--grid", "model.ssm.init=lin,inv", "--seeds", "2"]


def test_a_grid_has_every_combination_with_every_seed():
    axes = [parse_axis("model.ssm.init=lin,inv"), parse_axis("train.betas=[0.9,0.99],[0.8,0.9]")]
    rows = product(recipes.read("digits-s4d", ["train.seed=5"]), axes, seeds=2)
    found = [
        (cell.recipe.model["ssm"]["init"], cell.recipe.train.betas[0], cell.seed) for r in rows for cell in r.cells
    ]
    assert found == [(init, beta, seed) for init in ("lin", "inv") for beta in (0.9, 0.8) for seed in (5, 6)]
    assert len({cell.key for row in rows for cell in row.cells}) == 8


def test_a_cell_is_known_by_what_decides_its_result():
    base = Cell(recipes.read("digits-s4d"))
    assert Cell(recipes.read("digits-s4d", ["train.log_every=7", "about.note=x"])).key.rpartition("-")[2] in base.key
    for change in ("train.fast_dt=true", "train.epochs=24", "model.d_state=8", "data.subsample=2", "train.seed=1"):
        assert Cell(recipes.read("digits-s4d", [change])).key.rpartition("-")[2] not in base.key
    again = Cell.from_job(json.loads(json.dumps(base.job())))
    assert (again.key, again.recipe.to_dict()) == (base.key, base.recipe.to_dict())


def test_values_are_checked_once_for_each_model_and_not_with_the_callers_chance(monkeypatch):
    checked = []
    monkeypatch.setattr("statespan.models.check", lambda name, options, values: checked.append(options["d_state"]))
    axes = [parse_axis("model.d_state=4,8"), parse_axis("train.lr=0.1,0.2,0.3")]
    check_rows(axes, product(recipes.read("digits-s4d"), axes, seeds=2))
    assert checked == [4, 8]
    monkeypatch.undo()
    before = torch.get_rng_state()
    check_rows(axes, product(recipes.read("digits-s4d"), axes, seeds=1))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.soak  # one run that is killed and resumed is in tests/train/test_resume.py
def test_killed_at_random_and_resumed_the_table_is_the_same(tmp_path):
    recipe = write_own(tmp_path)
    arguments = ["ablate", recipe, *GRID, "train.save_every=3"]
    assert invoke(*arguments, "--out", tmp_path / "whole", "--processes", "0").exit_code == 0
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "statespan", *map(str, arguments), "--out", str(out), "--processes", "2"]
    chance = random.Random(os.getpid())
    for number, after in ((signal.SIGKILL, chance.uniform(0.5, 4.0)), (signal.SIGTERM, chance.uniform(0.1, 2.0))):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            until = time.monotonic() + 60
            while not list(out.glob("cells/*/checkpoints")) and process.poll() is None and time.monotonic() < until:
                time.sleep(0.05)  # it is at work, in processes of its own
            time.sleep(after)
            process.send_signal(number)
            code = process.wait(60)
        assert code in (-9, -15, 143, 0)  # -15: before it listens, and so before it does anything
    until = time.monotonic() + 20
    while _in_use(out / "cells") and time.monotonic() < until:  # who lost its parent leaves at once
        time.sleep(0.1)
    assert invoke(*arguments, "--out", out, "--processes", "0").exit_code == 0
    for name in ("table.md", "table.json"):
        assert (out / name).read_text() == (tmp_path / "whole" / name).read_text()
    for path in (tmp_path / "whole" / "cells").glob("*/log.csv"):
        assert (out / "cells" / path.parent.name / "log.csv").read_bytes() == path.read_bytes()


def _in_use(cells: Path) -> bool:
    try:
        for folder in [cells, *(path.parent for path in cells.glob("*/.lock"))]:
            with locked(folder):
                pass
    except CheckpointError:
        return True
    return False


def test_a_failing_cell_is_reported_and_the_others_go_on(tmp_path):
    recipe = write_own(tmp_path)
    out = tmp_path / "out"
    done = invoke("ablate", recipe, "--grid", "train.batch=8,5000,4", "--seeds", 1, "--out", out, "--processes", 0)
    assert done.exit_code == 1
    table = json.loads((out / "table.json").read_text())["lines"]
    assert [line["left"] for line in table] == ["", "1 failed", ""]
    assert [len(line["numbers"]) for line in table] == [1, 0, 1]
    assert table[1]["faults"] == ["train.batch is 5000; allowed: at most 28, the number of rows"]
    assert table[1]["faults"][0] in (out / "table.md").read_text()
    assert "| 5000 |  | 0 |  | 1 failed |" in (out / "table.md").read_text()


def test_a_cell_whose_data_is_missing_is_marked_so(tmp_path, monkeypatch):
    monkeypatch.setenv("STATESPAN_OFFLINE", "1")
    cell = Cell(recipes.read("smnist-small"))
    found = run_cells([cell], tmp_path / "cells", data=tmp_path, processes=0, device="cpu")
    assert found == {cell.key: ("missing", "the files of dataset 'smnist' are not here; see statespan data smnist")}
    assert outcome(cell, tmp_path / "cells").status == "missing"


def test_each_compiled_cell_begins_with_an_empty_compiler(tmp_path, monkeypatch):
    """Otherwise torch.compile gives up on a class after eight models, and the ninth cell is another computation."""
    recipe, resets = write_own(tmp_path), []
    monkeypatch.setattr("torch._dynamo.reset", lambda: resets.append(1))
    for way, count in (("none", 0), ("compile", 2)):
        cells = [Cell(read_recipe(recipe, [f"train.compile={way}", f"train.seed={seed}"])) for seed in (0, 1)]
        found = run_cells(cells, tmp_path / way, processes=0, device="cpu")
        assert [status for status, _ in found.values()] == ["done", "done"]
        assert len(resets) == count


def test_a_process_that_dies_fails_its_cell_only(tmp_path, monkeypatch):
    """The first cell takes its process with it, as a fault of the machine would."""
    recipe = read_recipe(write_own(tmp_path), ["train.tensorboard=false"])
    cells = [Cell(read_recipe(recipe, [f"train.seed={seed}"])) for seed in (0, 1)]
    program = tmp_path / "sitecustomize.py"
    program.write_text(
        "import os, sys\n"
        "if 'statespan.papers.runs.worker' in ' '.join(sys.orig_argv):\n"
        "    import statespan.train.run as run\n"
        "    fit = run.fit\n"
        "    run.fit = lambda recipe, *a, **k: os._exit(7) if recipe.train.seed == 0 else fit(recipe, *a, **k)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    found = run_cells(cells, tmp_path / "cells", processes=1, device="cpu", keep="result")
    assert found[cells[0].key] == ("failed", "its process ended with exit code 7; see processes.log")
    assert found[cells[1].key] == ("done", "")
    left = {path.name for path in cells[1].folder(tmp_path / "cells").iterdir()}
    assert left == {"result.json", "log.csv", "recipe.yaml", ".lock"}


MISTAKES = {
    "no grid": ([], "--grid must be given at least once"),
    "grid without values": (["--grid", "train.lr"], "--grid must be key=value,value"),
    "an empty value": (["--grid", "train.lr=0.1,,"], "--grid must be key=value,value"),
    "a value twice": (["--grid", "train.lr=0.1,0.1"], "has the value 0.1 twice"),
    "a key twice": (
        ["--grid", "train.lr=0.1", "--grid", "train.lr=0.2"],
        "must name each key once, got train.lr twice",
    ),
    "the seed": (["--grid", "train.seed=1,2"], "--seeds sets the seeds of every combination"),
    "no such key": (["--grid", "train.lrr=1,2"], "did you mean train.lr?"),
    "a wrong value": (["--grid", "train.lr=0.1,-1"], "train.lr is -1; allowed: a number > 0"),
    "no integer": (
        ["--grid", "model.d_state=4,x"],
        "model: d_state must be an even integer >= 2, got str 'x' (with model.d_state=x)",
    ),
    "no such initialization": (
        ["--grid", "model.n_layers=1,2", "--grid", "model.ssm.init=lin,linn"],
        "got 'linn'; did you mean lin? (with model.n_layers=1 model.ssm.init=linn)",
    ),
    "no such layer": (
        ["--grid", "model.layer=s4d,s4e"],
        "'ode-rnn', 'performer'), got 's4e'; did you mean s4?",
    ),
    "a value of the data": (["--grid", "data.subsample=1,x"], "must be int, got str 'x' (with data.subsample=x)"),
    "no seeds": (["--grid", "train.lr=0.1", "--seeds", "0"], "--seeds must be an integer >= 1, got 0"),
    "a wrong split": (["--grid", "train.lr=0.1", "--split", "tset"], "--split must be test, valid or first"),
    "processes": (["--grid", "train.lr=0.1", "--processes", "-1"], "--processes must be an integer >= 0"),
    "seconds": (["--grid", "train.lr=0.1", "--seconds", "0"], "--seconds must be a number > 0"),
    "keep": (["--grid", "train.lr=0.1", "--keep", "some"], "--keep must be result, model or all"),
    "out": (["--grid", "train.lr=0.1", "--out", "{file}"], "--out must be a folder that can be written to"),
    "device": (["--grid", "train.lr=0.1", "--device", "tpu"], "device is tpu; allowed here: cpu"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    arguments, said = MISTAKES[name]
    done = invoke("ablate", "digits-s4d", *(word.format(file=tmp_path / "file") for word in arguments))
    assert said in one_line(done)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
