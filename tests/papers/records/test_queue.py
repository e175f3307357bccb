"""The queue of the papers' own runs: its recipes exist, and records are found by recipe, overrides and seed."""

import re

import pytest

from statespan.papers.records import queue
from statespan.papers.records.matching import PublishedRuns, base_recipe, forms, settings
from statespan.papers.records.tasks import TASKS
from statespan.train import recipes
from statespan.train.run import check_model, check_train
from tests.cli.make import invoke
from tests.papers.tables.test_published import publish

LINES = queue.queue()
MINUTES = [12, 5, 10, 6, 35, 27, 27, 50, 10, 110, 60]  # of a run of lines 1 to 11, as planned


def test_the_lines():
    assert [line.number for line in LINES] == list(range(1, 17))
    assert [line.runs[0].minutes for line in LINES[:11]] == MINUTES
    seeds = {line.number: {len(run.seeds) for run in line.runs} for line in LINES}
    assert {number for number, counts in seeds.items() if 2 in counts} == {1, 3, 4, 7, 12, 13}
    assert seeds[2] == {3}
    settings_of_13 = LINES[12].runs
    assert len(settings_of_13) == 40
    assert sum(len(run.seeds) * run.minutes for run in settings_of_13) == 60


def test_every_run_is_a_recipe_and_a_task():
    for run in (run for line in LINES for run in line.runs):
        recipe = recipes.read(run.recipe, [*run.overrides, *queue.speed()])
        assert recipe.name == run.recipe
        check_model(recipe)
        check_train(recipe)
        assert run.seeds[0] == recipe.train.seed
        is_forecast = recipe.model["name"] == "forecaster"  # the overview has the longest horizon of each dataset
        assert is_forecast or any(task.is_of(recipe.name, recipe.data) for task in TASKS), run


def test_no_run_is_there_twice():
    runs = [run for line in LINES for run in line.runs]
    assert len({(run.recipe, settings(run.recipe, run.overrides)) for run in runs}) == len(runs)


def test_a_choice_between_forms_is_explained():
    for line in LINES:
        if line.number in (3, 4, 5, 6, 10):
            assert line.form, line.what
        for run in line.runs:
            others = [form for form in forms(base_recipe(run.recipe)) if form != run.recipe]
            chosen = {other.recipe for other in line.runs}
            assert line.form or not set(others) - chosen, run


def states(folder, *numbers):
    lines = [line for line in LINES if line.number in numbers]
    return queue.states(PublishedRuns.read(folder), lines)


def test_a_record_counts_by_recipe_overrides_and_seed(tmp_path):
    publish(tmp_path, "smnist-s4", value=0.995)  # warped, so not this run
    publish(tmp_path, "smnist-s4", "data.warp=false", "train.precision=bf16", value=0.995, seed=1)
    publish(tmp_path, "pmnist-s4", "data.augment=false", "train.epochs=3", value=0.5)  # other settings
    (state,) = states(tmp_path, 2)
    smnist, pmnist = state.runs
    assert (dict(smnist.files), smnist.missing) == ({1: "001.json"}, [0, 2])
    assert (pmnist.files, pmnist.missing) == ({}, [0, 1, 2])
    assert (state.done, state.count, state.minutes_left) == (1, 6, 25.0)
    command = "statespan train smnist-s4 data.warp=false train.seed=0 train.precision=bf16 train.compile=both"
    assert queue.next_command([state]) == command
    for seed in (0, 2):
        publish(tmp_path, "smnist-s4", "data.warp=false", value=0.995, seed=seed)
    assert queue.next_command(states(tmp_path, 2)).startswith(
        "statespan train pmnist-s4 data.augment=false train.seed=0"
    )
    for seed in range(3):
        publish(tmp_path, "pmnist-s4", "data.augment=false", value=0.98, seed=seed)
    assert queue.next_command(states(tmp_path, 2)) is None


def test_generated_data_and_another_form_of_a_recipe(tmp_path):
    publish(tmp_path, "lra-listops-s4-code", "data.generate=true", value=0.6)
    publish(tmp_path, "lra-listops-s4", value=0.6, seed=1)  # the printed learning rates: another run
    (state,) = states(tmp_path, 3)
    assert [run.missing for run in state.runs] == [[1], [0, 1]]


def test_the_command(tmp_path):
    publish(tmp_path, "scifar-s4-legs", value=0.9, seed=1)
    done = invoke("reproduce", "--queue", "--tasks", tmp_path)
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    heads = [line for line in lines if re.match(r" ?\d+  ", line)]
    assert len(heads) == 16
    assert heads[6].endswith("1 of 4 done, 1 h 21 min left")
    total = sum(len(run.seeds) for line in LINES for run in line.runs)
    assert f"1 of {total} runs have a record" in done.stdout
    assert "    record   scifar-s4-legs (seed 1)" in lines
    shell = done.stdout.replace(" \\\n", " ")  # a line that ends in a backslash goes on
    assert "    statespan train sc10-s4 train.seed=0 train.precision=bf16 " in shell
    assert " ".join(shell.partition("The next one:")[2].split()).startswith(queue.next_command(states(tmp_path, 1)))


def test_some_lines(tmp_path):
    done = invoke("reproduce", "--queue", "3", "16", "--tasks", tmp_path)
    assert "enwik8-s4" in done.stdout
    assert "smnist" not in done.stdout
    assert "0 of 5 runs have a record" in done.stdout
    wrong = invoke("reproduce", "--queue", "17", "--tasks", tmp_path)
    assert (wrong.exit_code, "NAME must be the number of a line, from 1 to 16, got '17'" in wrong.stderr) == (2, True)


@pytest.mark.parametrize(
    ("text", "texts"), [("a", ["a"]), ("{a,b}-{c,d}", ["a-c", "a-d", "b-c", "b-d"]), ("x{1}", ["x1"])]
)
def test_choices_are_expanded(text, texts):
    assert queue.expanded(text) == texts
