"""The tables of recipes and datasets, and the help."""

import json

import pytest

from statespan import data, recipes
from tests.commands.make import invoke


def test_recipes_lists_all_with_the_papers_numbers_and_ours(tmp_path):
    record = {"recipe": {"name": "digits-s4d"}, "overrides": [], "metric": "accuracy", "test": {"accuracy": 0.98765}}
    changed = {**record, "overrides": ["train.epochs=1"], "test": {"accuracy": 0.5}}
    (tmp_path / "a.json").write_text(json.dumps(record))
    (tmp_path / "b.json").write_text(json.dumps(changed))
    (tmp_path / "c.json").write_text('{"rows": []}')
    (tmp_path / "d.json").write_text("no JSON")
    done = invoke("recipes", "--results", tmp_path)
    assert done.exit_code == 0
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    for entry in recipes.table():
        assert entry.task in lines[entry.name]
        assert entry.number in lines[entry.name]
    assert lines["digits-s4d"].split()[-1] == "98.77"
    assert lines["smnist-s4d"].rstrip().endswith("classifier")


def test_recipes_of_a_dataset_and_a_whole_recipe():
    done = invoke("recipes", "etth1")
    assert done.stdout.splitlines()[2].startswith("etth1-s4 ")
    assert "digits" not in done.stdout
    assert invoke("recipes", "digits-s4d", "--yaml").stdout == recipes.path("digits-s4d").read_text()


def test_one_recipe_shows_the_other_rows_it_reaches():
    done = invoke("recipes", "etth1-s4")
    for row in recipes.rows("etth1-s4"):
        assert row.label in done.stdout
        assert " ".join(row.overrides) in done.stdout


def test_data_lists_what_is_here_and_what_is_not(tmp_path):
    (tmp_path / "mnist").mkdir()
    for source in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz"):
        (tmp_path / "mnist" / source).write_bytes(b"")
    done = invoke("data", "--data", tmp_path)
    assert done.exit_code == 0
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert {*data.names()} <= {*lines}
    assert lines["digits"].split()[1:3] == ["built", "in"]
    assert lines["smnist"].split()[1] == "no"
    assert lines["own"].split()[1] == "yours"
    one = invoke("data", "smnist", "--data", tmp_path).stdout
    assert "here    train-images-idx3-ubyte\n" in one
    assert "missing t10k-labels-idx1-ubyte.gz, from https://storage.googleapis.com/cvdf" in one
    assert ", 4,542 bytes, SHA-256 f7ae60f9" in one
    assert "statespan data smnist --get" in one
    assert "data.valid=0.1  data.seed=42" in one
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"")
    assert any(line.split()[:2] == ["smnist", "yes"] for line in invoke("data", "--data", tmp_path).stdout.splitlines())
    assert "data.path=…" in invoke("data", "own").stdout


def test_data_checks_what_was_prepared(tmp_path):
    assert "nothing was prepared yet" in invoke("data", "listops", "--check", "--data", tmp_path).stdout
    data.load("listops", tmp_path, train=2, valid=2, test=2)
    done = invoke("data", "listops", "--check", "--data", tmp_path)
    assert (done.exit_code, done.stdout.count(": whole\n")) == (0, 3)
    tokens = next(tmp_path.glob("listops/.cache/*/tokens.npy"))
    tokens.write_bytes(tokens.read_bytes()[:-1])
    done = invoke("data", "listops", "--check", "--data", tmp_path)
    assert f"cache   .cache/{tokens.parent.name}: damaged and removed" in done.stdout
    assert not tokens.parent.exists()


@pytest.mark.parametrize(
    "command", ["train", "eval", "predict", "forecast", "generate", "stream", "export", "recipes", "data"]
)
def test_help_has_examples(command):
    done = invoke(command, "--help")
    assert done.exit_code == 0
    assert sum(line.startswith(f"    statespan {command}") for line in done.stdout.splitlines()) >= 3
    assert max(len(line) for line in done.stdout.splitlines()) <= 110
