"""Records of benchmark runs as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from statespan._io import replace_file
from statespan._machine import provenance
from statespan.papers.bench.case import Benchmark, BenchOptions, BenchRow
from statespan.papers.bench.measure import MEMORY_HOW, MachineRates
from statespan.papers.bench.options import find
from statespan.papers.bench.runner import BenchResult, Unfinished


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
        "settings": _settings(options),
        "seed": options.seed,
        "rows": [asdict(row) for row in result.rows],
        "findings": list(result.findings),
        "memory_how": MEMORY_HOW[options.device.type],
        "wall_seconds": round(result.seconds, 1),
        **where,
    }
    path = folder / f"{_stem(result.benchmark, options)}.json"
    replace_file(path, _bytes(record))
    unfinished_path(result.benchmark, options, folder).unlink(missing_ok=True)
    return path


def _stem(benchmark: Benchmark, options: BenchOptions) -> str:
    return f"{benchmark.name}-{options.device.type}{'-quick' if options.quick else ''}"


def _bytes(record: dict[str, Any]) -> bytes:
    return (json.dumps(record, indent=2, allow_nan=False) + "\n").encode()


def _settings(options: BenchOptions) -> dict[str, Any]:
    return {
        "device": options.device.type,
        "dtype": str(options.dtype).removeprefix("torch."),
        "quick": options.quick,
        "sizes": dict(options.sizes),
    }


def unfinished_path(benchmark: Benchmark, options: BenchOptions, folder: Path) -> Path:
    """Where the rows of an unfinished run are stored."""
    return folder / f"{_stem(benchmark, options)}.unfinished.json"


def _origin(options: BenchOptions) -> dict[str, Any]:
    """What must be the same to continue a run: its settings, the code and the device."""
    where = provenance(options.device, "triton")
    settings = json.loads(json.dumps(_settings(options)))  # lists for tuples, as a file has them
    reference = None if options.reference is None else str(options.reference)
    return {
        "settings": settings, "seed": options.seed, "reference": reference, "source": where["versions"]["source"],
        "device": where["machine"]["device"],
    }  # fmt: skip


def write_unfinished(benchmark: Benchmark, options: BenchOptions, begun: Unfinished, folder: Path) -> None:
    """Store the rows of an unfinished run."""
    record = {**_origin(options), "rows": [asdict(row) for row in begun.rows], "extended": begun.extended}
    replace_file(unfinished_path(benchmark, options, folder), _bytes(record))


def read_unfinished(benchmark: Benchmark, options: BenchOptions, folder: Path) -> Unfinished:
    """The rows of an interrupted run of the same settings, code and device.

    A ValueError says in one line why there are none.
    """
    path = unfinished_path(benchmark, options, folder)
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        begun = Unfinished([BenchRow(**row) for row in record["rows"]], int(record["extended"]))
    except FileNotFoundError:
        raise ValueError(f"--resume: there is no unfinished run of {benchmark.name}, {path} does not exist") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--resume: {path} is damaged: {error}") from None
    for name, value in _origin(options).items():
        if record.get(name) != value:
            raise ValueError(f"--resume: {path} is of another run: its {name} is {record.get(name)!r}, now {value!r}")
    return begun


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
