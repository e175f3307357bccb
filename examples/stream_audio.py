"""Stream a WAV file through an exported model on a CPU, with nothing but numpy and onnxruntime.

statespan export runs/words --view step --out step.onnx
python examples/stream_audio.py step.onnx clip.wav          # 16 bits, one channel
"""

from __future__ import annotations

import sys
import wave

import numpy as np
import onnxruntime

TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64}


def main(model: str, clip: str) -> None:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    x, *states = session.get_inputs()
    state = {one.name: np.zeros([1, *one.shape[1:]], TYPES[one.type]) for one in states}  # every stream begins so
    with wave.open(clip) as file:
        rate = file.getframerate()
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 2**15
    for count, sample in enumerate(samples, 1):
        answer, *after = session.run(None, {x.name: np.array([[sample]]), **state})
        state = dict(zip(state, after))
        if count % (rate // 10) == 0:  # ten times a second
            print(f"{count / rate:.1f} s: class {answer[0].argmax()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
