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


def test_streaming_audio_without_its_files(monkeypatch):
    pytest.importorskip("onnxruntime")
    assert "python examples/stream_audio.py step.onnx clip.wav" in run(monkeypatch, "stream_audio.py")
