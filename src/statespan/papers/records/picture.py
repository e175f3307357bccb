"""Plots the metric against wall time: published runs as curves, the papers' numbers as lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from statespan import _plotting as _look
from statespan._fail import fail
from statespan._text import metric_number
from statespan.papers.records.record import model_name, seconds_before
from statespan.papers.records.schema import Record, read_runs
from statespan.papers.records.signs import signs
from statespan.papers.records.table import groups
from statespan.papers.records.tasks import TASKS, ResultTask, other, paper, value

NAMES = {
    "accuracy": "accuracy, %", "rmse": "RMSE", "mse": "MSE", "perplexity": "perplexity",
    "bits_per_dim": "bits per pixel", "bits_per_character": "bits per character", "bits_per_byte": "bits per byte",
}  # fmt: skip
BELOW = (
    "Lines: validation. Points: test. Dashes: the papers' best of S4 and S4D. The reference's times are not known.\n"
    "†: augmented. ‡: begun with trained weights. ≠: not comparable with the paper's number.\n"
    "§: settings chosen after test scores had been seen. ¶: selected on the test data. See docs/results.md."
)


def plot(folders: list[Path]) -> Any:
    """The figure of ``statespan plot times``: the runs in these folders, ``results/tasks`` by default."""
    where = folders or [Path("results/tasks")]
    if absent := [folder for folder in where if not folder.is_dir()]:
        fail(f"times needs a folder of records, such as results/tasks, but {absent[0]} is not one")
    return times({file: record for folder in where for file, record in read_runs(folder).items()})


def shown(records: Mapping[str, Record]) -> list[tuple[ResultTask, dict[str, Record]]]:
    """The tasks with recorded histories and their records by file; tasks of no paper come last."""
    by_task = []
    remaining = dict(records)
    for task in TASKS:
        if task.dt_scale != 1.0:  # the same runs as at rate 1
            continue
        candidates = records if task.short else remaining
        mine = {file: record for group in groups(task, candidates) for file, record in group.records.items()}
        remaining = {file: record for file, record in remaining.items() if file not in mine}
        by_task.append((task, mine))
    for file, record in remaining.items():
        by_task.append((other(record, model_name(record)), {file: record}))
    return [(task, runs) for task, runs in by_task if any(_points(record) for record in runs.values())]


def times(records: Mapping[str, Record]) -> Any:
    """A figure with a panel for each task that was run, or a ValueError if there is none."""
    by_task = shown(records)
    if not by_task:
        raise ValueError("there are no published runs with times to draw; statespan publish RUN writes them")
    width, height = (6.0, 3.8) if len(by_task) == 1 else (10.0, 3.3)
    figure, panels = _look.panels(len(by_task), 3, width=width, height=height)
    for panel, (task, runs) in zip(panels, by_task):
        _panel(panel, task, runs)
    if len(by_task) > 1:
        _look.title(figure, "Validation against wall time", BELOW)
    else:
        figure.supxlabel(BELOW, fontsize=6, color=_look.GREY)
    return figure


def write_pictures(records: Mapping[str, Record], folder: Path) -> list[Path]:
    """``times.png`` with all tasks, and ``times-TASK.png`` for each; returns the files."""
    from statespan._io import replace_file

    by_task = shown(records)
    figures = {f"times-{task.key}.png": times(runs) for task, runs in by_task}
    if by_task:
        figures["times.png"] = times(records)
    for name, figure in figures.items():
        replace_file(folder / name, _look.content(figure))
    return [folder / name for name in figures]


def _points(record: Record) -> list[tuple[float, float]]:
    """The minutes and validation metrics of a run, in per cent for an accuracy."""
    history, metric = record.get("history") or {}, record["metric"]
    factor = 100 if metric == "accuracy" else 1
    numbers = history.get(f"valid_{metric}") or history.get(f"test_{metric}", [])  # of what selected the weights
    pairs = zip(history.get("seconds", []), numbers)
    start = seconds_before(record)
    finite = [(seconds, number) for seconds, number in pairs if seconds is not None and number is not None]
    return [((start + seconds) / 60, factor * number) for seconds, number in finite]


def _panel(axes: Any, task: ResultTask, records: Mapping[str, Record]) -> None:
    names = {file: model_name(record) + signs(record, task) for file, record in records.items()}
    colors = dict(zip(dict.fromkeys(names.values()), _look.colors()))
    labelled: set[str] = set()
    ours: list[float] = []
    for file, record in records.items():
        points, name = _points(record), names[file]
        if not points:
            continue
        axes.plot(*zip(*points), color=colors[name], linewidth=1.2, label=None if name in labelled else name)
        labelled.add(name)
        number = value(record, task)
        ours += [y for _, y in points]
        if number is not None:
            minutes = (seconds_before(record) + record["wall_seconds"]) / 60
            axes.plot(minutes, number, "o", color=colors[name], markersize=4, clip_on=False, zorder=6)
            ours.append(number)
    best = paper(task)
    if best:
        axes.axhline(float(best), color=_look.GREY, linestyle="--", linewidth=1, label=f"paper {best}")
    _limits(axes, task, [*ours, *([float(best)] if best else [])])
    axes.set_xlim(left=0)
    if task.epochs is not None:
        after = "" if task.after is None else f", {metric_number(task.after[0], '')} % after {task.after[1]}"
        axes.plot([], [], " ", label=f"reference: {task.epochs} epochs" + after.replace(".0 %", " %"))
    devices = sorted({record["machine"]["device"].partition(" @")[0] for record in records.values()})
    machine = devices[0].replace("(R)", "") if len(devices) == 1 else f"{len(devices)} machines"
    _look.tidy(axes, f"minutes on {machine}", NAMES[task.metric], task.name)
    # below the panel: in it, long names would cover the curves
    axes.legend(fontsize=6.5, loc="upper left", bbox_to_anchor=(0.0, -0.2), borderaxespad=0.0, frameon=False)


def _limits(axes: Any, task: ResultTask, numbers: list[float]) -> None:
    """Errors fall over several powers of ten; the first accuracies say little, so the upper half has more room."""
    if not task.larger and min(numbers) > 0 and max(numbers) > 4 * min(numbers):
        axes.set_yscale("log", subs=(2, 3, 5))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
    elif task.larger and len(numbers) > 8:
        ascending = sorted(numbers)
        decile = ascending[len(ascending) // 10]
        axes.set_ylim(bottom=max(0.0, decile - 0.15 * (ascending[-1] - decile)))
