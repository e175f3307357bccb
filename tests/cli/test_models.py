"""Trained models at work: streams, text, images, exports, from the command line."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from statespan import generate, models
from statespan.cli.app import app
from statespan.data import load
from statespan.export import write
from statespan.generation.picture import GAP
from statespan.train import read_recipe, recipes
from statespan.train.config import write_recipe
from tests.cli.make import one_line, write_own

TINY = {"d_model": 8, "d_state": 4, "n_layers": 1, "layer": "s4d"}


def invoke(*arguments, stdin=b""):
    return CliRunner().invoke(app(), [str(a) for a in arguments], input=stdin)


def said(done):
    assert done.exit_code == 0, (done.stdout, done.stderr, done.exception)
    return done.stdout


def saved(folder, name, **options):
    """A small model with random weights, saved."""
    model = models.build(name, None, {**TINY, **options}).eval()
    model.save_pretrained(folder)
    return model


def as_run(folder, recipe, dataset):
    """What training leaves, without training."""
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(write_recipe(recipe))
    options = {key: value for key, value in recipe.model.items() if key != "name"}
    model = models.build(recipe.model["name"], dataset.info, options).eval()
    model.save_pretrained(folder / "model")
    return model


def table(text):
    lines = [line.split(",") for line in text.splitlines()]
    return lines[0], lines[1:]


def csv_of(x):
    return "\n".join(",".join(f"{v:.9g}" for v in row) for row in np.atleast_2d(x)).encode() + b"\n"


def test_stream_values_from_lines_and_from_audio(tmp_path):
    model = saved(tmp_path / "model", "regressor", d_input=1, d_output=2)
    x = (np.random.default_rng(0).integers(-(2**15), 2**15, 40) / 2**15).astype(np.float32)
    with torch.no_grad():
        wanted = np.stack([model(torch.from_numpy(x[None, : n + 1, None]))[0].numpy() for n in range(40)])
    head, rows = table(said(invoke("stream", tmp_path / "model", stdin=b"volts\n" + csv_of(x[:, None]))))
    assert head == ["sample", "value_0", "value_1"]
    assert [int(row[0]) for row in rows] == list(range(1, 41))
    assert np.abs(np.array(rows, float)[:, 1:] - wanted).max() < 2e-5 * np.abs(wanted).max()
    raw = (x * 2**15).astype("<i2").tobytes() + b"\1"  # half a sample at the end is none
    _, rows = table(said(invoke("stream", tmp_path / "model", "--format", "s16le", "--every", 15, stdin=raw)))
    assert [int(row[0]) for row in rows] == [15, 30, 40]
    assert np.abs(np.array(rows, float)[:, 1:] - wanted[[14, 29, 39]]).max() < 2e-5 * np.abs(wanted).max()


def test_stream_goes_on_from_its_state(tmp_path):
    saved(tmp_path / "model", "regressor", d_input=2, d_output=1)
    x = np.random.default_rng(0).normal(size=(20, 2))
    whole = said(invoke("stream", tmp_path / "model", stdin=csv_of(x))).splitlines()
    state = tmp_path / "box.state"
    first = said(invoke("stream", tmp_path / "model", "--state", state, stdin=csv_of(x[:12]))).splitlines()
    second = said(invoke("stream", tmp_path / "model", "--state", state, stdin=csv_of(x[12:]))).splitlines()
    assert first == whole[:13]
    assert [line.partition(",")[2] for line in second[1:]] == [line.partition(",")[2] for line in whole[13:]]


@pytest.mark.parametrize("every", [1, 8])
@pytest.mark.parametrize("bad", ["nan,0.5", "0.5,-inf", "1e300,0", "2", "1,x", "3e38,3e38"])
def test_stream_refuses_a_line_and_keeps_the_state_before_it(bad, every, tmp_path):
    saved(tmp_path / "model", "regressor", d_input=2, d_output=1)
    x = np.random.default_rng(0).normal(size=(20, 2))
    whole = said(invoke("stream", tmp_path / "model", stdin=csv_of(x))).splitlines()
    command = ("stream", tmp_path / "model", "--state", tmp_path / "box.state", "--every", every)
    done = invoke(*command, stdin=b"a,b\n" + csv_of(x[:12]) + bad.encode() + b"\n" + csv_of(x[12:]))
    if bad == "3e38,3e38" and every == 8:
        assert "sample 16: x must be samples whose outputs" in one_line(done)
        return
    assert ("sample 13: " if bad == "3e38,3e38" else "line 14 must ") in one_line(done)
    second = said(invoke(*command[:4], stdin=csv_of(x[12:]))).splitlines()
    last = [float(line[-1].rpartition(",")[2]) for line in (whole, second)]
    assert abs(last[0] - last[1]) < 1e-5 * abs(last[0])


@pytest.mark.parametrize("bad", ["nan", "5", "-1", "1.5"])
def test_stream_refuses_what_is_no_token(bad, tmp_path):
    saved(tmp_path / "model", "language", vocabulary=5)
    done = invoke("stream", tmp_path / "model", stdin=f"3\n4\n{bad}\n".encode())
    assert "line 3 must be " in one_line(done)
    assert len(done.stdout.splitlines()) == 3


def test_stream_of_a_run_scales_and_names_as_training_did(tmp_path):
    recipe = read_recipe(write_own(tmp_path))
    options = {key: value for key, value in recipe.data.items() if key != "name"}
    dataset = load("own", tmp_path, **options)
    model = as_run(tmp_path / "runs/tones", recipe, dataset)
    raw = np.load(sorted((tmp_path / "waves/high").iterdir())[0])[:30]
    head, rows = table(said(invoke("stream", tmp_path / "runs/tones", "--data", tmp_path, stdin=csv_of(raw))))
    assert head == ["sample", "class", "probability"]
    own = dataset.train.batch([0])
    mean, std = dataset.train.prepare.mean, dataset.train.prepare.std
    x = torch.from_numpy((raw - np.asarray(mean)) / np.asarray(std)).float()[None]
    assert own.x.shape[-1] == x.shape[-1]
    with torch.no_grad():
        p = model(x).softmax(-1)[0]
    assert rows[-1][1] == dataset.info.classes[int(p.argmax())]
    assert abs(float(rows[-1][2]) - float(p.max())) < 1e-3


def picture_cells(path, side, columns, rows, enlarge):
    """The images of a grid, (rows, columns, side, side)."""
    whole = np.asarray(Image.open(path))[::enlarge, ::enlarge]
    cells = [
        whole[GAP + r * (side + GAP) :, GAP + c * (side + GAP) :][:side, :side]
        for r in range(rows)
        for c in range(columns)
    ]
    return np.stack(cells).reshape(rows, columns, side, side)


def test_images(tmp_path):
    """As many as asked for, the same in any batches; completed ones begin with what was given."""
    recipe = recipes.read("digits-density", ["model.d_model=8", "model.d_state=4"])
    dataset = load("digits-density", tmp_path)
    model = as_run(tmp_path / "run", recipe, dataset)
    out = tmp_path / "grid.png"
    text = said(
        invoke("generate", tmp_path / "run", "--count", 5, "--batch", 2, "--seed", 3, "--out", out, "--device", "cpu")
    )
    assert f"written: {out}" in text
    wanted = generate(model, None, 64, batch=5, seed=3).values.reshape(5, 8, 8).numpy()
    cells = picture_cells(out, 8, 3, 2, 12).reshape(6, 8, 8)
    assert (cells[:5] == np.rint(wanted * 255 / 16)).all()
    assert (cells[5] == 128).all()
    alone = (
        "generate",
        tmp_path / "run/model",
        "--size",
        "8x8",
        "--count",
        5,
        "--seed",
        3,
        "--out",
        tmp_path / "b.png",
    )
    said(invoke(*alone, "--device", "cpu"))
    assert (tmp_path / "b.png").read_bytes() == out.read_bytes()
    said(invoke("generate", tmp_path / "run", "--complete", "--count", 2, "--out", out, "--device", "cpu"))
    cells = picture_cells(out, 8, 2, 5, 12)
    test = np.rint(dataset.test.batch([0, 1]).y.reshape(2, 8, 8).numpy() * 255 / 16)
    assert (cells[0] == test).all()
    assert (cells[1:, :, :4] == test[:, :4]).all()
    assert (cells[1, :, 4:] == 0).all()
    assert (cells[2:, :, 4:] != test[:, 4:]).any()


def test_text(tmp_path):
    folder = tmp_path / "wikitext2"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        (folder / f"wiki.{split}.tokens").write_text(" the cat sat on the mat . \n the dog <unk> \n" * 20)
    changes = ["model.d_model=8", "model.d_state=4", "model.n_layers=1", "model.cutoffs=[3, 6]", "model.div_val=2"]
    recipe = recipes.read("wikitext2-s4", [*changes, "data.length=16"])
    dataset = load("wikitext2", tmp_path, length=16)
    model = as_run(tmp_path / "run", recipe, dataset)
    words = list(dataset.info.classes)
    common = ("generate", tmp_path / "run", "--data", tmp_path, "--steps", 12, "--seed", 4, "--device", "cpu")
    text = said(invoke(*common, "--prompt", "the cat", "--temperature", 0.7))
    prompt = torch.tensor([[words.index("the"), words.index("cat")]])
    found = generate(model, prompt, 12, temperature=0.7, seed=4).values[0].tolist()
    assert text == "the cat " + "".join("\n" if words[t] == "<eos>" else words[t] + " " for t in found) + "\n"
    done = invoke(*common, "--prompt", "the zebra", "--count", 2)
    assert said(done).startswith("the zebra ")
    assert done.stderr == "statespan: these words are not in the training data: zebra\n"


def test_export(tmp_path, monkeypatch):
    saved(tmp_path / "model", "regressor", d_input=1, d_output=2)
    calls = []
    monkeypatch.setattr(write, "export", lambda model, path, **options: calls.append((path, options)) or 1.5e-7)
    monkeypatch.chdir(tmp_path)
    text = said(invoke("export", "model", "--to", "torch-export", "--view", "sequence", "--state", "float32"))
    assert text == (
        "written: model-sequence.pt2\ncompared with the model: differs by at most 1.5e-07 of the peak\n"
        "inputs: x is what the model was trained on; it has no scaling of its own\n"
    )
    ((path, options),) = calls
    assert str(path) == "model-sequence.pt2"
    assert options == {
        "to": "torch-export",
        "view": "sequence",
        "dt_scale": 1.0,
        "state_dtype": torch.float32,
        "scale": True,
    }


MISTAKES = {
    "not there": (["stream", "{folder}/none"], "MODEL must be the folder of a run or of a saved model"),
    "unfinished": (["generate", "{folder}/unfinished"], "has no model yet; finish it with: statespan train"),
    "format": (["stream", "{folder}/model", "--format", "wav"], "--format must be csv or s16le, got 'wav'"),
    "every": (["stream", "{folder}/model", "--every", "0"], "--every must be a number >= 1, got 0"),
    "dt_scale": (["stream", "{folder}/model", "--dt-scale", "-1"], "--dt-scale must be a number > 0"),
    "two ways": (["stream", "{folder}/both"], "bidirectional=True"),
    "numbers": (["stream", "{folder}/model"], "line 2 must be numbers with commas between them, got 'a,b'"),
    "another model": (["generate", "{folder}/model"], "generate is for models of text or images"),
    "temperature": (["generate", "{folder}/pixels", "--temperature", "-1"], "--temperature must be a number >= 0"),
    "top-p": (["generate", "{folder}/pixels", "--top-p", "2"], "--top-p must be a number > 0 and <= 1, got 2"),
    "size": (["generate", "{folder}/pixels"], "give it, such as --size 28x28"),
    "sizes": (["generate", "{folder}/pixels", "--size", "28x27"], "--size must be a height and the same width"),
    "out": (["generate", "{folder}/pixels", "--out", "a.jpg"], "--out must end in .png"),
    "complete": (["generate", "{folder}/pixels", "--complete", "--size", "2x2"], "--complete needs test images"),
    "to": (["export", "{folder}/model", "--to", "onx"], "--to must be onnx or torch-export, got 'onx'"),
    "view": (["export", "{folder}/model", "--view", "whole"], "--view must be step or sequence, got 'whole'"),
    "two ways exported": (["export", "{folder}/both", "--to", "torch-export"], "bidirectional=True"),
    "nowhere": (["export", "{folder}/model", "--out", "{folder}/no/x"], "--out must be a file in an existing folder"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "model", "regressor", d_input=2, d_output=2)
    saved(tmp_path / "both", "classifier", d_input=2, d_output=2, bidirectional=True)
    saved(tmp_path / "pixels", "pixels", vocabulary=5, d_output=4, pools=[2])
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished/recipe.yaml").write_text(write_recipe(recipes.read("digits-density")))
    before = sorted(path.name for path in tmp_path.iterdir())
    arguments, words = MISTAKES[name]
    done = invoke(*(word.format(folder=tmp_path) for word in arguments), stdin=io.BytesIO(b"1,2\na,b\n").read())
    assert words in one_line(done)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
