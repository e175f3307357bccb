"""A recipe's sweep: read strictly, ignored by training, combined by ablate, chosen by validation alone."""

import json

import pytest

from statespan.papers import recipes as paper_recipes
from statespan.papers.runs import Cell, product
from statespan.papers.runs.outcome import Outcome
from statespan.papers.runs.sweep import axes_of, choose, grid
from statespan.train import ConfigError, read_recipe, recipes, write_recipe
from tests.cli.make import invoke, one_line, write_own

TEXT = """
name: mine
data: {name: digits}
model: {name: classifier, d_model: 8}
train: {lr: 0.01, epochs: 1}
sweep:
  train.lr: [0.001, 0.0005]
  model.dropout: [0, 0.1]
  model: {ssm: {init: [lin, "1"]}}
  train.betas: [[0.9, 0.99]]
"""
GRID = {
    "train.lr": (0.001, 0.0005),
    "model.dropout": (0, 0.1),
    "model.ssm.init": ("lin", "1"),
    "train.betas": ([0.9, 0.99],),
}


def test_read_and_written():
    recipe = read_recipe(TEXT)
    assert recipe.sweep == GRID
    assert (recipe.train.lr, "sweep" in recipe.to_dict()) == (0.01, False)
    assert read_recipe(write_recipe(recipe)) == recipe
    assert read_recipe(recipe, ["train.epochs=2"]).sweep == GRID
    narrowed = read_recipe(recipe, ["sweep.model.dropout=[0.3]"])
    assert narrowed.sweep == {**GRID, "model.dropout": (0.3,)}
    assert read_recipe(TEXT, ["sweep.model.ssm.init=[inv]"]).sweep == {**GRID, "model.ssm.init": ("inv",)}
    assert read_recipe(TEXT.partition("sweep")[0]).sweep == {}


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ("3", r"sweep is 3; allowed: a section of keys and values"),
        ("{train.lr: 0.1}", r"sweep\.train\.lr is 0\.1; allowed: a list of values"),
        ("{train.lr: []}", r"sweep\.train\.lr is \[\]; allowed: a list of values"),
        ("{train.lr: [0.1, 0.1]}", r"sweep\.train\.lr has the value 0\.1 twice"),
        ("{train.lr: [0.1, -1]}", r"train\.lr is -1; allowed: a number > 0"),
        ("{train.lrr: [0.1]}", r"train\.lrr is not a key of train .*did you mean train\.lr\?"),
        ("{train.lr.more: [0.1]}", r"sweep\.train\.lr\.more: train\.lr is 0\.01, not a section"),
        ("{train.seed: [0, 1]}", r"sweep\.train\.seed is not allowed: --seeds sets the seeds"),
        ("{about.note: [a, b]}", r"sweep\.about\.note is not a key of a recipe; allowed: keys of data, model, train"),
        ("{train: [1]}", r"sweep\.train is not a key of a recipe"),
        ("{train.lr: [1], train: {lr: [2]}}", r"sweep has the key train\.lr twice"),
        ("{.train: [1]}", r"has the key \.train; allowed"),
    ],
)
def test_what_is_not_a_sweep(sweep, message):
    with pytest.raises(ConfigError, match=message) as caught:
        read_recipe(TEXT.partition("sweep")[0] + f"sweep: {sweep}")
    assert "\n" not in str(caught.value)


def test_combinations_are_those_of_the_lists():
    recipe = read_recipe(TEXT)
    axes = axes_of(recipe)
    assert [axis.values for axis in axes] == [("0.001", "0.0005"), ("0", "0.1"), ("lin", '"1"'), ("[0.9, 0.99]",)]
    rows = product(recipe, axes, seeds=2)
    assert len(rows) == 8
    found = [cell.recipe for row in rows for cell in row.cells]
    assert {(one.train.lr, one.model["dropout"], one.model["ssm"]["init"], one.train.seed) for one in found} == {
        (lr, dropout, init, seed) for lr in (0.001, 0.0005) for dropout in (0, 0.1) for init in ("lin", "1")
        for seed in (0, 1)
    }  # fmt: skip
    assert all(one.sweep == {} and one.train.betas == (0.9, 0.99) for one in found)


def test_a_sweep_is_not_what_a_cell_is_known_by():
    """A recipe that gets a sweep keeps its cells."""
    assert Cell(read_recipe(TEXT)).key == Cell(read_recipe(TEXT.partition("sweep")[0])).key


