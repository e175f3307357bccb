"""A finished run becomes a record and a model, whole or not at all."""

import errno
import json
import shutil

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import statespan
from statespan import _io as fsio
from statespan import data
from statespan.cli.app import app
from statespan.models import find
from statespan.papers.records import publish as module
from statespan.papers.records import record, schema
from statespan.papers.records.publish import publish
from statespan.train import fit, read_recipe, recipes
from statespan.train.log import read_times
from statespan.train.result import history
from tests.cli.make import invoke, one_line
from tests.papers.records.conftest import COMMIT, made, read


def listing(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def right(model, rows):
    """How many of the first test images a model knows, counted by hand."""
    test = data.load("digits").test
    pixels, answers = test.arrays["x"][:rows], test.arrays["y"][:rows]
    with torch.no_grad():
        scores = model(torch.from_numpy(pixels.astype(np.float32) / 16)[..., None])
    return int((scores.argmax(-1).numpy() == answers).sum())


def test_the_better_seed_becomes_the_model_and_both_become_records(runs, tmp_path, models):
    publish(runs, results=tmp_path / "results", models=models)
    tasks = tmp_path / "results/tasks"
    assert listing(tasks) == ["digits-s4d-seed0.json", "digits-s4d-seed1.json"]
    found = [read(tasks / name) for name in listing(tasks)]
    best = max((0, 1), key=lambda seed: found[seed]["valid"]["accuracy"])
    assert read(models / "digits-s4d/record.json") == found[best]
    assert ["check" in one for one in found] == [best == 0, best == 1]
    model = statespan.load("digits-s4d")
    assert not model.training
    for rows in (32, 256):
        assert found[best]["check"]["rows"][str(rows)]["accuracy"] * rows == right(model, rows)
    for seed, one in enumerate(found):
        was = read(runs[seed] / "result.json")
        assert (one["seed"], one["test"], one["wall_seconds"]) == (seed, was["test"], was["wall_seconds"])
        assert one["versions"]["commit"] == COMMIT
        assert one["overrides"] == ["train.steps=45", "train.validate_every=15"]
        assert one["rows"] == {"train": 1294, "valid": 144, "test": 359}
    card = (models / "digits-s4d/README.md").read_text()
    assert f"accuracy {100 * found[best]['test']['accuracy']:.2f} %" in card
    assert f"results/tasks/digits-s4d-seed{best}.json" in card
    assert COMMIT in card
    assert (models / "digits-s4d/recipe.yaml").is_file()


def test_history(runs, tmp_path):
    found = read(runs[0] / "result.json")["history"]
    assert found["epoch"] == [15 / 40, 30 / 40, 45 / 40]
    assert found["seconds"] == list(read_times(runs[0]).values()) == sorted(found["seconds"])
    assert found["seconds"][-1] <= read(runs[0] / "result.json")["wall_seconds"] + 0.01
    rows = ["step,epoch,train_loss,valid_accuracy", *(f"{i},{i},{1 / i},{i % 700}" for i in range(1, 1000))]
    (tmp_path / "log.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "times.csv").write_text("1,0.50\n2,1.00\n3,1.5")  # the last line was cut short
    long = history(tmp_path, "accuracy", most=50)
    assert max(map(len, long.values())) <= 50
    assert {699.0, 299.0} <= {*long["valid_accuracy"]}  # the best, and the last
    assert read_times(tmp_path) == {1: 0.5, 2: 1.0}


def test_a_run_that_goes_on_keeps_the_times_before_and_no_others(runs, tmp_path):
    shutil.copytree(runs[0], tmp_path / "run")
    before = (tmp_path / "run/times.csv").read_text()
    (tmp_path / "run/times.csv").write_text(before + "60,1.00\n")  # of steps that no checkpoint knows of
    longer = read_recipe(tmp_path / "run/recipe.yaml", ["train.steps=60"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("statespan.train.result._picture", lambda result: b"")
        fit(longer, tmp_path / "run", resume=True, progress=False, device="cpu")
    after = (tmp_path / "run/times.csv").read_text()
    assert after.startswith(before)
    assert len(after.splitlines()) == 4
    times = list(read_times(tmp_path / "run").values())
    assert times == sorted(times)
    assert (
        read(tmp_path / "run/result.json")["wall_seconds"] >= times[-1] > read(runs[0] / "result.json")["wall_seconds"]
    )


def test_large_weights_stay_where_they_are(runs, tmp_path, models, monkeypatch):
    monkeypatch.setattr(module, "LARGEST", 1000)
    said = publish(runs[:1], results=tmp_path / "results", models=models)
    assert "0.0 MB" in said[-1]
    assert listing(models) == []
    assert listing(tmp_path / "results/tasks") == ["digits-s4d-seed0.json"]


def test_a_second_run_takes_the_place_only_if_told(runs, tmp_path, models):
    where = {"results": tmp_path / "results", "models": models}
    publish(runs[:1], **where)
    publish(runs[:1], **where)  # the same again is no mistake
    shutil.copytree(runs[0], tmp_path / "again")
    for name in ("checkpoints", "log.csv", "times.csv"):  # what came back from another machine need not have these
        path = tmp_path / "again" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    other = read(tmp_path / "again/result.json") | {"wall_seconds": 7.5}
    (tmp_path / "again/result.json").write_text(json.dumps(other))
    before = (tmp_path / "results/tasks/digits-s4d-seed0.json").read_bytes()
    with pytest.raises(schema.PublishError, match="already exists, from another run"):
        publish([tmp_path / "again"], **where)
    assert (tmp_path / "results/tasks/digits-s4d-seed0.json").read_bytes() == before
    publish([tmp_path / "again"], replace=True, **where)
    assert read(tmp_path / "results/tasks/digits-s4d-seed0.json")["wall_seconds"] == 7.5
    assert read(models / "digits-s4d/record.json")["wall_seconds"] == 7.5
    said = publish([runs[1]], **where)
    assert "is that of digits-s4d-seed0" in said[-1]
    assert listing(tmp_path / "results/tasks") == ["digits-s4d-seed0.json", "digits-s4d-seed1.json"]


@pytest.mark.parametrize("number", range(8))
def test_a_disk_that_fails_leaves_nothing(number, runs, tmp_path, models, monkeypatch):
    """At each of the writes of a model's six files and of a record; the eighth never comes."""
    calls, write = [], fsio.write_new
    monkeypatch.setattr(module, "evaluate", lambda *args, **options: {"accuracy": 0.5, "loss": 1.0})
    monkeypatch.setattr(module, "_check_weights", lambda run, record: None)

    def failing(*arguments):
        calls.append(1)
        if len(calls) == number + 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*arguments)

    monkeypatch.setattr(fsio, "write_new", failing)
    if number == 7:
        publish(runs[:1], results=tmp_path / "results", models=models)
        assert len(calls) == 7
        return
    with pytest.raises(OSError, match="No space"):
        publish(runs[:1], results=tmp_path / "results", models=models)
    assert listing(models) == []
    assert listing(tmp_path / "results") == ([] if number < 6 else ["tasks"])


def broken(folder, **changes):
    found = read(folder / "result.json")
    (folder / "result.json").write_text(json.dumps({**found, **changes}))


REFUSED = {
    "unfinished": (lambda run: (run / "result.json").unlink(), "is not finished: resume it with"),
    "goes on": (
        lambda run: (run / "recipe.yaml").write_text(
            (run / "recipe.yaml").read_text().replace("steps: 45", "steps: 99")
        ),
        "its recipe has changed since its result",
    ),
    "another file": (lambda run: (run / "result.json").write_text("{}"), "has no recipe, overrides"),
    "damaged": (lambda run: (run / "result.json").write_text("{"), "result.json cannot be read"),
    "no commit": (lambda run: broken(run, versions={"source": "0"}), "does not record its commit"),
    "other weights": (
        lambda run: broken(run, first={"rows": 256, "accuracy": 0.01}),
        "is not what was tested: accuracy of the first 256 rows is",
    ),
}


def test_code_of_a_commit_says_which_it_was(runs, tmp_path, monkeypatch):
    """A run made where git knew only an older commit: the digest of the code says more."""
    shutil.copytree(runs[0], tmp_path / "run")
    monkeypatch.setattr(schema, "commit_of", {"code": "f" * 40}.get)
    for said, code, wanted in (
        ("a" * 40 + "+changes", "code", "f" * 40),
        ("a" * 40 + "+changes", "other", "a" * 40 + "+changes"),
        ("a" * 40, "code", "a" * 40),
        (None, "code", "f" * 40),
    ):
        broken(tmp_path / "run", versions={"source": code, "commit": said})
        assert record.make_record(tmp_path / "run", None)["versions"]["commit"] == wanted


def test_a_run_older_than_a_setting_is_finished_all_the_same(runs, tmp_path):
    shutil.copytree(runs[0], tmp_path / "run")
    recipe = read(tmp_path / "run/result.json")["recipe"]
    del recipe["train"]["fast_dt"]
    broken(tmp_path / "run", recipe=recipe)
    assert record.make_record(tmp_path / "run", None)["seed"] == 0


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_finished_run_is_refused_in_one_line(name, runs, tmp_path, models):
    shutil.copytree(runs[0], tmp_path / "run")
    change, said = REFUSED[name]
    change(tmp_path / "run")
    done = invoke("publish", tmp_path / "run", "--results", tmp_path / "results", "--models", models)
    assert said in one_line(done)
    assert listing(models) == []
    assert not (tmp_path / "results").exists()


def test_other_data_of_a_recipe_have_a_name_of_their_own():
    changed = recipes.read("bidmc-hr-s4-legs", ["data.split=patients", "train.lr=0.02", "train.seed=5"])
    differs = record.changes(changed, [])
    assert differs == ['data.split="patients"', "train.lr=0.02"]
    one = {"recipe": changed.to_dict(), "overrides": differs, "seed": 5}
    assert record.stem(one) == "bidmc-hr-s4-legs-patients-seed5"


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("data.augment=true", "x-augment"),
        ("data.augment=false", "x-no-augment"),
        ("data.train=20000", "x-20000"),
        ('data.words="a, b"', "x-ab"),
        ('train.start="y-s4d"', "x-from-y-s4d"),
        ('train.start="runs/y-s4d"', "x-from-y-s4d"),
        ("train.lr=0.1", "x"),
    ],
)
def test_the_name_says_what_was_switched(change, name):
    assert record.model_name({"recipe": {"name": "x"}, "overrides": [change]}) == name


def test_what_a_run_began_with_is_told_by_name_and_not_by_place(runs, tmp_path, models):
    """The record, its recipe and the card say which recipe it was; nobody learns where it lay."""
    run = made(tmp_path / "later", f"train.start={runs[0]}", "train.seed=3", "train.steps=15")
    publish([run], results=tmp_path / "results", models=models)
    path = tmp_path / "results/tasks/digits-s4d-from-digits-s4d-seed3.json"
    found, before = read(path), read(runs[0] / "result.json")
    assert found["recipe"]["train"]["start"] == "runs/digits-s4d"  # where others have it, if they train it
    assert 'train.start="runs/digits-s4d"' in found["overrides"]
    assert found["start"]["overrides"] == ["train.steps=45", "train.validate_every=15"]
    assert (found["start"]["seed"], found["start"]["wall_seconds"]) == (0, before["wall_seconds"])
    assert found["start"]["tensors"] == found["start"]["of"]
    own = models / "digits-s4d-from-digits-s4d"
    said = (own / "README.md").read_text()
    assert "**Initial weights**: those of recipe `digits-s4d` with `train.steps=45" in said
    for text in (path.read_text(), said, (own / "recipe.yaml").read_text()):
        assert str(runs[0]) not in text


def test_a_published_model_to_begin_with_is_told_by_its_name(runs, tmp_path, models):
    publish(runs[:1], results=tmp_path / "results", models=models)
    run = made(tmp_path / "later", "train.start=digits-s4d", "train.steps=15")
    publish([run], results=tmp_path / "results", models=models)
    found = read(tmp_path / "results/tasks/digits-s4d-from-digits-s4d-seed0.json")
    assert found["recipe"]["train"]["start"] == "digits-s4d"


def test_what_the_start_began_with_is_no_change_of_its_recipe(runs, tmp_path):
    """A run remembers the first of three by its bare name, and the recipe of the second says where that lies."""
    second = recipes.read("path-x-6-s4d-again").to_dict()
    assert second["train"]["start"] == "runs/path-x-6-s4d"
    second["train"]["start"] = "path-x-6-s4d"
    shutil.copytree(runs[0], tmp_path / "third")
    for rate, overrides in ((0.003, []), (0.002, ["train.lr=0.002"])):
        second["train"]["lr"] = rate
        before = {"name": "path-x-6-s4d-again", "recipe": second, "overrides": ["train.lr=7"], "wall_seconds": 5.0}
        broken(tmp_path / "third", start=before)
        found = record.make_record(tmp_path / "third")
        assert (found["start"]["name"], found["start"]["overrides"]) == ("path-x-6-s4d-again", overrides)
        assert found["recipe"]["train"]["start"] == "runs/path-x-6-s4d-again"


def test_weights_that_nobody_else_has_are_refused(runs, tmp_path, models):
    shutil.copytree(runs[0] / "model", tmp_path / "mine")
    run = made(tmp_path / "later", f"train.start={tmp_path / 'mine'}", "train.steps=15")
    with pytest.raises(schema.PublishError, match=r"started from weights of this machine \(train\.start\)"):
        publish([run], results=tmp_path / "results", models=models)


def test_commands_take_the_name(runs, tmp_path, models, monkeypatch):
    """Also without the data: what predict and stream need lies beside the weights."""
    publish(runs[:1], results=tmp_path / "results", models=models)
    monkeypatch.chdir(tmp_path)
    found = read(models / "digits-s4d/record.json")
    said = invoke("eval", "digits-s4d", "--device", "cpu").stdout
    assert said.count(f"{100 * found['test']['accuracy']:.2f} %") == 2  # measured, and on record
    assert f"  digits   {100 * found['test']['accuracy']:.2f} %  " in invoke("models").stdout
    image = data.load("digits").test.arrays["x"][5]
    np.savetxt("image.csv", image, fmt="%d")
    with torch.no_grad():
        wanted = statespan.load("digits-s4d")(torch.from_numpy(image / 16)[None, :, None].float()).softmax(-1)[0]
    monkeypatch.setattr("statespan.data.load", None)
    for words in (["--model", "digits-s4d", "image.csv"], ["digits-s4d", "image.csv"]):
        assert f"{int(wanted.argmax())}  {100 * wanted.max():.1f} %" in invoke("predict", *words).stdout
    done = CliRunner().invoke(
        app(), ["stream", "digits-s4d", "--every", "64"], input=(tmp_path / "image.csv").read_bytes()
    )
    number, answer, probability = done.stdout.splitlines()[-1].split(",")
    assert (number, answer) == ("64", str(int(wanted.argmax())))
    assert abs(float(probability) - float(wanted.max())) < 1e-3
    assert invoke("plot", "steps", "digits-s4d", "--out", "steps.svg").exit_code == 0
    assert "statespan plot times draws published runs" in one_line(invoke("plot", "curves", "digits-s4d"))
    for command in (["eval"], ["stream"], ["export"], ["generate"], ["plot", "steps"], ["predict", "--model"]):
        line = one_line(invoke(*command, "digit-s4d", *(["x.csv"] if command[0] == "predict" else [])))
        assert "did you mean digits-s4d?" in line
    with pytest.raises(find.UnknownModelError, match=r"no published model 'digit-s4d'; did you mean digits-s4d\?"):
        statespan.load("digit-s4d")
    with pytest.raises(find.UnknownModelError, match=r"no published model '\.\./x'; published are digits-s4d"):
        statespan.load("../x")
    with pytest.raises(TypeError, match="name must be the name of a model or a folder, got int 3"):
        statespan.load(3)
