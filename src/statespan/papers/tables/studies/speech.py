"""Spoken words from raw audio at 16 kHz, and at half and a quarter of that rate without retraining.

    python -m statespan.papers.tables.studies.speech --data DATA --out results/speech.json

DATA/speech has folders of words with WAV files and the two lists of Speech Commands. S4Classifier has its defaults
except standardize="series", because the volume of a word does not matter. Lower rates are produced as in the papers, by
dropping samples, and as a recorder does, with a filter first. (The figures are for the words and clips that are
present; the papers have 35 times as many clips.)
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.signal import firwin, resample_poly

from statespan.data.formats.wav import read_wav
from statespan.estimators import S4Classifier
from statespan.papers.tables.studies.common import Study, parser

CAPTION = "Test accuracy on raw sound; trained at 16 kHz only"
RATES = (1, 2, 4)


def sounds(folder: Path) -> dict[str, tuple[Any, Any]]:
    """Clips (n, 16000) float32 and words of the splits: "train" (with the validation clips) and "test"."""
    test = set((folder / "testing_list.txt").read_text(encoding="utf-8").split())
    parts: dict[str, tuple[list[Any], list[str]]] = {"train": ([], []), "test": ([], [])}
    for word in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "_"))):
        for file in sorted(word.glob("*.wav")):
            samples = read_wav(file)[0][:16000, 0].astype(np.float32) / 2**15
            x, y = parts["test" if f"{word.name}/{file.name}" in test else "train"]
            x.append(np.pad(samples, (0, 16000 - len(samples))))
            y.append(word.name)
    return {name: (np.stack(x), np.array(y)) for name, (x, y) in parts.items()}


def filtered(x: Any, every: int) -> Any:
    """Every n-th sample, n > 1, after an anti-aliasing filter: a windowed sinc of 16 · n + 1 taps.

    Example:
        >>> t = np.arange(400)
        >>> low, high = np.sin(0.2 * t), np.sin(3.0 * t)
        >>> kept = filtered(np.stack([low, high]), 2)[:, 20:-20].std(1)
        >>> bool(kept[0] > 0.65), bool(kept[1] < 0.01)
        (True, True)
    """
    taps = firwin(16 * every + 1, 0.9 / every, window="hamming").astype(x.dtype)
    return resample_poly(x, 1, every, axis=1, window=taps)


def main(arguments: list[str] | None = None) -> None:
    """Run the study; see the module's docstring."""
    options = parser(__doc__, "results/speech.json")
    options.add_argument("--epochs", type=int, help="passes over the clips (default: the estimator's)")
    args = options.parse_args(arguments)
    parts = sounds(args.data / "speech")
    (X, y), (X_test, y_test) = parts["train"], parts["test"]
    began = time.perf_counter()
    model = S4Classifier(standardize="series", epochs=args.epochs, device=args.device).fit(X, y)
    seconds = time.perf_counter() - began
    scores: dict[str, Any] = {}
    for every in RATES:
        name = f"{16 // every} kHz"
        scores[name] = model.score(X_test[:, ::every], y_test, dt_scale=float(every))
        if every > 1:
            scores[f"{name} filtered"] = model.score(filtered(X_test, every), y_test, dt_scale=float(every))
            scores[f"{name} not told the rate"] = model.score(X_test[:, ::every], y_test)
    more = {"seconds": round(seconds, 1), "chosen": model.chosen_line_, "updates": model.history_.steps}
    args.out.unlink(missing_ok=True)
    study = Study("speech", CAPTION, args.out, args.device)
    study.add("S4Classifier", {"train": len(X), "test": len(X_test), "words": len(set(y))}, {**scores, **more})
    study.save()
    print(scores)


if __name__ == "__main__":
    main()
