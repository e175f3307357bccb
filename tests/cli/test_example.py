"""The example keeps its promises: it learns, and the recurrence predicts what the convolution does."""

import json
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "digits.py")


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["digits.py", *map(str, arguments)])
    runpy.run_path(EXAMPLE, run_name="__main__")


def test_it_learns_and_steps(tmp_path, monkeypatch, capsys):
    run(monkeypatch, "--epochs", 3, "--folder", tmp_path / "runs", "--out", tmp_path / "record.json")
    said = capsys.readouterr().out
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["test"]["accuracy"] > 0.6
    assert f"test accuracy {100 * record['test']['accuracy']:.1f}% after 3 epochs" in said
    assert f"{100 * record['every_second_pixel']['accuracy']:.1f}% with dt_scale=2.0" in said
    assert "359 of 359 predictions identical" in said
    assert record["step_by_step"]["identical"] == record["step_by_step"]["images"] == 359
    (folder,) = (tmp_path / "runs").iterdir()
    for picture in ("curve.png", "digits.png"):
        assert str(folder / picture) in said
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("arguments", [["--epochs", "0"], ["--layer", "gru"], ["--out", "no/x.json"]])
def test_mistakes(arguments, monkeypatch, capsys):
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, *arguments)
    assert arguments[0] in capsys.readouterr().err.splitlines()[-1]
