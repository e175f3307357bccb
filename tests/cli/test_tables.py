"""The tables of recipes and datasets, and the help."""

import json
from pathlib import Path

import pytest

from statespan import data
from statespan.models import find
from statespan.papers import recipes as paper_recipes
from statespan.train import recipes
from tests.cli.make import invoke, one_line

ROOT = Path(__file__).parents[2]


def run(name, *overrides, seed=0, test=0.5, valid=0.25, metric="accuracy", **more):
    """The result of a run, as training writes it."""
    recipe = recipes.read(name, [*overrides, f"train.seed={seed}"]).to_dict()
    return {
        "recipe": recipe, "overrides": list(overrides), "seed": seed, "metric": metric, "test": {metric: test},
        "valid": {metric: valid}, **more,
    }  # fmt: skip


def shown(*arguments):
    done = invoke("recipes", *arguments)
    assert done.exit_code == 0
    return {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}, done.stdout


def test_recipes_lists_all_with_the_papers_numbers_and_ours(tmp_path, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    runs = {
        "a": run("digits-s4d", test=0.98765),
        "b": run("digits-s4d", "train.epochs=1", test=0.5),
        "c": {"rows": []},
        "d": {**run("digits-s4d"), "recipe": {"name": "somebody's"}},
        "e": {**run("digits-s4d"), "recipe": {"name": "digits-s4d", "data": 7}},
        "f": run("smnist-s4d", test=float("nan")),
    }
    for name, content in runs.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    (tmp_path / "g.json").write_text("no JSON")
    lines, _ = shown("--results", tmp_path)
    for entry in recipes.table():
        assert entry.task in lines[entry.name]
        assert entry.number in lines[entry.name]
    assert lines["digits-s4d"].split()[-2:] == ["98.77", "§"]
    assert lines["smnist-s4d"].rstrip().endswith("classifier")
    assert "--results must be a folder of runs" in one_line(invoke("recipes", "--results", tmp_path / "a.json"))


@pytest.mark.parametrize("command", ["recipes", "models"])
def test_every_row_is_one_line_of_a_terminal(command, monkeypatch):
    """In a pipe COLUMNS stands for the terminal; without it tables are as wide as they need."""
    monkeypatch.setenv("COLUMNS", "80")
    names = [entry.name for entry in recipes.table()] if command == "recipes" else find.names()
    narrow = invoke(command).stdout.splitlines()
    rows = narrow[2 : 2 + len(names)]
    assert sorted(line.split()[0] for line in rows) == sorted(names)
    assert [line for line in narrow if len(line.rstrip()) > 80 and not line.startswith("statespan")] == []
    assert "…" not in "".join(rows)
    monkeypatch.delenv("COLUMNS")
    wide = invoke(command).stdout.splitlines()
    assert max(map(len, wide)) > 80 if command == "recipes" else wide[3:] == narrow[3:]


def test_ours_is_the_cell_of_the_papers_number(tmp_path):
    """Validation beside validation, the variant of the row and not another one, seeds together, plain before tricks."""
    name = "ablation-scifar-s4-legs"
    frozen = ("model.ssm.train_A=false", "model.ssm.train_B=false", "train.epochs=8")
    runs = [
        run(name, "train.epochs=8", test=0.70, valid=0.75),
        run(name, "train.epochs=8", "train.precision=bf16", seed=1, test=0.71, valid=0.77),
        run(name, *frozen, test=0.9, valid=0.95),
        run("bidmc-hr-s4-legs", "data.split=patients", test=7.0, metric="rmse"),
        run("bidmc-hr-s4-legs", "model.d_state=64", test=0.4, metric="rmse"),
        run("scifar-s4", "data.augment=true", test=0.93, valid=0.95),
        run("scifar-s4", "train.epochs=100", test=0.91, valid=0.90),
        run("lra-image-s4", "data.augment=true", test=0.89),
        run("lra-pathfinder-s4", test=0.9, start={"name": "easier"}),
    ]
    for number, content in enumerate(runs):
        (tmp_path / f"{9 - number}.json").write_text(json.dumps(content))
    lines, text = shown("--results", tmp_path)
    ours = {word: lines[word].partition(recipes.read(word).about.number)[2].strip() for word in (
        name, "bidmc-hr-s4-legs", "scifar-s4", "lra-image-s4", "lra-pathfinder-s4"
    )}  # fmt: skip
    assert ours == {
        name: "76.00 ± 1.41 (2) *", "bidmc-hr-s4-legs": "0.400 *", "scifar-s4": "91.00 *", "lra-image-s4": "89.00 †",
        "lra-pathfinder-s4": "90.00 ‡≠",
    }  # fmt: skip
    for note in ("† augmented training data", "‡ started", "≠ not comparable with the paper", "* settings"):
        assert f"  {note}" in text
    assert "§" not in text


def test_recipes_mark_what_is_selected_on_the_test_data():
    """The paper's number and ours both have the sign, and a line explains it where it is shown."""
    lines, text = shown("lra-text")
    assert "87.34 ¶" in lines["lra-text-s4d-inv-published"]
    assert "¶" not in lines["lra-text-s4d-inv"] + lines["lra-text-s4d-inv-code"]
    assert "  ¶ weights selected on the test data, as the paper did" in text
    assert "¶" not in shown("smnist")[1]


def test_ours_comes_with_the_package(tmp_path, monkeypatch):
    """Outside a checkout too; the 14 ablations show what Table 3b has for the trained variant in validation."""
    monkeypatch.chdir(tmp_path)
    lines, text = shown("ablation")
    table = json.loads((ROOT / "results/reproduce/s4d-table3b.json").read_text())
    trained = [n for n in table["numbers"] if not n["overrides"] and n["value"] == "valid" and n["status"] == "done"]
    wanted = {number["recipe"]: number for number in trained}
    assert len(wanted) == 14
    for name, number in wanted.items():
        digits = 3 if "bidmc" in name else 2
        assert f" {number['ours']:.{digits}f} ± {number['std']:.{digits}f} (2) *" in lines[name], name
    assert "  * settings that differ from the recipe's, such as fewer epochs" in text


def test_superseded_runs_are_no_numbers_of_ours():
    """They stay in the repository, but the data they were made with is no longer what a recipe reads."""
    archived = json.loads((ROOT / "results/tasks/superseded.json").read_text())["records"]
    assert len(archived) == 5
    for name, record in archived.items():
        assert record["recipe"]["name"] not in paper_recipes.ours(), name


def test_recipes_of_a_dataset_and_a_whole_recipe():
    done = invoke("recipes", "etth1")
    assert [line.split()[0] for line in done.stdout.splitlines()[2:4]] == ["etth1-lstm", "etth1-s4"]
    assert "digits" not in done.stdout
    for name in ("digits-s4d", "lra-image-s4d-inv", "scifar-s4d"):  # a file, a row of a family, an alias
        assert invoke("recipes", name, "--yaml").stdout == recipes.text(name)
    assert "--yaml needs the name of a recipe, got 'digit-s4d'; did you mean" in one_line(
        invoke("recipes", "digit-s4d", "--yaml")
    )


def test_one_recipe_shows_the_other_rows_it_reaches():
    done = invoke("recipes", "etth1-s4")
    for row in recipes.rows("etth1-s4"):
        assert row.label in done.stdout
        assert " ".join(row.overrides) in done.stdout


def test_an_alias_shows_its_recipe():
    lines, text = shown("lra-listops-s4-legs")
    assert "lra-listops-s4" in lines
    assert "lra-listops-s4-fout" not in text


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
