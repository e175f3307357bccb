"""Recognise spoken words in raw audio, then at half the sampling rate without retraining.

    python examples/speech.py --data DATA        # DATA/speech: a folder of WAV files per word, and the official lists

The data is Speech Commands, one second at 16 kHz per clip; each folder is a class.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from statespan.data.formats.wav import read_wav
from statespan.estimators import S4Classifier


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the datasets")
    parser.add_argument("--clips", type=int, help="training clips per word (default: all)")
    parser.add_argument("--epochs", type=int, help="passes over the clips (default: chosen from the data)")
    args = parser.parse_args()

    X, y, X_test, y_test = read(args.data / "speech", args.clips)
    # standardise each clip by itself: loudness does not matter
    model = S4Classifier(epochs=args.epochs, standardize="series").fit(X, y)
    full, half = model.score(X_test, y_test), model.score(X_test[:, ::2], y_test, dt_scale=2.0)
    print(f"16 kHz: {100 * full:.1f}% of {len(y_test)} words right")
    print(f" 8 kHz: {100 * half:.1f}%, every second sample, without retraining")


def read(folder: Path, clips: int | None) -> tuple[Any, Any, Any, Any]:
    """Audio (n, 16000) and words for training and for testing, in the official split."""
    test = set((folder / "testing_list.txt").read_text().split())
    parts: dict[bool, tuple[list[Any], list[str]]] = {False: ([], []), True: ([], [])}
    for word in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "_"))):
        files = sorted(word.glob("*.wav"))
        train = [file for file in files if f"{word.name}/{file.name}" not in test][:clips]
        for file in train + [file for file in files if f"{word.name}/{file.name}" in test][:clips]:
            samples = read_wav(file)[0][:16000, 0].astype(np.float32) / 2**15
            sounds, words = parts[file not in train]
            sounds.append(np.pad(samples, (0, 16000 - len(samples))))
            words.append(word.name)
    (X, y), (X_test, y_test) = parts[False], parts[True]
    return np.stack(X), np.array(y), np.stack(X_test), np.array(y_test)


if __name__ == "__main__":
    main()
