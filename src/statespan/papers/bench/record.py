"""Records: what ran where, as JSON, written whole or not at all."""

from __future__ import annotations

import datetime
import json
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

import torch

from statespan._machine import commit, device_name, installed
from statespan._version import __version__
from statespan.papers.bench.measure import MEMORY_HOW
from statespan.papers.bench.runner import Result

__all__ = ["commit", "record", "stem", "write", "write_record"]


def record(result: Result) -> dict[str, Any]:
    """A run as plain data."""
    settings = result.settings
    return {
        "benchmark": result.benchmark.name,
        "caption": result.benchmark.caption,
        "settings": {
            "device": settings.device.type,
            "dtype": str(settings.dtype).removeprefix("torch."),
            "quick": settings.quick,
            "sizes": dict(settings.sizes),
        },
        "seed": settings.seed,
        "rows": [row.record() for row in result.rows],
        "findings": list(result.findings),
        "machine": {
            "device": device_name(settings.device),
            "copy_gb_per_s": result.machine.bandwidth / 1e9,
            "matmul_tflop_per_s": result.machine.matmul / 1e12,
            "cpu_threads": torch.get_num_threads(),
        },
        "memory_how": MEMORY_HOW[settings.device.type],
        "versions": {
            "statespan": __version__,
            "commit": commit(),
            "torch": torch.__version__,
            "triton": installed("triton"),
            "python": platform.python_version(),
        },
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "wall_seconds": round(result.seconds, 1),
    }


def stem(result: Result) -> str:
    """The name of a record's files: quick runs never take the place of real ones."""
    quick = "-quick" if result.settings.quick else ""
    return f"{result.benchmark.name}-{result.settings.device.type}{quick}"


def write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: a reader never sees half of it, and a failure leaves nothing behind."""
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def write_record(result: Result, folder: Path) -> Path:
    """Write a run's record; returns its path."""
    path = folder / f"{stem(result)}.json"
    write(path, (json.dumps(record(result), indent=2, allow_nan=False) + "\n").encode())
    return path
