"""Forecast a time series in a file, with prediction intervals.

    python examples/forecast.py data.csv --time date --target OT --horizon 24

The file has one row per time step, at regular intervals. The last rows are held out and compared with the forecast. The
command ``statespan forecast`` does the same and draws a picture.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from statespan._suggest import suggest
from statespan.estimators import S4Forecaster


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="a CSV file with a header")
    parser.add_argument("--time", default="date", help="column with the times (default: date)")
    parser.add_argument("--target", required=True, help="column to forecast")
    parser.add_argument("--horizon", type=int, default=24, help="rows to forecast (default: 24)")
    parser.add_argument("--context", type=int, help="rows to forecast from (default: chosen from the data)")
    parser.add_argument("--steps", type=int, help="training steps (default: chosen from the data)")
    parser.add_argument("--out", type=Path, default=Path("forecast.csv"), help="file for the forecast")
    args = parser.parse_args()
    if not args.file.is_file():
        parser.error(f"file must be an existing file, got {args.file}")

    columns = list(pd.read_csv(args.file, nrows=0).columns)
    for option, name in (("--time", args.time), ("--target", args.target)):
        if name not in columns:
            parser.error(f"{option} must be a column of {args.file}, got {name!r}{suggest(name, columns)}")
    series = pd.read_csv(args.file, parse_dates=[args.time], index_col=args.time)[args.target]
    past, future = series[: -args.horizon], series[-args.horizon :]

    model = S4Forecaster(args.horizon, context=args.context, steps=args.steps).fit(past)
    mean, bands = model.predict(), model.predict_quantiles()
    low, high = bands[args.target, 0.1], bands[args.target, 0.9]

    error = (mean - future).abs().mean()
    naive = (past.iloc[-1] - future).abs().mean()
    inside = np.mean((future >= low) & (future <= high))
    print(f"mean absolute error {error:.4g} over {args.horizon} rows ({naive:.4g} for repeating the last row)")
    print(f"{100 * inside:.0f}% of the rows lie between the 0.1 and 0.9 quantiles")

    table = pd.DataFrame({"forecast": mean, "low": low, "high": high, "actual": future})
    table.to_csv(args.out)
    print(f"forecast in {args.out}")


if __name__ == "__main__":
    main()
