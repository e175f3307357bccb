"""Classification on datasets of the UEA and UCR archives: S4Classifier with its defaults, 1-NN-DTW and MiniRocket.

    python -m statespan.papers.tables.studies.uea --data DATA --out results/uea.json

DATA/uea has the ``.ts`` files. The two baselines are aeon's, which must be installed (it is no dependency of
statespan). Sets whose row is in the record already are not run again; --sets runs some only.
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import Any

import numpy as np

from statespan.data.formats.ts import read_ts
from statespan.estimators import S4Classifier
from statespan.papers.tables.studies.common import Study, parser

SETS = ("GunPoint", "BasicMotions", "ACSF1", "OSULeaf")
CAPTION = "Test accuracy on the archives' own splits; S4 with default settings"


def main(arguments: list[str] | None = None) -> None:
    """Run the study; see the module's docstring."""
    options = parser(__doc__, "results/uea.json")
    options.add_argument("--sets", default=",".join(SETS), help="with commas (default: %(default)s)")
    options.add_argument("--seeds", type=int, default=1, help="number of seeds for S4 (default: %(default)s)")
    args = options.parse_args(arguments)
    if find_spec("aeon") is None:
        options.error("the baselines of this study need aeon: pip install aeon")
    study = Study("uea", CAPTION, args.out, args.device)
    for name in args.sets.split(","):
        if any(row["name"] == name for row in study.rows):
            continue
        train, test = (read_ts(args.data / "uea" / f"{name}_{part}.ts") for part in ("TRAIN", "TEST"))
        (X, _), (X_test, _) = train, test
        scores = {**_baselines(train, test), **_s4(train, test, args.seeds, args.device)}
        setting = {"train": len(X), "test": len(X_test), "length": X.shape[1], "channels": X.shape[2]}
        study.add(name, setting, scores)
        study.save(findings=findings(study.rows))
        print(name, {key: value for key, value in scores.items() if isinstance(value, float)}, flush=True)
    for what, count in findings(study.rows).items():
        print(f"{what}: {count}")


def findings(rows: list[dict[str, Any]]) -> dict[str, str]:
    """How S4 compares, in words.

    Example:
        >>> findings([{"extra": {"S4": 0.97, "1-NN-DTW": 0.91, "MiniRocket": 0.99}}])
        {'S4 above 1-NN-DTW': '1 of 1', 'S4 within 3 points of MiniRocket': '1 of 1'}
    """
    scores = [row["extra"] for row in rows]
    above = sum(score["S4"] > score["1-NN-DTW"] for score in scores)
    near = sum(score["S4"] >= score["MiniRocket"] - 0.03 for score in scores)
    counts = {"S4 above 1-NN-DTW": above, "S4 within 3 points of MiniRocket": near}
    return {text: f"{count} of {len(scores)}" for text, count in counts.items()}


def _s4(train: tuple[Any, Any], test: tuple[Any, Any], seeds: int, device: str | None) -> dict[str, Any]:
    (X, y), (X_test, y_test) = train, test
    began, scores = time.perf_counter(), []
    for seed in range(seeds):
        model = S4Classifier(random_state=seed, device=device).fit(X, y)
        scores.append(model.score(X_test, y_test))
        if seed == 0:
            half = model.score(X_test[:, ::2], y_test, dt_scale=2.0)
            even = X_test[:, : X_test.shape[1] // 2 * 2]
            pairs = model.score((even[:, ::2] + even[:, 1::2]) / 2, y_test, dt_scale=2.0)
    return {
        "S4": float(np.mean(scores)), "S4 on every second sample": half, "S4 on means of pairs": pairs,
        "S4 seeds": scores, "S4 seconds": round((time.perf_counter() - began) / seeds, 1), "chosen": model.chosen_line_,
    }  # fmt: skip


def _baselines(train: tuple[Any, Any], test: tuple[Any, Any]) -> dict[str, Any]:
    import warnings

    (X, y), (X_test, y_test) = train, test

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numba, while it compiles
        from aeon.classification.convolution_based import MiniRocketClassifier
        from aeon.classification.distance_based import KNeighborsTimeSeriesClassifier

        scores: dict[str, Any] = {}
        models = {
            "MiniRocket": MiniRocketClassifier(random_state=0),
            "1-NN-DTW": KNeighborsTimeSeriesClassifier(n_neighbors=1, distance="dtw"),
        }
        for name, model in models.items():
            began = time.perf_counter()
            model.fit(X.transpose(0, 2, 1), y)
            scores[name] = float(np.mean(model.predict(X_test.transpose(0, 2, 1)) == y_test))
            scores[f"{name} seconds"] = round(time.perf_counter() - began, 1)
    return scores


if __name__ == "__main__":
    main()
