"""A trained model knows its inputs: recorded values in, answers out, without the training data, from any folder."""

import json
import shutil

import numpy as np
import pytest
import torch

import statespan
from statespan.data import load
from statespan.data.inputs import of_dataset, portable
from statespan.export import export
from statespan.models import LoadError, from_pretrained
from statespan.train import evaluate
from tests.cli.make import invoke as trained
from tests.cli.make import one_line, series, write_own
from tests.cli.test_models import csv_of, invoke, said, table
from tests.export.test_export import run_onnx

TASKS = {"tones": "classification", "values": "regression"}
VALUES = """
name: values
data: {{name: own, path: values.npz, task: regression}}
model: {{name: regressor, layer: s4d, d_model: 8, d_state: 4, n_layers: 1}}
train: {{epochs: 2, batch: 8, lr: 0.05, tensorboard: false}}
"""


def big(n=40):
    """Series of values around 500 and a million, whose classes are low and high."""
    x, y = series(n)
    return (x * [100, 3] + [200, 1e6]).astype(np.float32), y


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Two runs that were trained on relative paths, without their data."""
    home = tmp_path_factory.mktemp("home")
    x, y = big()
    for i, (one, kind) in enumerate(zip(x, y)):
        (home / "waves" / kind).mkdir(parents=True, exist_ok=True)
        np.save(home / "waves" / kind / f"{i:02d}.npy", one)
    np.savez(home / "values.npz", x=x[:, :40], y=1000 + 50 * x[:, :40].mean((1, 2)))
    (home / "values.yaml").write_text(VALUES.format())
    recipe = write_own(home)  # makes smaller series: these take their place
    recipe.write_text(recipe.read_text().replace(str(home / "waves"), "waves"))
    for i, (one, kind) in enumerate(zip(x, y)):
        np.save(home / "waves" / kind / f"{i:02d}.npy", one)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        for name in ("tones", "values"):
            done = trained("train", f"{name}.yaml")
            assert done.exit_code == 0, (done.stderr, done.exception)
    return home


@pytest.fixture
def away(home, tmp_path, monkeypatch):
    """A folder other than that of training, with a series to read."""
    folder = tmp_path / "away"
    folder.mkdir()
    np.save(folder / "one.npy", big(1)[0][0, :40])
    (folder / "one.csv").write_bytes(csv_of(big(1)[0][0, :40]))
    monkeypatch.chdir(folder)
    return folder


def wanted(home, name):
    """The outputs of the last weights for the series, scaled by the data itself."""
    options = {"path": str(home / "waves"), "length": 40}
    if name == "values":
        options = {"path": str(home / "values.npz"), "task": "regression"}
    dataset = load("own", home, **options)
    x = of_dataset(dataset).prepare(big(1)[0][:, :40]).x
    with torch.no_grad():
        y = from_pretrained(home / "runs" / name / "model")(x)[0].double().numpy()
    if name == "values":
        return y * dataset.info.target_std + dataset.info.target_mean
    return np.exp(y) / np.exp(y).sum()


@pytest.mark.parametrize("name", ["tones", "values"])
@pytest.mark.parametrize("place", ["", "model"])
def test_a_loaded_model_scales_in_one_call(home, away, name, place):
    model = statespan.load(home / "runs" / name / place)
    with torch.no_grad():
        y = model(model.inputs(np.load("one.npy")))
    answers = model.inputs.answers(y)
    expected = wanted(home, name)
    if name == "tones":
        assert answers == [["high", "low"][expected.argmax()]]
        assert np.abs(y.softmax(-1)[0].numpy() - expected).max() < 1e-5
    else:
        assert np.abs(answers[0].numpy() - expected).max() < 1e-5 * np.abs(expected).max()


def test_the_description_goes_where_the_model_goes(home, tmp_path):
    model = statespan.load(home / "runs/tones")
    model.save_pretrained(tmp_path)
    again = from_pretrained(tmp_path)
    assert again.inputs == model.inputs
    assert again.inputs.info.classes == ("high", "low")
    again.inputs = None
    again.save_pretrained(tmp_path)
    assert not (tmp_path / "inputs.json").exists()
    assert from_pretrained(tmp_path).inputs is None


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"info": {}, "whole": false, "prepare": null}'])
def test_a_damaged_description_is_refused(home, tmp_path, content):
    folder = shutil.copytree(home / "runs/tones/model", tmp_path / "model")
    (folder / "inputs.json").write_text(content)
    with pytest.raises(LoadError, match=r"inputs\.json"):
        from_pretrained(folder)


@pytest.mark.parametrize("place", ["", "model"])
@pytest.mark.parametrize("name", ["tones", "values"])
def test_stream_from_another_folder_scales(home, away, name, place):
    head, rows = table(said(invoke("stream", home / "runs" / name / place, stdin=(away / "one.csv").read_bytes())))
    expected = wanted(home, name)
    if name == "tones":
        assert head == ["sample", "class", "probability"]
        assert rows[-1][1] == ["high", "low"][expected.argmax()]
        assert abs(float(rows[-1][2]) - expected.max()) < 1e-3
    else:
        assert abs(float(rows[-1][1]) - expected[0]) < 1e-4 * abs(expected[0])


@pytest.mark.parametrize("name", ["tones", "values"])
def test_predict_from_another_folder(home, away, name):
    said(invoke("predict", home / "runs" / name, "one.npy"))
    _, (row,) = table((away / "predictions.csv").read_text())
    expected = wanted(home, name)
    numbers = np.array([float(field) for field in row[3 if name == "tones" else 1 :]])
    assert np.abs(numbers - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("view", ["step", "sequence"])
@pytest.mark.parametrize("name", ["tones", "values"])
def test_an_exported_program_reads_recorded_values(home, away, name, view):
    text = said(invoke("export", home / "runs" / name, "--to", "torch-export", "--view", view, "--out", "m.pt2"))
    assert text.splitlines()[-1] == "inputs: x is recorded values, which the model scales"
    extra = {"inputs.json": "", "x.txt": ""}
    module = torch.export.load("m.pt2", extra_files=extra).module()
    x = torch.from_numpy(np.load("one.npy"))[None]
    if view == "sequence":
        y = module(x)
    else:
        model = from_pretrained(home / "runs" / name / "model")
        state = _fresh(model)
        for t in range(40):
            y, *state = module(x[:, t], *state)
    y = y.softmax(-1) if name == "tones" else y
    expected = wanted(home, name)
    assert np.abs(y[0].double().numpy() - expected).max() < 1e-5 * np.abs(expected).max()
    assert extra["x.txt"] in ("recorded", b"recorded")
    assert json.loads(extra["inputs.json"])["info"]["d_input"] == 2


def _fresh(model):
    from statespan.generation.tree import leaves

    return list(leaves(model.initial_state(1, dtype=torch.float64)))


@pytest.mark.filterwarnings("ignore")
def test_onnx_says_what_it_reads(home, away):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    said(invoke("export", home / "runs/tones", "--view", "sequence", "--out", "m.onnx"))
    session, (y,) = run_onnx(away / "m.onnx", [torch.from_numpy(np.load("one.npy"))[None]])
    assert np.abs(y.softmax(-1)[0].numpy() - wanted(home, "tones")).max() < 1e-5
    facts = session.get_modelmeta().custom_metadata_map
    assert facts["statespan.x"] == "recorded"
    stored = json.loads(facts["statespan.inputs"])
    assert stored["info"]["classes"] == ["high", "low"]
    scale, shift = np.array(stored["prepare"]["scale"]), np.array(stored["prepare"]["shift"])
    assert -shift[1] / scale[1] == pytest.approx(1e6, rel=1e-5)


def test_export_without_the_scaling(home, away):
    """As models are exported that have none."""
    text = said(
        invoke("export", home / "runs/tones", "--to", "torch-export", "--view", "sequence", "--no-scale", "--out", "m")
    )
    assert text.splitlines()[-1] == "inputs: x must be scaled as the training data, by the numbers in the metadata"
    model = statespan.load(home / "runs/tones")
    x = torch.randn(1, 90, 2)
    y = torch.export.load("m").module()(x)
    assert (y - model(x)).abs().max() < 1e-5 * y.abs().max()
    model.inputs = None
    extra = {"x.txt": ""}
    export(model, "bare", to="torch-export", view="sequence")
    assert torch.equal(torch.export.load("bare", extra_files=extra).module()(x), y)
    assert not extra["x.txt"]


def test_audio_of_16_bits_is_read_as_floats_or_whole_numbers(tmp_path):
    """A description that reads whole numbers, as that of the speech commands does."""
    model = statespan.load("sc10-s4-augment")
    whole = np.random.default_rng(0).integers(-(2**15), 2**15, (1, 200, 1)).astype(np.int16)
    audio = whole.astype(np.float32) / 2**15
    x = model.inputs(whole)
    assert torch.equal(x, model.inputs(torch.from_numpy(audio)))
    assert np.abs(x.numpy() - model.inputs.prepare(whole.astype(np.float32)).x.numpy()).max() == 0


def test_the_scale_has_all_digits(tmp_path):
    """Of a large mean, too, near which the difference of two scaled values has few."""
    x, y = series(20)
    np.savez(tmp_path / "a.npz", x=(1e6 + 1000 * x).astype(np.float32), y=(y == "high").astype(int))
    dataset = load("own", tmp_path, path=str(tmp_path / "a.npz"))
    raw = (1e6 + 1000 * x).astype(np.float32)
    stored = portable(dataset).prepare(raw).x
    assert (stored - of_dataset(dataset).prepare(raw).x).abs().max() < 1e-6 * stored.abs().max()


def test_what_needs_the_data_says_how_to_name_it(home, away):
    run = home / "runs/tones"
    for command in (["eval", run], ["train", run, "--resume"]):
        assert "name it with data.path=" in one_line(trained(*command))
    assert trained("eval", run, f"data.path={home / 'waves'}").exit_code == 0
    old = shutil.copytree(run, away / "old")  # of a version that stored no inputs
    (old / "model/inputs.json").unlink()
    for command in (["predict", old, "one.npy"], ["stream", old]):
        assert "name it with data.path=" in one_line(invoke(*command, stdin=b"1,2\n"))
    text = said(invoke("stream", old, f"data.path={home / 'waves'}", stdin=(away / "one.csv").read_bytes()))
    assert text == said(invoke("stream", run, stdin=(away / "one.csv").read_bytes()))
    assert "overrides must be data settings" in one_line(invoke("stream", old, "train.lr=1", stdin=b"1,2\n"))


def test_resume_with_data_elsewhere(home, away):
    run = shutil.copytree(home / "runs/values", away / "values")
    moved = shutil.copy(home / "values.npz", away / "moved.npz")
    done = trained("train", run, "--resume", "train.epochs=3", f"data.path={moved}")
    assert done.exit_code == 0, (done.stderr, done.exception)
    assert json.loads((run / "result.json").read_text())["epochs"] == 3.0
    with_it = one_line(trained("train", run, "--resume", "data.valid=0.3", f"data.path={moved}"))
    assert "data.valid is 0.3; allowed: None" in with_it


@pytest.mark.parametrize("name", ["tones", "values"])
def test_eval_scales_other_data_as_in_training(home, away, name):
    """Shifted, all of it: the model must see that, which a mean of the data's own would hide."""
    run = home / "runs" / name
    with np.load(home / "values.npz") as arrays:
        x, y = arrays["x"], arrays["y"]
    y = big()[1] if name == "tones" else y
    np.savez(away / "other.npz", x=x + np.array([300, 10]), y=y if name == "tones" else y + 100)
    dataset = load("own", away, path=str(away / "other.npz"), task=TASKS[name])
    model = from_pretrained(run / "model")
    windows = dataset.test.arrays
    rows = np.stack([windows["x"][start : start + 40] for start in windows["starts"]])
    with torch.no_grad():
        outputs = model(model.inputs(rows))
    metrics = evaluate(run, overrides=[f"data.path={away / 'other.npz'}"], device="cpu")
    if name == "tones":
        expected = (outputs.argmax(-1).numpy() == windows["y"]).mean()
        loss = torch.nn.functional.cross_entropy(outputs, torch.from_numpy(windows["y"]).long())
        assert metrics["loss"] == pytest.approx(float(loss), rel=1e-4)
        assert metrics["accuracy"] == pytest.approx(expected)
    else:
        values = windows["y"] * dataset.info.target_std + dataset.info.target_mean
        error = model.inputs.answers(outputs).numpy() - values
        assert metrics["rmse"] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-4)


def test_eval_refuses_other_classes(home, away):
    x, y = big()
    np.savez(away / "other.npz", x=x[:, :40], y=np.where(y == "low", "lower", y))
    line = one_line(trained("eval", home / "runs/tones", f"data.path={away / 'other.npz'}"))
    assert "the classes must be those of the training data, high, low, got high, lower" in line
