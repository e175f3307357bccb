"""The results of a finished run: ``result.json`` and a plot of its curves."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from statespan import _io, _plotting
from statespan._machine import provenance
from statespan.train.config import Recipe
from statespan.train.log import read_times

FIRST = 256  # rows of the test data: a cheap way to recognise weights
POINTS = 200


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
        folder: The run's folder.
        test: Metrics on the test data.
        valid: Metrics on the validation data with the same weights.
        metric: Name of the metric that chose the weights, on the split ``train.select``.
        steps: Updates made.
        epochs: Passes over the data.
        best_step: Step of the weights that were tested.
        parameters: Number of trained parameters.
        seconds: Duration over all calls that resumed it: compiling, steps and validations, without reading the data.
        first: Metrics of the first :data:`FIRST` rows of the test data, a cheap way to recognise these weights.
        rows: Number of rows of each split.
        start: The origin of the initial weights, unless they were drawn at random.

    Example:
        >>> scores = {"test": {"accuracy": 0.98}, "valid": {"accuracy": 0.97}, "metric": "accuracy"}
        >>> result = Result(Path("a"), steps=10, epochs=2.0, best_step=9, parameters=12345, seconds=60.0, **scores)
        >>> result.test[result.metric]
        0.98
    """

    folder: Path
    test: dict[str, float]
    valid: dict[str, float]
    metric: str
    steps: int
    epochs: float
    best_step: int
    parameters: int
    seconds: float
    first: dict[str, float] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    start: dict[str, Any] | None = None


def write_result(result: Result, recipe: Recipe, device: torch.device, world: int) -> None:
    """Write ``result.json`` and, if matplotlib is installed, ``curve.png``."""
    record: dict[str, Any] = {
        "recipe": recipe.to_dict(),
        "overrides": list(recipe.overrides),
        "seed": recipe.train.seed,
        **{name: getattr(result, name) for name in ("test", "valid", "rows")},
        "first": {"rows": FIRST, **result.first},
        **{name: getattr(result, name) for name in ("metric", "steps", "epochs", "best_step", "parameters")},
        "wall_seconds": round(result.seconds, 2),
        **provenance(device, "lightning", "numpy", "safetensors", "triton"),
        "history": history(result.folder, result.metric, split=recipe.train.select),
    }
    record["machine"]["processes"] = world
    if result.start is not None:
        record["start"] = result.start
    text = json.dumps(_plain(record), indent=2, allow_nan=False) + "\n"
    _io.replace_file(result.folder / "result.json", text.encode())
    if find_spec("matplotlib"):
        _io.replace_file(result.folder / "curve.png", _picture(result))


def read_log(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The columns of a run's log as (step, value), without empty cells."""
    with (folder / "log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = [name for name in (rows[0] if rows else {}) if name != "step"]
    return {name: [(int(row["step"]), float(row[name])) for row in rows if row[name]] for name in names}


def log_split(log: Mapping[str, Any]) -> str:
    """The split that selected the best weights, by the columns of a run's log."""
    return "test" if "test_loss" in log else "valid"


def history(folder: Path, metric: str, most: int = POINTS, *, split: str = "valid") -> dict[str, list[float | None]]:
    """The course of a run, by validation: epoch, seconds, training loss and the metric on ``split``, as columns.

    At most ``most`` validations are kept, in equal strides, the best and the last among them.
    """
    log, times = read_log(folder), read_times(folder)
    values = dict(log.get(f"{split}_{metric}", []))
    epochs, losses = dict(log.get("epoch", [])), log.get("train_loss", [])
    steps = sorted(values)
    finite = [step for step in steps if math.isfinite(values[step])]
    chosen = {*steps[:: -(-len(steps) // max(1, most - 3))]} | {*steps[-1:]} if steps else set()
    chosen |= {extreme(finite, key=values.__getitem__) for extreme in (min, max)} if finite else set()
    rows: list[tuple[float | None, ...]] = []
    for step in sorted(chosen):
        before = [loss for at, loss in losses if at <= step]
        loss = float(f"{before[-1]:.6g}") if before else None
        rows.append((round(epochs[step], 4), times.get(step), loss, float(f"{values[step]:.6g}")))
    columns = zip(*rows) if rows else [(), (), (), ()]
    return dict(zip(("epoch", "seconds", "train_loss", f"{split}_{metric}"), map(list, columns)))


def draw_curves(runs: Mapping[str, Path], metric: str | None = None, heading: str = "") -> Any:
    """The logs of runs, by label, as a figure: losses on the left, the metric (by default the first) on the right."""
    figure = _plotting.figure(9, 3.5)
    left, right = figure.subplots(1, 2)
    for color, (run, folder) in zip(_plotting.colors(), runs.items()):
        log = read_log(folder)
        split = log_split(log)
        metrics = [name for name in log if name.startswith(f"{split}_") and name != f"{split}_loss"]
        chosen = f"{split}_{metric}" if metric else next(iter(metrics), "")
        prefix = f"{run}: " if len(runs) > 1 else ""
        for axes, name, line in ((left, "train_loss", "-"), (left, f"{split}_loss", "--"), (right, chosen, "-")):
            points = [(step, value) for step, value in log.get(name, []) if math.isfinite(value)]
            if points:
                marker = "o" if len(points) < 40 else None
                hollow = {"markerfacecolor": "white"} if line == "--" else {}  # of one point there is no line to see
                label = prefix + name.replace("_", " ")
                axes.plot(*zip(*points), line, color=color, marker=marker, markersize=4, label=label, **hollow)
    _plotting.tidy(left, "step", "loss", legend=True)
    _plotting.tidy(right, "step", "metric", heading, legend=True)
    return figure


def _picture(result: Result) -> bytes:
    reached = result.test.get(result.metric)
    heading = "" if reached is None else f"test {result.metric} {reached:.4g}"
    return _plotting.content(draw_curves({result.folder.name: result.folder}, result.metric, heading))


def _plain(value: Any) -> Any:
    """Replace numbers that JSON cannot hold with None."""
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
