"""Estimate heart rate from PPG and ECG: real signals of 53 patients (BIDMC), in windows of 32 seconds.

    python examples/vital_signs.py --data DATA --windows 600     # DATA/bidmc: the CSV files of PhysioNet

The model trains on some patients and is tested on others, so that it cannot recognise a patient.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from statespan import data
from statespan.estimators import S4Regressor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the datasets (default: $STATESPAN_DATA)")
    parser.add_argument("--windows", type=int, default=600, help="training windows (default: %(default)s)")
    parser.add_argument("--epochs", type=int, help="passes over the windows (default: chosen from the data)")
    args = parser.parse_args()

    dataset = data.load("bidmc-hr", folder=args.data, split="patients", standard="none", standard_targets=False)
    X, y = windows(dataset.train, args.windows)
    X_test, y_test = windows(dataset.test, 300)

    # the PPG of nine patients is four times as large as that of the others, so each window is standardised by itself
    model = S4Regressor(epochs=args.epochs, standardize="series").fit(X, y)
    error = np.sqrt(np.mean((model.predict(X_test) - y_test) ** 2))
    half = np.sqrt(np.mean((model.predict(X_test[:, ::2], dt_scale=2.0) - y_test) ** 2))
    mean = np.sqrt(np.mean((y.mean() - y_test) ** 2))
    print(f"new patients: RMSE {error:.2f} beats per minute ({mean:.2f} for the training mean)")
    print(f"the same signals at 62.5 instead of 125 Hz: {half:.2f}, without retraining")


def windows(split: Any, count: int) -> tuple[Any, Any]:
    """Windows (count, 4000, 2) spread evenly over the patients, and their heart rates."""
    rows = torch.linspace(0, len(split) - 1, min(count, len(split))).long()
    batch = split.take(split.tensors(), rows)
    return batch.x.numpy(), batch.y[:, 0].numpy()


if __name__ == "__main__":
    main()
