"""S4Forecaster with its defaults beside simple forecasts: generated series, and ETT and weather in real files.

    python -m statespan.papers.tables.studies.forecaster --data DATA --out results/forecaster.json

DATA has ett/ETTh1.csv, ett/ETTh2.csv, ett/ETTm1.csv and weather/WTH.csv. Each series is learnt from its first 80 %
and forecast over the last 20 %; no row of these has any part in a choice. Rows in the record are not run again.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from statespan.data.formats.csv import read_table
from statespan.estimators import S4Forecaster
from statespan.estimators.forecasting import training
from statespan.estimators.inputs.windows import make_windows
from statespan.papers.tables.studies.common import Study, parser
from statespan.train.feed import Feed

CAPTION = "Mean squared errors relative to simple forecasts, and coverage of intervals by tenths of the horizon"
FILES = {"ETTh1": ("ett", 14_400), "ETTh2": ("ett", 14_400), "ETTm1": ("ett", 57_600), "WTH": ("weather", None)}
ROWS = 4000  # of a generated series
LEVELS = (0.025, 0.1, 0.9, 0.975)
WINDOWS = 1000  # of the test rows


def main(arguments: list[str] | None = None) -> None:
    """Run the study; see the module's docstring."""
    options = parser(__doc__, "results/forecaster.json")
    options.add_argument("--seeds", type=int, default=20, help="random walks (default: %(default)s)")
    options.add_argument("--steps", type=int, default=None, help="updates of each fit (default: the estimator's)")
    args = options.parse_args(arguments)
    study = Study("forecaster", CAPTION, args.out, args.device)
    for name, horizon, make in settings(args.data, args.seeds):
        if any(row["name"] == name and row["setting"]["horizon"] == horizon for row in study.rows):
            continue
        figures = [measured(series, horizon, args) for series in make()]
        study.add(name, {"horizon": horizon, "series": len(figures)}, combined(figures))
        study.save()
        print(name, horizon, study.rows[-1]["extra"], flush=True)


def settings(data: Path, seeds: int) -> list[tuple[str, int, Any]]:
    """The name, the horizon and the series of each row."""
    found: list[tuple[str, int, Any]] = []
    for horizon in (24, 96):
        for name, (folder, rows) in FILES.items():
            path = data / folder / f"{name}.csv"
            found.append((name, horizon, lambda path=path, rows=rows: [read_table(path).values[:rows, -1]]))
    found.append(("trend and season", 96, lambda: [made(seed) for seed in range(3)]))
    found.append(("random walk", 96, lambda: [walk(seed) for seed in range(seeds)]))
    return found


def walk(seed: int) -> np.ndarray:
    """A random walk, like an exchange rate."""
    return 1 + 0.005 * np.random.default_rng(seed).normal(size=ROWS).cumsum()


def made(seed: int) -> np.ndarray:
    """A trend, a season of 24 rows and noise of which some stays."""
    t, rng = np.arange(ROWS), np.random.default_rng(seed)
    noise = rng.normal(size=ROWS)
    for row in range(1, ROWS):
        noise[row] += 0.7 * noise[row - 1]
    return 0.002 * t + 2 * np.sin(2 * np.pi * t / 24) + 0.5 * noise


def measured(series: np.ndarray, horizon: int, args: Any) -> dict[str, Any]:
    """Squared errors by step and coverage over the test rows of one series, after a fit with defaults."""
    begun, end = time.perf_counter(), int(0.8 * len(series))
    model = S4Forecaster(horizon, steps=args.steps, device=args.device, verbose=0).fit(series[:end])
    seconds, context = time.perf_counter() - begun, model.chosen_["context"]
    part = model._prepare(model._read(series[end - context :])[0][0])
    windows = make_windows([part], [(0, len(part.values))], context, horizon)
    assert windows is not None
    windows = training.spread(windows, WINDOWS)
    found = training.answers(model.network_, windows, model.chosen_["season"])
    bands = []
    with torch.inference_mode():
        for batch in Feed(windows, torch.device("cpu")).batches(torch.arange(len(windows)).split(training.BATCH)):
            bands.append(model._judged.quantiles(batch.x[:, :context], horizon, batch.marks, levels=LEVELS))
    table = np.concatenate(bands)
    errors = {"forecast": found.of(model.blend_), **found.naive}
    return {
        "errors": {name: ((found.truth - values) ** 2).mean((0, 2)) for name, values in errors.items()},
        "coverage_80": ((found.truth >= table[..., 1]) & (found.truth <= table[..., 2])).mean((0, 2)),
        "coverage_95": ((found.truth >= table[..., 0]) & (found.truth <= table[..., 3])).mean((0, 2)),
        "weight": float(np.mean(model.blend_.model)), "seconds": seconds,
    }  # fmt: skip


def combined(figures: list[dict[str, Any]]) -> dict[str, Any]:
    """The means over the series of a row."""
    names = set.intersection(*(set(one["errors"]) for one in figures))
    errors = {name: np.mean([one["errors"][name] for one in figures], 0) for name in sorted(names)}
    mine, simple = errors["forecast"], np.stack([errors[name] for name in names if name != "forecast"])
    best = simple[simple.mean(1).argmin()]
    horizon = len(mine)
    extra: dict[str, Any] = {name: float(values.mean()) for name, values in errors.items()}
    extra["relative to the best simple"] = float(mine.mean() / best.mean())
    extra |= {
        f"step {step}": float(mine[step - 1] / simple[:, step - 1].min()) for step in (1, 24, 96) if step <= horizon
    }
    for name in ("coverage_80", "coverage_95"):
        values = np.mean([one[name] for one in figures], 0)
        tenths = [float(values[part].mean()) for part in np.array_split(np.arange(horizon), 10)]
        extra[name] = tenths
        extra[f"least {name}"], extra[f"most {name}"] = min(tenths), max(tenths)
    extra["weight"] = float(np.mean([one["weight"] for one in figures]))
    extra["seconds"] = round(float(np.mean([one["seconds"] for one in figures])), 1)
    return extra


if __name__ == "__main__":
    main()
