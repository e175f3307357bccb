"""The example streams audio to the answers of the model."""

import runpy
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
import torch

from statespan.export import export
from tests.models.make import make

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "stream_audio.py")


@pytest.mark.filterwarnings("ignore")
def test_audio(tmp_path, monkeypatch, capsys):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    model = make("classifier", dtype=torch.float32, d_input=1, n_layers=1, norm="layer", feed_forward=0)
    export(model, tmp_path / "step.onnx", check=False)
    samples = np.random.default_rng(0).integers(-(2**15), 2**15, 90).astype("<i2")
    with wave.open(str(tmp_path / "clip.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(300)
        file.writeframes(samples.tobytes())
    monkeypatch.setattr(sys, "argv", ["stream_audio.py", str(tmp_path / "step.onnx"), str(tmp_path / "clip.wav")])
    runpy.run_path(EXAMPLE, run_name="__main__")
    x = torch.from_numpy(samples.astype(np.float32) / 2**15)[None, :, None]
    best = [int(model(x[:, :n]).argmax()) for n in (30, 60, 90)]
    assert capsys.readouterr().out == "".join(f"{(i + 1) / 10:.1f} s: class {one}\n" for i, one in enumerate(best))
