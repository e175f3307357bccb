"""The table of a sweep: a line for each combination, from the cells' folders alone.

Nothing in it depends on when and in how many pieces the cells were run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from statespan.papers.records.text_table import TextTable
from statespan.papers.runs.choose import Axis, Combination
from statespan.papers.runs.outcome import DONE, FAILED, MISSING, Outcome, outcome
from statespan.papers.runs.stats import holm, spread, welch

TEST = (
    "p: two-sided Welch's t-test of the seeds against those of the first line, corrected for the number of lines by "
    "Holm's rule."
)


@dataclass(frozen=True)
class SweepLine:
    """A line of the table.

    Example:
        >>> line = SweepLine(("0.001",), (), metric="accuracy", split="valid", numbers=(0.97, 0.98))
        >>> line.state, line.faults
        ('', [])
    """

    values: tuple[str, ...]  # the combination's values
    outcomes: tuple[Outcome, ...]  # of its cells, one for each seed
    metric: str  # name of the metric, "" if no cell is done
    split: str  # where it was measured
    numbers: tuple[float, ...]  # the metric of each cell that is done
    p: float | None = None  # against the first line; None where there is none

    @property
    def faults(self) -> list[str]:
        """The failures of the line, without repetitions."""
        return list(dict.fromkeys(result.why for result in self.outcomes if result.status in (FAILED, MISSING)))

    @property
    def state(self) -> str:
        """What remains to be done, in words; "" if nothing."""
        counts = Counter(result.status for result in self.outcomes if result.status != DONE)
        return ", ".join(f"{count} {status}" for status, count in counts.items())


def lines(rows: Sequence[Combination], cells: Path, split: str = "test") -> list[SweepLine]:
    """The table's lines."""
    table_lines = []
    for row in rows:
        outcomes = tuple(outcome(cell, cells) for cell in row.cells)
        numbers = tuple(value for result in outcomes if (value := result.value(split)) is not None)
        metric = next((result.metric for result in outcomes if result.metric), "")
        table_lines.append(SweepLine(row.values, outcomes, metric, split, numbers))
    ps = holm([None, *(welch(line.numbers, table_lines[0].numbers) for line in table_lines[1:])])
    return [replace(line, p=p) for line, p in zip(table_lines, ps)]


def text(values: Sequence[float], metric: str) -> str:
    """Mean and spread of a metric.

    Example:
        >>> text([0.85, 0.87], "accuracy"), text([0.1193], "rmse"), text([], "rmse")
        ('86.00 ± 1.41', '0.1193', '')
    """
    if not values:
        return ""
    scale, digits = (100.0, 2) if metric == "accuracy" else (1.0, 4)
    deviation = spread(values)
    return f"{scale * fmean(values):.{digits}f}" + ("" if deviation is None else f" ± {scale * deviation:.{digits}f}")


def grid(axes: Sequence[Axis], lines: Sequence[SweepLine]) -> TextTable:
    """The table as plain text."""
    metric = next((line.metric for line in lines if line.metric), "metric").replace("_", " ")
    unit = " %" if metric == "accuracy" else ""
    heads = [*(axis.key for axis in axes), f"{lines[0].split} {metric}{unit}", "seeds", "p", "left"]
    rows = []
    for line in lines:
        p = "" if line.p is None else f"{line.p:.3g}"
        rows.append([*line.values, text(line.numbers, line.metric), str(len(line.numbers)), p, line.state])
    return TextTable(heads, rows, (*range(len(axes)), len(axes) + 3))


def faults(lines: Sequence[SweepLine]) -> list[str]:
    """The failures of each line."""
    return [f"{', '.join(line.values) or 'the recipe'}: {why}" for line in lines for why in line.faults]


def markdown(title: str, axes: Sequence[Axis], lines: Sequence[SweepLine], notes: Sequence[str] = ()) -> str:
    """The table as a Markdown page."""
    page = [f"# {title}", "", *notes, *([""] if notes else []), *grid(axes, lines).markdown(), "", TEST]
    return "\n".join([*page, *(f"- {fault}" for fault in faults(lines))]) + "\n"


def record(title: str, axes: Sequence[Axis], lines: Sequence[SweepLine]) -> bytes:
    """The table as JSON."""
    plain: list[dict[str, Any]] = [
        {
            "values": dict(zip((axis.key for axis in axes), line.values)),
            "metric": line.metric, "split": line.split, "numbers": list(line.numbers),
            "mean": fmean(line.numbers) if line.numbers else None, "std": spread(line.numbers),
            "p": line.p, "left": line.state, "faults": line.faults,
        }
        for line in lines
    ]  # fmt: skip
    return (json.dumps({"title": title, "test": TEST, "lines": plain}, indent=2, allow_nan=False) + "\n").encode()
