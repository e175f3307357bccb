"""Classify the time series in a file.

    python examples/classify.py series.csv --target label       # a row per series, a column per sample
    python examples/classify.py X_TRAIN.ts --test X_TEST.ts     # files of the UEA and UCR archives

Without --test, a quarter of the series is held out for testing. --save writes the model to a folder.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import confusion_matrix
from sklearn.model_selection import train_test_split

from statespan._suggest import suggest
from statespan.estimators import S4Classifier, load, read_ts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="a CSV or .ts file")
    parser.add_argument("--test", type=Path, help="another file of the same kind, to test on")
    parser.add_argument("--target", default="label", help="column with the classes in a CSV file (default: label)")
    parser.add_argument("--epochs", type=int, help="passes over the series (default: chosen from the data)")
    parser.add_argument("--save", type=Path, help="folder for the model")
    args = parser.parse_args()
    if not args.file.is_file():
        parser.error(f"file must be an existing file, got {args.file}")

    try:
        X, y = read(args.file, args.target)
        if args.test is not None:
            X_test, y_test = read(args.test, args.target)
        else:
            X, X_test, y, y_test = train_test_split(X, y, test_size=0.25, random_state=0, stratify=y)
    except (OSError, ValueError) as error:  # also classes with too few series to hold some out
        parser.error(str(error))

    model = S4Classifier(epochs=args.epochs).fit(X, y)
    print(f"test accuracy {100 * model.score(X_test, y_test):.1f}% of {len(y_test)} series")
    if isinstance(X_test, np.ndarray):  # the same weights on every second sample, each step twice as long
        print(f"every second sample {100 * model.score(X_test[:, ::2], y_test, dt_scale=2.0):.1f}%")
    print("true classes by row, predicted by column:", model.classes_.tolist())
    print(confusion_matrix(y_test, model.predict(X_test), labels=model.classes_))

    if args.save is not None:
        model.save(args.save)
        loaded = load(args.save)
        same = np.array_equal(loaded.predict_proba(X_test), model.predict_proba(X_test))
        print(f"saved in {args.save}; loaded, it predicts the same: {same}")


def read(path: Path, target: str) -> tuple[Any, Any]:
    """The series and their classes."""
    if path.suffix == ".ts":
        return read_ts(path)
    table = pd.read_csv(path)
    if target not in table.columns:
        hint = suggest(target, map(str, table.columns))
        raise ValueError(f"--target must be a column of {path}, got {target!r}{hint}")
    return table.drop(columns=target).to_numpy(), table[target].to_numpy()


if __name__ == "__main__":
    main()
