"""A run from the command line: trained, evaluated, stopped, resumed, asked about files."""

import csv
import json
import os
import signal

import numpy as np
import pytest

from statespan.cli import train
from statespan.train import load_run, loop, recipes, result
from tests.cli.make import invoke, last_line, one_line, series, write_own


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with data, a recipe and a finished run in runs/tones."""
    folder = tmp_path_factory.mktemp("home")
    recipe = write_own(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(result, "_picture", lambda result: b"")  # drawing takes longer than all the rest
        done = invoke("train", recipe, "train.seed=3", "--folder", folder / "runs", "--device", "cpu")
    assert done.exit_code == 0, (done.stderr, done.exception)
    (folder / "said.txt").write_text(done.stdout)
    return folder


@pytest.fixture(autouse=True)
def _no_picture(monkeypatch):
    monkeypatch.setattr(result, "_picture", lambda result: b"")


@pytest.fixture
def run(home):
    return home / "runs" / "tones"


def test_train_says_what_it_does_and_what_it_reached(home, run):
    said = (home / "said.txt").read_text()
    record = json.loads((run / "result.json").read_text())
    assert said.startswith("tones  S4 Table 0, paper: 12.5\n")
    assert "own: train/valid/test 28 / 4 / 8, classification, length 40" in said
    assert f"{record['parameters']:,} parameters" in said
    assert "4 epochs, batch 8, lr 0.05, fp32" in said
    assert "changed train.seed=3" in said
    assert f"{100 * record['test']['accuracy']:.2f} %" in said
    assert f"run      {run}\n" in said
    assert f"picture  {run / 'curve.png'}\n" in said
    assert record["overrides"] == ["train.seed=3"]


def test_another_run_gets_another_folder_and_resume_takes_the_newest(home, run):
    before = (run / "result.json").read_bytes()
    done = invoke("train", home / "tones.yaml", "train.epochs=1", "--folder", home / "runs")
    assert done.exit_code == 0
    assert "the paper has 12.5" in done.stdout
    assert (home / "runs" / "tones-2" / "result.json").is_file()
    other = invoke("train", home / "tones.yaml", "train.epochs=1", "name=other", "--folder", home / "others")
    assert "paper" not in other.stdout  # it is for something else now
    done = invoke("train", home / "tones.yaml", "train.epochs=2", "--resume", "--folder", home / "runs")
    assert done.exit_code == 0
    assert json.loads((home / "runs" / "tones-2" / "result.json").read_text())["epochs"] == 2
    assert (run / "result.json").read_bytes() == before


def test_the_papers_number_is_that_of_the_row():
    for changes, number in (
        ([], "0.116"),
        (["train.epochs=1"], "0.116"),
        (["data.horizon=24", "train.epochs=1"], "0.061"),
        (["data.horizon=24", "data.features=M"], "0.525"),
        (["data.horizon=25"], None),
    ):
        assert train._paper(recipes.read("etth1-s4", changes)) == number


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_the_printed_command_goes_on(home, run, number, code, tmp_path, monkeypatch):
    advance = loop.Loop.advance

    def stopped(self, batches):
        advance(self, batches)
        if self.progress.step == 5:
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "advance", stopped)
        done = invoke("train", home / "tones.yaml", "train.seed=3", "--folder", tmp_path)
    line = last_line(done, code)
    again = line.partition("resume with: statespan ")[2].split()
    assert again == ["train", str(tmp_path / "tones"), "--resume"]
    assert not (tmp_path / "tones" / "result.json").exists()
    assert invoke(*again).exit_code == 0
    assert (tmp_path / "tones" / "log.csv").read_bytes() == (run / "log.csv").read_bytes()


def test_mistakes_about_a_run(home, run):
    assert "add --resume" in one_line(invoke("train", run))
    assert "train.lr is 0.1; allowed: 0.05" in one_line(invoke("train", run, "train.lr=0.1", "--resume"))
    many = invoke("train", home / "tones.yaml", "train.batch=500", "--folder", home / "other")
    assert "train.batch is 500; allowed: at most 28, the number of rows" in one_line(many)
    assert f"runs are {run}" in one_line(invoke("eval", home / "runs" / "tone"))
    assert "did you mean subsample?" in one_line(invoke("eval", run, "data.subsampel=2"))


def test_a_damaged_checkpoint_is_one_line_and_no_result(home, run, tmp_path):
    (tmp_path / "recipe.yaml").write_bytes((run / "recipe.yaml").read_bytes())
    assert "there is no checkpoint" in one_line(invoke("eval", tmp_path), 1)
    folder = tmp_path / "checkpoints" / "000000000004-0"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("{}")
    assert "is damaged" in one_line(invoke("eval", tmp_path), 1)


def test_a_loss_that_is_not_finite_is_one_line(home, tmp_path):
    done = invoke("train", home / "tones.yaml", "train.lr=1e30", "train.ssm_lr=1e30", "--folder", tmp_path)
    assert "not finite in step" in last_line(done, 1)


def test_eval_prints_what_training_measured(run):
    record = json.loads((run / "result.json").read_text())
    done = invoke("eval", run, "--split", "valid")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0] == f"{run}: own valid, 4 rows"
    assert f"{100 * record['valid']['accuracy']:.2f} %" in done.stdout
    assert f"{record['valid']['loss']:.4g}" in done.stdout
    other = invoke("eval", run, "data.subsample=2", "--dt-scale", "2")
    assert "own test, 8 rows, dt_scale 2" in other.stdout


def test_predict_gives_what_the_model_gives_for_the_same_series(home, run, tmp_path):
    files = sorted((home / "waves").glob("*/*.npy"), key=lambda path: path.name)
    out = tmp_path / "answers.csv"
    done = invoke("predict", run, *files, "--out", out)
    assert done.exit_code == 0, (done.stderr, done.exception)
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == [str(file) for file in files]
    model, _, dataset = load_run(run)
    x, _ = series()
    batch = dataset.test.prepare(
        {"x": _tensor(x[:, :40]), "lengths": _tensor(np.full(40, 40)), "y": _tensor(x[:, 0, 0])}
    )
    wanted = model(batch.x).softmax(-1).detach().numpy()
    assert dataset.info.classes == ("high", "low")
    got = np.array([[float(row["p(high)"]), float(row["p(low)"])] for row in rows])
    np.testing.assert_allclose(got, wanted, atol=2e-6)
    assert [row["class"] for row in rows] == [dataset.info.classes[i] for i in wanted.argmax(1)]
    assert [float(row["probability"]) for row in rows] == got.max(1).tolist()
    assert done.stdout.split()[:2] == [str(files[0]), rows[0]["class"]]
    assert "… and 20 more" in done.stdout

    done = invoke("predict", run, *files, "--out", tmp_path / "answers.npz")
    with np.load(tmp_path / "answers.npz", allow_pickle=False) as arrays:
        assert arrays["files"].tolist() == [str(file) for file in files]
        assert arrays["names"].tolist() == ["high", "low"]
        assert arrays["class"].tolist() == [row["class"] for row in rows]
        np.testing.assert_allclose(arrays["probabilities"], got, rtol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answers.csv", "answers.npz"]
    done = invoke("predict", run, "data.length=20", *files, "--out", tmp_path / "shorter.csv")
    assert done.exit_code == 0
    assert (tmp_path / "shorter.csv").read_bytes() != out.read_bytes()


def test_predict_with_a_rate_and_files_of_all_kinds(run, tmp_path):
    x, _ = series(2, 30)
    np.save(tmp_path / "a.npy", x[0])
    np.savez(tmp_path / "a.npz", x=x[0])
    np.savetxt(tmp_path / "a.csv", x[0], delimiter=",", fmt="%.9g")
    np.save(tmp_path / "half.npy", x[1, ::2])
    kinds = [tmp_path / name for name in ("a.npy", "a.npz", "a.csv")]
    before = np.zeros((3, 2))
    for dt_scale in (1.0, 2.0):
        assert invoke("predict", run, *kinds, "--out", tmp_path / "p.npz", "--dt-scale", dt_scale).exit_code == 0
        with np.load(tmp_path / "p.npz") as arrays:
            found = arrays["probabilities"]
        np.testing.assert_allclose(found[1:], found[:1].repeat(2, 0), rtol=1e-6)
        assert np.abs(found - before).max() > 1e-4
        before = found


def test_mistakes_about_files(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("narrow.npy", np.zeros(30))
    np.save("good.npy", np.zeros((30, 2)))
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "words.csv").write_text("a,b\n1,x\n")
    (tmp_path / "note.txt").write_text("1,2\n")
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY")
    for arguments, said in (
        (["narrow.npy"], "narrow.npy must have 2 features, as the training data, got 1"),
        (["good.npy", "gone.npy"], "gone.npy is not (1 of 2)"),
        (["data.path=gone"], "FILES must be at least one file"),
        (["empty.csv"], "empty.csv must have at least one line"),
        (["words.csv"], "must have numbers only, got 'x'"),
        (["note.txt"], "note.txt must end in one of"),
        (["broken.npy"], "broken.npy is not a .npy file"),
        (["good.npy", "--out", "x.json"], "--out must end in .csv or .npz, got x.json"),
        (["good.npy", "--out", "no/x.csv"], "--out must be a file in an existing folder"),
        (["words.csv", "--out", "words.csv"], "--out must not be one of the files to read"),
        (["good.npy", "--dt-scale", "-1"], "--dt-scale must be a number > 0"),
    ):
        assert said in one_line(invoke("predict", run, *arguments))
    assert not list(tmp_path.glob("predictions*"))


def _tensor(array):
    import torch

    return torch.as_tensor(array)
