"""`scaling`: time and memory of one layer over the sequence length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import log
from statistics import linear_regression

from statespan.papers.bench.case import OK, Benchmark, BenchOptions, BenchRow, Case
from statespan.papers.bench.layer import flash_attention
from statespan.papers.bench.layer_work import KINDS, layer_work, ssm_floor


def cases(options: BenchOptions) -> Iterator[Case]:
    """S4D, S4 and flash attention at each length, up to the time limit of each."""
    sizes = options.sizes
    batch, D, N = sizes["batch"], sizes["d_model"], sizes["d_state"]
    for kind, layer in KINDS.items():
        for length in sizes["lengths"]:
            make = partial(layer, D, N, mix="linear", device=options.device)
            prepare = partial(layer_work, make, options, batch, length)
            floor = ssm_floor(options, batch * length, D, D)
            setting = {"length": length, "batch": batch, "d_model": D, "d_state": N}
            skip = too_long(kind, length, 1, sizes["limit_ms"])
            yield Case(kind, setting, prepare, floor, options.tolerance, skip=skip)
    for length in sizes["lengths"]:
        case = flash_attention(options, batch, length)
        yield replace(case, skip=too_long(case.name, length, 2, sizes["limit_ms"]))


def too_long(name: str, length: int, power: int, limit_ms: float) -> Callable[[Sequence[BenchRow]], str | None]:
    """A rule that skips a length if the previous one of the same name failed or predicts more than the limit."""

    def skip(rows: Sequence[BenchRow]) -> str | None:
        before = [row for row in rows if row.name == name]
        if not before:
            return None
        last = before[-1]
        if last.time_ms is None:
            return f"length {last.setting['length']} was {last.status}"
        expected = last.time_ms * (length / last.setting["length"]) ** power
        return f"would take about {expected:.0f} ms, the limit is {limit_ms:.0f}" if expected > limit_ms else None

    return skip


def finish(rows: Sequence[BenchRow], options: BenchOptions) -> tuple[list[BenchRow], list[str]]:
    """Fit exponents of time (of CUDA graphs if available) and memory over the upper half of the lengths."""
    final, findings = list(rows), []
    for name in dict.fromkeys(row.name for row in rows):
        done = [row for row in rows if row.name == name and row.status == OK]
        if len(done) < 2:
            continue
        upper = fitted(done)
        lengths = [row.setting["length"] for row in upper]
        graphs = all(row.graph_ms for row in upper)
        time = exponent(lengths, [(row.graph_ms if graphs else row.time_ms) or 0.0 for row in upper])
        memory = exponent(lengths, [row.memory_mb or 0.0 for row in upper])
        findings.append(
            f"{name}: time ~ L^{time:.2f}, memory ~ L^{memory:.2f}, from L = {lengths[0]:,} to {lengths[-1]:,}"
        )
        extra = {"time_exponent": time, "memory_exponent": memory}
        final = [replace(row, extra=extra) if row.name == name and row.status == OK else row for row in final]
    return final, findings


def fitted(rows: Sequence[BenchRow]) -> Sequence[BenchRow]:
    """The rows of one name that its exponents are fitted to: the upper half of the lengths, at least two."""
    return rows[min(len(rows) // 2, len(rows) - 2) :]


def exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The power p of y ~ xᵖ: the slope of the least-squares line through the logarithms.

    Example:
        >>> round(exponent([1.0, 2.0, 4.0], [3.0, 12.0, 48.0]), 6)
        2.0
    """
    return linear_regression([log(x) for x in xs], [log(y) for y in ys]).slope


BENCHMARK = Benchmark("scaling", cases, finish=finish, lines=True)
