"""What every benchmark declares, and the choices a user has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from statespan._suggest import suggest
from statespan.papers.bench.case import Case, Row, Settings
from statespan.papers.bench.listing import DTYPES as NAMES
from statespan.papers.bench.listing import Listing

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in NAMES}
SHORT = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

Finish = Callable[[Sequence[Row], Settings], tuple[list[Row], list[str]]]


def as_they_are(rows: Sequence[Row], settings: Settings) -> tuple[list[Row], list[str]]:
    """No figures to add to the rows and nothing to say about them."""
    return list(rows), []


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: what it runs, at which sizes, and what is said about the rows.

    Args:
        listing: Its name, summary and sizes.
        caption: The setting in words, for the table and the record.
        cases: From the user's choices to what is run.
        dtype: The default precision on CUDA; on a CPU it is float32.
        devices: The kinds of device it runs on, the first being the default where there is a choice of one.
        finish: Adds what needs all rows (relative figures, fitted exponents), and says it in lines.
        lines: Its rows are points of curves over the length, one for each name; they are shown and drawn so.
        rounds: How often to measure all cases in turn on a CPU, whose other load comes and goes over minutes.
        rate: The figure of its rows that is drawn over the batch, one curve for each name, if that is what it measures.
    """

    listing: Listing
    caption: str
    cases: Callable[[Settings], Iterable[Case]]
    dtype: str = "bfloat16"
    devices: tuple[str, ...] = ("cuda", "cpu")
    finish: Finish = as_they_are
    lines: bool = False
    rounds: int = 1
    rate: str = ""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return self.listing.name


def choose_settings(
    benchmark: Benchmark,
    *,
    device: str | None = None,
    dtype: str | None = None,
    quick: bool = False,
    seed: int = 0,
    sizes: Sequence[str] = (),
) -> Settings:
    """The settings of a run from what the user wrote.

    Args:
        benchmark: The benchmark.
        device: "cpu", "cuda" or "cuda:1"; None for the best there is.
        dtype: A name in :data:`DTYPES` or :data:`SHORT`; None for the benchmark's own.
        quick: Small sizes, few repetitions.
        seed: At least 0.
        sizes: Changes, each "name=value" with values like "1024,4096" or "64x512x1024".

    Returns:
        The settings. A ValueError of one line says what is wrong with an argument.
    """
    if seed < 0:
        raise ValueError(f"--seed must be an integer >= 0, got {seed}")
    place = _device(benchmark, device)
    name = dtype or ("float32" if place.type == "cpu" else benchmark.dtype)
    name = SHORT.get(name, name)
    if name not in DTYPES:
        raise ValueError(f"--dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    chosen = dict(benchmark.listing.quick if quick else benchmark.listing.sizes)
    for change in sizes:
        key, _, text = change.partition("=")
        if key not in chosen:
            raise ValueError(f"--size of {benchmark.name} must be one of {', '.join(chosen)}, got {change!r}")
        chosen[key] = _parse(change, text, chosen[key])
    return Settings(place, DTYPES[name], seed, quick, chosen)


def find(name: str, benchmarks: Mapping[str, Benchmark]) -> Benchmark:
    """The benchmark of this name, or a ValueError that suggests one."""
    if name in benchmarks:
        return benchmarks[name]
    known = [*benchmarks, "all"]
    raise ValueError(f"there is no benchmark {name!r}{suggest(name, known)} (known: {', '.join(known)})")


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
    """A value written like its default: 8, "1024,4096" for a list, "64x512x1024" for a shape."""
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
