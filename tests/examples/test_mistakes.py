"""A mistake on the command line of an example gets a message, not a traceback."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
pytest.importorskip("pandas")


def run(monkeypatch, name, *arguments):
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return stopped.value.code


@pytest.mark.parametrize(
    ("name", "options"), [("classify.py", []), ("regress.py", []), ("forecast.py", ["--target", "OT"])]
)
def test_a_file_that_is_not_there(name, options, tmp_path, monkeypatch, capsys):
    assert run(monkeypatch, name, tmp_path / "none.csv", *options) == 2
    assert f"file must be an existing file, got {tmp_path / 'none.csv'}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "options", "option", "hint"),
    [
        ("classify.py", ["--target", "lab"], "--target", "got 'lab'; did you mean label?"),
        ("classify.py", ["--test", "{file}", "--target", "zzz"], "--target", "got 'zzz'"),
        ("regress.py", ["--target", "labl"], "--target", "got 'labl'; did you mean label?"),
        ("regress.py", ["--series", "dat", "--answers", "{file}"], "--series", "got 'dat'; did you mean date?"),
        ("forecast.py", ["--time", "dat", "--target", "x"], "--time", "got 'dat'; did you mean date?"),
        ("forecast.py", ["--target", "labels"], "--target", "got 'labels'; did you mean label?"),
    ],
)
def test_a_column_that_is_not_there(name, options, option, hint, tmp_path, monkeypatch, capsys):
    file = tmp_path / "series.csv"
    file.write_text("date,x,label\n2020-01-01,1,2\n2020-01-02,1,3\n")
    assert run(monkeypatch, name, file, *(word.format(file=file) for word in options)) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"{name}: error: {option} must be a column of {file}, {hint}"


def test_streaming_audio_without_its_files(monkeypatch):
    pytest.importorskip("onnxruntime")
    assert "python examples/stream_audio.py step.onnx clip.wav" in run(monkeypatch, "stream_audio.py")
