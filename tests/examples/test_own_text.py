"""The example trains on a text, writes and records it."""

import hashlib
import json
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "own_text.py")
TINY = ["model.d_model=8", "model.d_state=4", "model.n_layers=1", "data.length=16", "train.steps=4"]


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["own_text.py", *map(str, arguments)])
    runpy.run_path(EXAMPLE, run_name="__main__")


def test_it_trains_writes_and_records(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("cat.txt").write_text("the cat sat.\n" * 60)
    run(monkeypatch, "cat.txt", *TINY, "--prompt", "the ", "--characters", 40, "--out", "record.json")
    said = capsys.readouterr().out
    record = json.loads(Path("record.json").read_text())
    digest = hashlib.sha256(Path("cat.txt").read_bytes()).hexdigest()
    assert record["text"] == {"file": "cat.txt", "bytes": 780, "sha256": digest}
    assert record["characters"] == {"train": 702, "valid": 39, "test": 39}
    assert record["metric"] == "bits_per_character"
    assert f"test {record['test']['bits_per_character']:.3f} bits per character" in said
    assert len(record["sample"]["text"]) == 40
    assert "the " + record["sample"]["text"] in said
    assert record["cpu_seconds"] > 0


@pytest.mark.parametrize(("arguments", "code"), [(["--out", "no/x.json"], 2), (["--prompt", "é"], 2)])
def test_mistakes(tmp_path, arguments, code, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("cat.txt").write_text("the cat sat.\n" * 60)
    with pytest.raises(SystemExit, match=str(code)):
        run(monkeypatch, "cat.txt", *TINY, *arguments)
    assert arguments[0] in capsys.readouterr().err.splitlines()[-1]
