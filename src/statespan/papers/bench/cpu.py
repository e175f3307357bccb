"""`cpu`: an SSM on a CPU against the papers' kernels with every large matrix in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch

from statespan import S4, S4D
from statespan.papers.bench import naive, paths
from statespan.papers.bench.case import Case, Row, Settings
from statespan.papers.bench.compare import TOLERANCE
from statespan.papers.bench.layers import layer_work, ssm_floor
from statespan.papers.bench.listing import LISTED
from statespan.papers.bench.registry import Benchmark

ROUNDED = 5e-3
"""Allowed error with a matrix in complex64: the Vandermonde phase l · arg Ā is rounded to 24 bits, 2e-3 at L = 16384;
the Cauchy kernel itself is as good as ours, but not its gradient of Δ."""

WHOLE, ALONE = "layer", "SSM alone"
PARTS: dict[str, dict[str, Any]] = {ALONE: {"activation": None, "mix": None}, WHOLE: {"mix": "linear"}}


def cases(settings: Settings) -> Iterator[Case]:
    """Each SSM on each path, then with the naive kernels: alone, and with the rest of a layer around it."""
    sizes = settings.sizes
    batch, length, D, N = (sizes[key] for key in ("batch", "length", "d_model", "d_state"))
    tolerance = TOLERANCE[settings.dtype]
    for kind, layer in (("S4D", S4D), ("S4", S4)):
        for part, options in PARTS.items():
            setting = {"part": part, "length": length, "batch": batch, "d_model": D, "d_state": N}
            floor = ssm_floor(settings, batch * length, D, D if part == WHOLE else 0)
            make = partial(layer, D, N, **options)
            for path in paths.available(settings.device):
                prepare = partial(layer_work, make, settings, batch, length, path=path)
                yield Case(f"{kind} {path}", setting, prepare, floor, tolerance)
            for label, kernel, allowed in _naive(kind, tolerance):
                prepare = partial(layer_work, make, settings, batch, length, forward=naive.forward_with(kernel))
                yield Case(f"{kind} naive {label}", setting, prepare, floor, allowed)


def _naive(kind: str, tolerance: float) -> list[tuple[str, naive.KernelFunction, float]]:
    if kind == "S4":
        return [
            ("Cauchy, one matrix, c64", naive.cauchy, max(tolerance, ROUNDED)),
            ("Cauchy, c64", partial(naive.cauchy, shared=False), max(tolerance, ROUNDED)),
            ("Cauchy, c128", partial(naive.cauchy, shared=False, dtype=torch.complex128), tolerance),
        ]
    return [
        ("Vandermonde, c64", naive.vandermonde, max(tolerance, ROUNDED)),
        ("Vandermonde, c128", partial(naive.vandermonde, dtype=torch.complex128), tolerance),
    ]


def finish(rows: Sequence[Row], settings: Settings) -> tuple[list[Row], list[str]]:
    """Add "speedup" of each row over the last naive one, which is as exact as ours, and say the best over all."""
    final, findings = list(rows), []
    for kind, part in product(("S4D", "S4"), PARTS):
        mine = [r for r in rows if r.name.split()[0] == kind and r.setting["part"] == part and r.time_ms]
        base = next((row for row in reversed(mine) if "naive" in row.name), None)
        if base is None or not base.time_ms:
            continue
        speed = {row.name: base.time_ms / (row.time_ms or 1.0) for row in mine}
        final = [replace(r, extra={"speedup": speed[r.name]}) if r in mine else r for r in final]
        ours = {name: value for name, value in speed.items() if "naive" not in name}
        if ours:
            best = max(ours, key=lambda name: ours[name])
            slower = {row.name: ours[best] / speed[row.name] for row in mine if "naive" in row.name}
            findings += [f"{part}: {best} is {x:.1f} times as fast as {name}" for name, x in slower.items()]
    return final, findings


BENCHMARK = Benchmark(
    LISTED["cpu"],
    caption=(
        "One causal layer (SSM, GELU, linear map) and its SSM alone, forward and backward with all gradients. The "
        "naive kernels hold the whole Vandermonde (H, N/2, L) or Cauchy matrix (H, N, L/2 + 1), the latter for each of "
        "S4's four products as the papers' code without its extension does, or once for all."
    ),
    cases=cases,
    devices=("cpu",),
    finish=finish,
    rounds=3,
)
