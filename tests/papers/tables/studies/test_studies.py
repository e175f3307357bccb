"""The studies run, go on where they were stopped, and write records that tables can be made from."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from statespan._plotting import COLORS
from statespan.estimators import read_ts
from statespan.papers.bench.document import filled
from statespan.papers.tables.studies import rates, speech, uea, vitals
from tests.estimators.make import made_up_patients, made_up_words, waves
from tests.pictures import cut_text


def write_ts(folder, name, n=12, length=32, unequal=False):
    """A made-up set of two classes in the archive's layout."""
    (folder / "uea").mkdir(exist_ok=True)
    for part, seed in (("TRAIN", 0), ("TEST", 1)):
        X, y = waves(n, length, seed=seed)
        lines = [f"# {name}", f"@problemName {name}", "@timeStamps false", "@classLabel true 0 1", "@data"]
        for i, (x, label) in enumerate(zip(X[..., 0], y)):
            kept = x[: length - i] if unequal else x
            lines.append(",".join("?" if unequal and j == 2 else f"{v:.5f}" for j, v in enumerate(kept)) + f":{label}")
        (folder / "uea" / f"{name}_{part}.ts").write_text("\n".join(lines) + "\n")


def test_ts_files(tmp_path):
    write_ts(tmp_path, "Even")
    X, y = read_ts(tmp_path / "uea" / "Even_TRAIN.ts")
    wanted, classes = waves(12, 32)
    np.testing.assert_allclose(X, wanted, atol=1e-5)
    assert y.tolist() == [str(c) for c in classes]
    write_ts(tmp_path, "Odd", unequal=True)
    X, _ = read_ts(tmp_path / "uea" / "Odd_TRAIN.ts")
    assert [len(x) for x in X] == list(range(32, 20, -1))
    assert np.isnan(X[0][2, 0])
    (tmp_path / "bad.ts").write_text("@data\n1,2:3,4,5:a\n")
    with pytest.raises(ValueError, match="line 2: the channels of a series must have the same length"):
        read_ts(tmp_path / "bad.ts")
    (tmp_path / "values.ts").write_text("@targetLabel true\n@data\n1,2:0.5\n3,4:1.5\n")
    assert read_ts(tmp_path / "values.ts")[1].tolist() == [0.5, 1.5]


def test_the_picture_of_rates_shows_the_record():
    rows = json.loads((Path(__file__).parents[4] / "results/rates.json").read_text())["rows"]
    figure = rates.draw(rows)
    by_place = {(row["setting"]["set"], row["name"]): row["extra"] for row in rows}
    for axes in figure.axes:
        for line in axes.lines[:3]:
            accuracies = by_place[axes.get_title(loc="left").partition(",")[0], line.get_label()]
            assert dict(zip(line.get_xdata(), line.get_ydata())) == pytest.approx(
                {r: 100 * a for r, a in accuracies.items()}
            )
            assert line.get_color() in COLORS
    assert cut_text(figure) == []


def test_rates(tmp_path, capsys):
    write_ts(tmp_path, "Waves")
    out = tmp_path / "rates.json"
    some = ["--data", str(tmp_path), "--out", str(out), "--sets", "Waves", "--epochs", "1"]
    rates.main(some)
    record = json.loads(out.read_text())
    names = [row["name"] for row in record["rows"]]
    assert names[:2] == ["S4D", "S4D, not told the rate"]
    assert "CNN, series resampled" in names
    for row in record["rows"]:
        assert list(row["extra"]) == ["2x", "1x", "0.5x", "0.25x"]
    by = {row["name"]: row["extra"]["1x"] for row in record["rows"]}
    assert by["S4D"] == by["S4D, not told the rate"]
    assert by["CNN"] == by["CNN, series resampled"]
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    table = filled("<!-- rates.json: name | 1x, 0.5x | S4D -->\n<!-- end -->", tmp_path)
    assert table.count("\n| S4D") == 2
    date = record["date"]
    rates.main(some)
    assert json.loads(out.read_text())["date"] == date  # nothing was run again
    capsys.readouterr()


def test_speech(tmp_path, capsys):
    speech.main(["--data", str(made_up_words(tmp_path)), "--out", str(tmp_path / "s.json"), "--epochs", "1"])
    (row,) = json.loads((tmp_path / "s.json").read_text())["rows"]
    assert row["setting"] == {"train": 4, "test": 2, "words": 2}
    assert {"16 kHz", "8 kHz", "4 kHz filtered"} <= row["extra"].keys()
    capsys.readouterr()


def test_vital_signs(tmp_path, capsys):
    data = made_up_patients(tmp_path)
    parts = vitals.windows(data, "windows")
    assert parts["train"][0].shape[1:] == (4000, 2)
    assert len(parts["train"][0]) + len(parts["test"][0]) == 8 * 3
    assert sorted(set(parts["train"][1][:, 0]))[0] == 54.0
    vitals.main(["--data", str(data), "--out", str(tmp_path / "v.json"), "--splits", "patients", "--epochs", "1"])
    (row,) = json.loads((tmp_path / "v.json").read_text())["rows"]
    assert row["name"] == "patients"
    assert row["extra"]["hr XGBoost in the paper"] == 4.72
    assert row["extra"]["hr"] > 0
    capsys.readouterr()


def test_baselines_are_models_of_whole_series():
    for model in (rates.CNN(2, 3), rates.Attending(2, 3)):
        model(torch.randn(4, 20, 2)).sum().backward()
        assert all(p.grad is not None for p in model.parameters())


def test_uea_needs_aeon(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(uea, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="2"):
        uea.main(["--data", str(tmp_path)])
    assert "pip install aeon" in capsys.readouterr().err
