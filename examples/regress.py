"""Predict a value for each time series in a file.

    python examples/regress.py series.csv --target value        # a row per series, a column per sample
    python examples/regress.py long.csv --series id --time t --answers values.csv --target value

The second form reads a long file (a row per sample: its series, its time, its channels) and a file with a row per
series (its id and its value). A quarter of the series is held out for testing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from statespan._suggest import suggest
from statespan.estimators import S4Regressor, from_long


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="a CSV file, wide or long")
    parser.add_argument("--target", default="value", help="column with the values (default: value)")
    parser.add_argument("--series", help="column of a long file with the series of each row")
    parser.add_argument("--time", default="time", help="column of a long file with the times (default: time)")
    parser.add_argument("--answers", type=Path, help="for a long file: a CSV file with the value of each series")
    parser.add_argument("--epochs", type=int, help="passes over the series (default: chosen from the data)")
    parser.add_argument("--save", type=Path, help="folder for the model")
    args = parser.parse_args()
    if not args.file.is_file():
        parser.error(f"file must be an existing file, got {args.file}")

    table = pd.read_csv(args.file)
    if args.series is None:
        check_columns(parser, args.file, table, target=args.target)
        y = table[args.target]
        train, test = train_test_split(table.index, test_size=0.25, random_state=0)
        X = table.drop(columns=args.target)
        X_train, X_test = X.loc[train], X.loc[test]
    else:
        if args.answers is None:
            parser.error("--series needs --answers, a file with the value of each series")
        answers = pd.read_csv(args.answers)
        check_columns(parser, args.file, table, series=args.series, time=args.time)
        check_columns(parser, args.answers, answers, series=args.series, target=args.target)
        X = from_long(table, args.series, args.time)
        y = answers.set_index(args.series)[args.target]
        train, test = train_test_split(y.index, test_size=0.25, random_state=0)
        X_train, X_test = X.loc[train], X.loc[test]

    model = S4Regressor(epochs=args.epochs).fit(X_train, y.loc[train])
    error = np.sqrt(np.mean((model.predict(X_test) - y.loc[test].to_numpy()) ** 2))
    spread = np.sqrt(np.mean((y.loc[train].mean() - y.loc[test].to_numpy()) ** 2))
    print(f"test RMSE {error:.4g} of {len(test)} series ({spread:.4g} for the training mean)")
    if args.save is not None:
        model.save(args.save)
        print(f"saved in {args.save}")


def check_columns(parser: argparse.ArgumentParser, path: Path, table: pd.DataFrame, **wanted: str) -> None:
    """Exit with one line if a table lacks a column that an option names."""
    columns = list(map(str, table.columns))
    for option, name in wanted.items():
        if name not in columns:
            parser.error(f"--{option} must be a column of {path}, got {name!r}{suggest(name, columns)}")


if __name__ == "__main__":
    main()
