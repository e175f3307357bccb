"""Pictures of the benchmarks drawn anew from their records, without measuring anything.

python -m statespan.papers.bench.redraw results/bench/*.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from statespan.papers.bench.benchmarks import BENCHMARKS
from statespan.papers.bench.case import Row, Settings
from statespan.papers.bench.measure import Machine
from statespan.papers.bench.plot import plot
from statespan.papers.bench.registry import DTYPES
from statespan.papers.bench.runner import Result


def read_result(path: Path) -> tuple[Result, str]:
    """A run as its record tells it, and the name of the device.

    Args:
        path: A record that ``statespan bench`` wrote.
    """
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    chosen = record["settings"]
    settings = Settings(
        torch.device(chosen["device"]), DTYPES[chosen["dtype"]], record["seed"], chosen["quick"], chosen["sizes"]
    )
    machine = Machine(record["machine"]["copy_gb_per_s"] * 1e9, record["machine"]["matmul_tflop_per_s"] * 1e12)
    rows = tuple(Row(**row) for row in record["rows"])
    benchmark = BENCHMARKS[record["benchmark"]]
    result = Result(benchmark, settings, machine, rows, tuple(record["findings"]), False, record["wall_seconds"])
    return result, record["machine"]["device"]


def main(paths: list[str]) -> None:
    """Draw the picture of each record that has one beside it."""
    for path in map(Path, paths):
        picture = path.with_suffix(".png")
        if picture.exists():
            result, where = read_result(path)
            plot(result, picture, where)
            print(picture)


if __name__ == "__main__":
    main(sys.argv[1:])
