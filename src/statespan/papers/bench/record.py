"""Records of benchmark runs as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from statespan._io import replace_file
from statespan._machine import provenance
from statespan.papers.bench.case import BenchOptions, BenchRow
from statespan.papers.bench.measure import MEMORY_HOW, MachineRates
from statespan.papers.bench.options import find
from statespan.papers.bench.runner import BenchResult


def write_record(result: BenchResult, folder: Path) -> Path:
    """Write a run's record atomically; quick runs never replace full ones. Returns its path."""
    options = result.options
    where = provenance(options.device, "triton")
    where["machine"] |= {
        "copy_gb_per_s": result.rates.bandwidth / 1e9,
        "matmul_tflop_per_s": result.rates.matmul / 1e12,
    }
    record = {
        "benchmark": result.benchmark.name,
        "caption": result.benchmark.listing.caption,
        "settings": {
            "device": options.device.type,
            "dtype": str(options.dtype).removeprefix("torch."),
            "quick": options.quick,
            "sizes": dict(options.sizes),
        },
        "seed": options.seed,
        "rows": [asdict(row) for row in result.rows],
        "findings": list(result.findings),
        "memory_how": MEMORY_HOW[options.device.type],
        "wall_seconds": round(result.seconds, 1),
        **where,
    }
    path = folder / f"{result.benchmark.name}-{options.device.type}{'-quick' if options.quick else ''}.json"
    replace_file(path, (json.dumps(record, indent=2, allow_nan=False) + "\n").encode())
    return path


def read_record(path: Path) -> tuple[BenchResult, str]:
    """Read the run of a record and the name of its device."""
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    chosen, machine = record["settings"], record["machine"]
    dtype = getattr(torch, chosen["dtype"])
    options = BenchOptions(torch.device(chosen["device"]), dtype, record["seed"], chosen["quick"], chosen["sizes"])
    rates = MachineRates(machine["copy_gb_per_s"] * 1e9, machine["matmul_tflop_per_s"] * 1e12)
    rows, findings = tuple(BenchRow(**row) for row in record["rows"]), tuple(record["findings"])
    result = BenchResult(find(record["benchmark"]), options, rates, rows, findings, False, record["wall_seconds"])
    return result, machine["device"]