def test_the_best_in_validation_is_chosen_whatever_its_test(monkeypatch, tmp_path):
    recipe = read_recipe(TEXT.partition("sweep")[0] + "sweep: {train.lr: [0.1, 0.2, 0.3, 0.4]}")
    axes = axes_of(recipe)
    rows = product(recipe, axes, seeds=2)
    valid = {"0.1": (0.8, 0.7), "0.2": (0.9, 0.8), "0.3": (0.99, None), "0.4": (0.2, 0.3)}

    def outcome(metric, last="failed"):
        def of(cell, folder):
            number = valid[f"{cell.recipe.train.lr:g}"][cell.seed]
            if number is None:
                return Outcome(last, "out of memory")
            return Outcome("done", record={"metric": metric, "valid": {metric: number}, "test": {metric: 1 - number}})

        return of

    for metric, best, test in (("accuracy", 1, "15.00 ± 7.07"), ("rmse", 3, "0.7500 ± 0.0707")):
        monkeypatch.setattr("statespan.papers.runs.table.outcome", outcome(metric))
        choice = choose(rows, tmp_path)
        assert choice.best == best
        assert [row[2] for row in grid(axes, choice).rows] == [test if n == best else "" for n in range(4)]
    monkeypatch.setattr("statespan.papers.runs.table.outcome", outcome("accuracy", last="stopped"))
    choice = choose(rows, tmp_path)
    assert (choice.best, choice.test) == (None, None)
    assert [row[2] for row in grid(axes, choice).rows] == [""] * 4


def test_run(tmp_path):
    recipe, out = write_own(tmp_path), tmp_path / "out"
    recipe.write_text(recipe.read_text() + "sweep:\n  train.lr: [0.00001, 0.05]\n  model.d_state: [2, 4]\n")
    done = invoke("ablate", recipe, "--sweep", "--out", out, "--processes", 0)
    assert done.exit_code == 0, done.stderr
    table = json.loads((out / "sweep.json").read_text())
    lines = table["lines"]
    assert [line["values"] for line in lines] == [
        {"train.lr": lr, "model.d_state": n} for lr in ("1e-05", "0.05") for n in ("2", "4")
    ]
    assert [len(line["valid"]) for line in lines] == [1, 1, 1, 1]
    best = table["best"]
    assert lines[best]["mean"] == max(line["mean"] for line in lines)
    assert best >= 2  # the other rate is too small to learn
    assert [line["test"] is not None for line in lines] == [number == best for number in range(4)]
    assert f"best     train.lr=0.05 model.d_state={lines[best]['values']['model.d_state']}" in done.stdout
    assert len(list((out / "cells").glob("tones-*"))) == 4
    before = (out / "sweep.md").read_text()
    assert before.count("| 0.05 |") == 2
    assert invoke("ablate", recipe, "--sweep", "--out", out, "--processes", 0).exit_code == 0
    assert (out / "sweep.md").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sweep", "--grid", "train.lr=0.1"], "--grid and --split must not be given with --sweep"),
        (["--sweep", "--split", "valid"], "--grid and --split must not be given with --sweep"),
        (["--sweep", "train.lr=0.1"], "train.lr is a key of the sweep; give sweep.train.lr=[…] instead"),
        (["--sweep", "sweep.model.d_state=[5]"], "model: d_state must be an even integer >= 2, got 5 (with train.lr="),
        (["--sweep", "sweep.model.d_stat=[4]"], "options has no 'd_stat'"),
    ],
)
def test_mistakes(arguments, message, tmp_path):
    recipe = write_own(tmp_path)
    recipe.write_text(recipe.read_text() + "sweep: {train.lr: [0.01, 0.05]}\n")
    assert message in one_line(invoke("ablate", recipe, *arguments, "--out", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_recipe_without_a_sweep():
    assert "the recipe digits-s4d has no sweep" in one_line(invoke("ablate", "digits-s4d", "--sweep"))


def test_a_family_passes_its_sweep_on_and_the_list_says_so(monkeypatch):
    row = {
        "title": "Mine.", "data": {"name": "digits"}, "model": {"name": "classifier"}, "sweep": {"train.lr": [0.1, 1.0]}
    }  # fmt: skip
    plain = {key: value for key, value in row.items() if key != "sweep"}
    monkeypatch.setattr(recipes, "_known", lambda: {"with": row, "without": plain})
    monkeypatch.setattr(paper_recipes, "ours", dict)
    assert recipes.read("with").sweep == {"train.lr": (0.1, 1.0)}
    assert [entry.combinations for entry in recipes.table()] == [2, 0]
    shown = invoke("recipes").stdout
    assert "with a sweep (statespan ablate NAME --sweep): with\n" in shown
    one = invoke("recipes", "with").stdout
    assert "sweep of 2 combinations, train.lr: 0.1, 1.0  statespan ablate with --sweep" in one
