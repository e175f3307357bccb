"""A sampling rate in hertz in place of dt_scale: known from training, given again at use."""

import pytest

from statespan.generation import Stream
from statespan.models import build, from_pretrained
from tests.cli.make import one_line, series, write_own
from tests.cli.test_models import csv_of, invoke


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs on the same data: "known" was trained at 100 Hz, "unknown" at an unknown rate."""
    folder = tmp_path_factory.mktemp("rates")
    recipe = write_own(folder)
    for name, changes in (("known", ["data.sampling_rate=100"]), ("unknown", [])):
        words = [recipe, f"name={name}", "train.epochs=1", *changes, "--folder", folder]
        assert invoke("train", *words).exit_code == 0
    (folder / "half.csv").write_bytes(csv_of(series(1)[0][0, ::2]))
    return folder


def output(folder, command, *words):
    """What a command prints, or the predictions that it writes."""
    changes = ["data.subsample=2"] if command == "eval" else []
    done = invoke(command, *words, *changes, stdin=(folder / "half.csv").read_bytes())
    assert done.exit_code == 0, (done.stderr, done.exception)
    return (folder / "out.csv").read_text() if command == "predict" else done.stdout


def arguments(folder, command, run):
    files = [folder / "half.csv", "--out", folder / "out.csv"] if command == "predict" else []
    return [folder / run, *files]


def test_a_saved_model_knows_the_rate_it_was_trained_at(folder):
    assert from_pretrained(folder / "known" / "model").config.sampling_rate == 100.0
    assert from_pretrained(folder / "unknown" / "model").config.sampling_rate is None


@pytest.mark.parametrize("command", ["eval", "predict", "stream"])
def test_half_the_rate_is_twice_the_step(folder, command):
    words = arguments(folder, command, "known")
    wanted = output(folder, command, *words, "--dt-scale", "2")
    assert output(folder, command, *words, "--sampling-rate", "50") == wanted
    assert output(folder, command, *words, "--sampling-rate", "100") == output(folder, command, *words) != wanted


@pytest.mark.parametrize("command", ["eval", "predict", "stream", "export"])
def test_mistakes(folder, command):
    known, unknown = (arguments(folder, command, run) for run in ("known", "unknown"))
    line = one_line(invoke(command, *known, "--sampling-rate", "50", "--dt-scale", "2"))
    assert "give --dt-scale or --sampling-rate, not both, got 2 and 50" in line
    assert "--sampling-rate must be a number > 0, got 0.0" in one_line(invoke(command, *known, "--sampling-rate", "0"))
    line = one_line(invoke(command, *unknown, "--sampling-rate", "50"))
    assert "--sampling-rate needs a model that knows the rate it was trained at, got none; give --dt-scale" in line


def test_predict_counts_the_samples_that_the_model_reads(folder, tmp_path):
    """A run on every second sample reads every second sample of a file, whose rate is that before."""
    recipe, out = write_own(tmp_path), tmp_path / "out.csv"
    changes = ["name=run", "train.epochs=1", "data.sampling_rate=100", "data.subsample=2"]
    assert invoke("train", recipe, *changes, "--folder", tmp_path).exit_code == 0
    assert from_pretrained(tmp_path / "run" / "model").config.sampling_rate == 50.0
    done = invoke("predict", tmp_path / "run", folder / "half.csv", "--out", out, "--sampling-rate", "50")
    assert "(dt_scale 2)" in done.stdout


def test_streams():
    options = {"d_input": 1, "d_output": 2, "d_model": 8, "n_layers": 1, "layer": "s4d", "sampling_rate": 100.0}
    model = build("classifier", options=options).eval()
    assert Stream(model, sampling_rate=50.0).dt_scale == 2.0
    assert (Stream(model).dt_scale, Stream(model, dt_scale=0.5).dt_scale) == (1.0, 0.5)
    with pytest.raises(ValueError, match=r"give dt_scale or sampling_rate, not both, got 2 and 50"):
        Stream(model, dt_scale=2.0, sampling_rate=50.0)
    with pytest.raises(ValueError, match="sampling_rate needs a model that knows the rate it was trained at, got none"):
        Stream(build("classifier", options={**options, "sampling_rate": None}).eval(), sampling_rate=50.0)
    with pytest.raises(ValueError, match=r"sampling_rate must be a number > 0, got -1\.0"):
        build("classifier", options={**options, "sampling_rate": -1.0})
