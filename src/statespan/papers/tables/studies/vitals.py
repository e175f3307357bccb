"""Vital signs of BIDMC: S4Regressor with its defaults, on random windows as in the papers and on unseen patients.

    python -m statespan.papers.tables.studies.vitals --data DATA --out results/vitals.json

DATA/bidmc has the CSV files of PhysioNet. One regressor predicts heart rate, respiratory rate and oxygen saturation of
32 s of PPG and ECG (4,000 samples) together. Splits that are in the record already are not run again.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from statespan import data as datasets
from statespan.estimators import S4Regressor
from statespan.papers.tables.studies.common import Study, parser

TARGETS = ("hr", "rr", "spo2")
XGBOOST = {"hr": 4.72, "rr": 1.67, "spo2": 1.52}  # S4D paper, Table 10
CAPTION = "Root mean square error on the test windows: beats and breaths a minute, per cent"


def windows(folder: Path, split: str) -> dict[str, tuple[Any, Any]]:
    """Train and test windows (n, 4000, 2) with their three values (n, 3); windows that lack one are dropped."""
    loaded = [
        datasets.load(f"bidmc-{name}", folder=folder, split=split, standard="none", standard_targets=False)
        for name in TARGETS
    ]
    labels = [_labels(dataset) for dataset in loaded]
    complete = set.intersection(*map(set, labels))

    def windows_of(source: Any) -> tuple[Any, Any]:
        starts = source.arrays["starts"].tolist()
        rows = [row for row, start in enumerate(starts) if start in complete]
        X = source.take(source.tensors(), torch.tensor(rows)).x.numpy()
        return X, np.array([[label[starts[row]] for label in labels] for row in rows])

    dataset = loaded[0]
    (X, y), (X_valid, y_valid) = windows_of(dataset.train), windows_of(dataset.valid)
    return {"train": (np.concatenate([X, X_valid]), np.concatenate([y, y_valid])), "test": windows_of(dataset.test)}


def _labels(dataset: Any) -> dict[int, float]:
    """The label of every window by its first sample."""
    labels: dict[int, float] = {}
    for split in (dataset.train, dataset.valid, dataset.test):
        labels |= dict(zip(split.arrays["starts"].tolist(), split.arrays["y"].tolist()))
    return labels


def main(arguments: list[str] | None = None) -> None:
    """Run the study; see the module's docstring."""
    options = parser(__doc__, "results/vitals.json")
    options.add_argument("--splits", default="windows,patients", help="with commas (default: %(default)s)")
    options.add_argument("--epochs", type=int, help="passes over the windows (default: the estimator's)")
    args = options.parse_args(arguments)
    study = Study("vitals", CAPTION, args.out, args.device)
    for split in args.splits.split(","):
        if any(row["name"] == split for row in study.rows):
            continue
        parts = windows(args.data, split)
        (X, y), (X_test, y_test) = parts["train"], parts["test"]
        began = time.perf_counter()
        model = S4Regressor(device=args.device, epochs=args.epochs).fit(X, y)
        half = model.predict(X_test[:, ::2], dt_scale=2.0)
        errors: dict[str, Any] = {f"{name} XGBoost in the paper": error for name, error in XGBOOST.items()}
        for what, predicted in (("", model.predict(X_test)), (" of the mean", y.mean(0)), (" at 62.5 Hz", half)):
            rmse = np.sqrt(np.square(predicted - y_test).mean(0)).tolist()
            errors |= {f"{name}{what}": error for name, error in zip(TARGETS, rmse)}
        errors |= {"seconds": round(time.perf_counter() - began, 1), "chosen": model.chosen_line_}
        study.add(split, {"train": len(X), "test": len(X_test)}, errors)
        study.save()
        print(split, errors, flush=True)


if __name__ == "__main__":
    main()
