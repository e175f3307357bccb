"""Parses the user's choice of a benchmark and its options."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from statespan._suggest import suggest
from statespan.papers.bench.case import Benchmark, BenchOptions
from statespan.papers.bench.catalog import CATALOG, DTYPES
from statespan.papers.bench.public_code import check_folder

SHORT = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def find(name: str) -> Benchmark:
    """The benchmark of this name (also its module's), or a ValueError that suggests one."""
    if name not in CATALOG:
        known = [*CATALOG, "all"]
        raise ValueError(f"there is no benchmark {name!r}{suggest(name, known)} (known: {', '.join(known)})")
    return import_module(f"statespan.papers.bench.{name}").BENCHMARK


def choose_options(
    benchmark: Benchmark,
    *,
    device: str | None = None,
    dtype: str | None = None,
    quick: bool = False,
    seed: int = 0,
    sizes: Sequence[str] = (),
    reference: Path | None = None,
) -> BenchOptions:
    """The options of a run from the user's arguments; a one-line ValueError names a wrong one.

    The default ``device`` is CUDA if possible, the default ``dtype`` the benchmark's own. ``sizes`` are changes such as
    "lengths=1024,4096" or "shapes=64x512x1024". ``reference`` is a folder with the papers' public code.
    """
    if seed < 0:
        raise ValueError(f"--seed must be an integer >= 0, got {seed}")
    place = _device(benchmark, device)
    name = dtype or ("float32" if place.type == "cpu" else benchmark.dtype)
    name = SHORT.get(name, name)
    if name not in DTYPES:
        raise ValueError(f"--dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    chosen = dict(benchmark.listing.quick if quick else benchmark.listing.sizes)
    if place.type == "cpu" and not quick:
        chosen |= benchmark.on_cpu
    for change in sizes:
        key, _, text = change.partition("=")
        if key not in chosen:
            raise ValueError(f"--size of {benchmark.name} must be one of {', '.join(chosen)}, got {change!r}")
        chosen[key] = _parse(change, text, chosen[key])
    if chosen.get("baselines"):
        from statespan.papers.bench.baseline import check_names

        check_names(chosen["baselines"])
    if reference is not None:
        if not benchmark.takes_reference:
            raise ValueError(f"--reference goes with the benchmark eager, not with {benchmark.name}")
        reference = check_folder(reference)
    return BenchOptions(place, getattr(torch, name), seed, quick, chosen, reference)


def _device(benchmark: Benchmark, name: str | None) -> torch.device:
    if name is None:
        name = "cuda" if "cuda" in benchmark.devices and torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"--device must be cpu, cuda or cuda:0, cuda:1, ..., got {name!r}")
    if device.type not in benchmark.devices:
        raise ValueError(f"--device of {benchmark.name} must be {' or '.join(benchmark.devices)}, got {name!r}")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise ValueError(f"--device must be one that this machine has ({count} CUDA devices and cpu), got {name!r}")
        return torch.device("cuda", device.index or 0)
    return torch.device("cpu")


def _parse(change: str, text: str, default: Any) -> Any:
    """Parse a value written like its default: 8, "1024,4096" for a list, "64x512x1024" for a shape, names for none."""
    if default == ():  # names
        return tuple(name.strip() for name in text.split(",") if name.strip())
    several = isinstance(default, tuple)
    shape = len(default[0]) if several and isinstance(default[0], tuple) else 0
    wanted = "x".join(["N"] * shape) if shape else "a number >= 1"
    try:
        items = [tuple(int(n) for n in item.split("x")) for item in text.split(",")]
    except ValueError:
        items = []
    fits = items and all(len(item) == (shape or 1) and min(item) >= 1 for item in items)
    if not fits or (len(items) > 1 and not several):
        raise ValueError(f"--size {change!r} must be {wanted}{', or several with commas' if several else ''}")
    values = items if shape else [item[0] for item in items]
    return tuple(values) if several else values[0]
