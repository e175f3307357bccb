"""Stream a WAV file through an exported model on a CPU, with only numpy and onnxruntime.

statespan export runs/words --view step --out step.onnx
python examples/stream_audio.py step.onnx clip.wav

The WAV file has 16 bits and one channel.
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
    state = {item.name: np.zeros([1, *item.shape[1:]], TYPES[item.type]) for item in states}  # every stream starts at 0
    with wave.open(clip) as file:
        rate = file.getframerate()
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 2**15
    for count, sample in enumerate(samples, 1):
        scores, *new_state = session.run(None, {x.name: np.array([[sample]]), **state})
        state = dict(zip(state, new_state))
        if count % (rate // 10) == 0:  # ten times a second
            print(f"{count / rate:.1f} s: class {scores[0].argmax()}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
