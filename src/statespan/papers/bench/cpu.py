"""`cpu`: an SSM on a CPU against the papers' kernels with every large matrix in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch

from statespan.papers.bench import naive
from statespan.papers.bench.case import Benchmark, BenchOptions, BenchRow, Case
from statespan.papers.bench.cpu_short import short_cases, short_findings
from statespan.papers.bench.layer_work import KINDS, layer_work, paths, ssm_floor

ROUNDED = 5e-3
"""Allowed error with a matrix in complex64: the Vandermonde phase l · arg Ā is rounded to 24 bits, 2e-3 at L = 16384;
the Cauchy kernel itself is as good as ours, but not its gradient of Δ."""

WHOLE, ALONE = "layer", "SSM alone"
PARTS: dict[str, dict[str, Any]] = {ALONE: {"activation": None, "mix": None}, WHOLE: {"mix": "linear"}}


def cases(options: BenchOptions) -> Iterator[Case]:
    """Each SSM on each path, then with the naive kernels; alone, and within a layer. Last, the short rows."""
    sizes = options.sizes
    batch, length, D, N = (sizes[key] for key in ("batch", "length", "d_model", "d_state"))
    for kind, layer in KINDS.items():
        for part, layer_options in PARTS.items():
            setting = {"part": part, "length": length, "batch": batch, "d_model": D, "d_state": N}
            floor = ssm_floor(options, batch * length, D, D if part == WHOLE else 0)
            make = partial(layer, D, N, **layer_options)
            for path in paths(options.device):
                prepare = partial(layer_work, make, options, batch, length, path=path)
                yield Case(f"{kind} {path}", setting, prepare, floor, options.tolerance)
            for label, kernel, allowed in _naive(kind, options.tolerance):
                prepare = partial(layer_work, make, options, batch, length, forward=naive.forward_with(kernel))
                yield Case(f"{kind} naive {label}", setting, prepare, floor, allowed)
    yield from short_cases(options)


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


def finish(rows: Sequence[BenchRow], options: BenchOptions) -> tuple[list[BenchRow], list[str]]:
    """Add "speedup" of each row over the last naive one, which is as exact as ours, and report the best over all."""
    count = sum(row.setting["part"] in PARTS for row in rows)
    final, findings = list(rows[:count]), []
    for kind, part in product(("S4D", "S4"), PARTS):
        group = [r for r in rows if r.name.split()[0] == kind and r.setting["part"] == part and r.time_ms]
        naives = [row for row in group if "naive" in row.name]
        if not naives:
            continue
        final = [replace(r, extra={"speedup": r.speed_over(naives[-1])}) if r in group else r for r in final]
        fastest = min((row for row in group if row not in naives), key=lambda row: row.time_ms or 0.0, default=None)
        if fastest is not None:
            findings += [
                f"{part}: {fastest.name} is {fastest.speed_over(row):.1f} times as fast as {row.name}" for row in naives
            ]
    short, more = short_findings(rows[count:])
    return final + short, findings + more


BENCHMARK = Benchmark("cpu", cases, devices=("cpu",), finish=finish, rounds=3)
