"""Heart rate from PPG and ECG: real signals of 53 patients (BIDMC), 32 seconds at a time.

    python examples/vital_signs.py --data DATA --windows 600     # DATA/bidmc has the CSV files of PhysioNet

It learns from windows of some patients and is tested on patients it never saw, which is the honest way.
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
    parser.add_argument("--windows", type=int, default=600, help="windows to learn from (default: %(default)s)")
    parser.add_argument("--epochs", type=int, help="passes over them (default: chosen from the data)")
    args = parser.parse_args()

    dataset = data.load("bidmc-hr", folder=args.data, split="patients", standard="none", standard_targets=False)
    X, y = some(dataset.train, args.windows)
    X_test, y_test = some(dataset.test, 300)

    # nine of the patients have a PPG four times as large as the others: each window is standardised by itself
    model = S4Regressor(epochs=args.epochs, standardize="series").fit(X, y)
    error = np.sqrt(np.mean((model.predict(X_test) - y_test) ** 2))
    half = np.sqrt(np.mean((model.predict(X_test[:, ::2], dt_scale=2.0) - y_test) ** 2))
    mean = np.sqrt(np.mean((y.mean() - y_test) ** 2))
    print(f"new patients: RMSE {error:.2f} beats a minute ({mean:.2f} for always saying the mean)")
    print(f"the same signals at 62.5 instead of 125 Hz: {half:.2f}, without training")


def some(split: Any, count: int) -> tuple[Any, Any]:
    """Windows (count, 4000, 2), evenly spread over the patients, and their heart rates."""
    rows = torch.linspace(0, len(split) - 1, min(count, len(split))).long()
    batch = split.take(split.tensors(), rows)
    return batch.x.numpy(), batch.y[:, 0].numpy()


if __name__ == "__main__":
    main()
