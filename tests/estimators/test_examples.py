"""The examples run on files as users have them."""

import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.data.real import real
from tests.estimators.make import made_up_patients, made_up_words, waves

EXAMPLES = Path(__file__).parents[2] / "examples"
pd = pytest.importorskip("pandas")


def run(monkeypatch, capsys, name, *arguments):
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def test_classify_a_csv_file(tmp_path, monkeypatch, capsys):
    X, y = waves(40, 20)
    pd.DataFrame(X[..., 0]).assign(label=np.array(["slow", "fast"])[y]).to_csv(tmp_path / "series.csv", index=False)
    said = run(monkeypatch, capsys, "classify.py", tmp_path / "series.csv", "--epochs", 4, "--save", tmp_path / "model")
    assert float(re.search(r"test accuracy ([\d.]+)% of 10 series", said)[1]) >= 50
    assert "it predicts the same: True" in said
    assert "['fast', 'slow']" in said


def test_regress_wide_and_long_files(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    level = rng.normal(size=24)
    X = level[:, None] + 0.1 * rng.normal(size=(24, 10))
    pd.DataFrame(X).assign(value=level).to_csv(tmp_path / "wide.csv", index=False)
    wide = run(monkeypatch, capsys, "regress.py", tmp_path / "wide.csv", "--epochs", 15)
    error, mean = map(float, re.search(r"test RMSE ([\d.]+) of 6 series \(([\d.]+) for", wide).groups())
    assert error < mean
    frame = pd.DataFrame({"id": np.repeat(np.arange(24), 10), "t": list(range(10)) * 24, "v": X.ravel()})
    frame.sample(frac=1, random_state=0).to_csv(tmp_path / "long.csv", index=False)
    pd.DataFrame({"id": np.arange(24), "value": level}).to_csv(tmp_path / "values.csv", index=False)
    options = ["--series", "id", "--time", "t", "--answers", tmp_path / "values.csv", "--epochs", 1]
    assert "of 6 series" in run(monkeypatch, capsys, "regress.py", tmp_path / "long.csv", *options)


def test_forecast_a_csv_file(tmp_path, monkeypatch, capsys):
    index = pd.date_range("2020-01-01", periods=200, freq="h", name="date")
    pd.DataFrame({"OT": np.sin(np.arange(200) * 2 * np.pi / 24)}, index=index).to_csv(tmp_path / "data.csv")
    options = ["--target", "OT", "--horizon", 12, "--context", 24, "--steps", 5, "--out", tmp_path / "out.csv"]
    said = run(monkeypatch, capsys, "forecast.py", tmp_path / "data.csv", *options)
    assert "mean absolute error" in said
    table = pd.read_csv(tmp_path / "out.csv", index_col="date", parse_dates=True)
    assert list(table.columns) == ["forecast", "low", "high", "actual"]
    assert table.index.equals(index[-12:])


def test_vital_signs(tmp_path, monkeypatch, capsys):
    data = made_up_patients(tmp_path)
    said = run(monkeypatch, capsys, "vital_signs.py", "--data", data, "--windows", 8, "--epochs", 1)
    assert re.search(r"new patients: RMSE [\d.]+ beats per minute", said)


def test_speech(tmp_path, monkeypatch, capsys):
    said = run(monkeypatch, capsys, "speech.py", "--data", made_up_words(tmp_path), "--clips", 2, "--epochs", 1)
    assert re.search(r"16 kHz: [\d.]+% of 2 words right", said)


@pytest.mark.soak
@pytest.mark.real_data
def test_real_signals(tmp_path, monkeypatch, capsys):
    data = real(tmp_path, "bidmc")
    said = run(monkeypatch, capsys, "vital_signs.py", "--data", data, "--windows", 320, "--epochs", 10)
    error, mean = map(float, re.search(r"RMSE ([\d.]+) beats per minute \(([\d.]+) for", said).groups())
    assert error < mean
    data = real(tmp_path, "speech")
    said = run(monkeypatch, capsys, "speech.py", "--data", data, "--clips", 10, "--epochs", 2)
    assert "16 kHz" in said
