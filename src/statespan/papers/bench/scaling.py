"""`scaling`: how time and memory of one layer grow with the length."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from statespan import S4, S4D
from statespan.papers.bench.case import OK, Case, Row, Settings
from statespan.papers.bench.compare import TOLERANCE
from statespan.papers.bench.layer import flash_attention
from statespan.papers.bench.layers import attention_floor, layer_work, ssm_floor
from statespan.papers.bench.listing import LISTED
from statespan.papers.bench.registry import Benchmark


def cases(settings: Settings) -> Iterator[Case]:
    """S4D, S4 and flash attention at each length, as far as each stays within the time limit."""
    sizes = settings.sizes
    batch, D, N, n_heads = sizes["batch"], sizes["d_model"], sizes["d_state"], sizes["n_heads"]
    for kind, layer in (("S4D", S4D), ("S4", S4)):
        for length in sizes["lengths"]:
            make = partial(layer, D, N, mix="linear", device=settings.device)
            prepare = partial(layer_work, make, settings, batch, length)
            floor = ssm_floor(settings, batch * length, D, D)
            setting = {"length": length, "batch": batch, "d_model": D, "d_state": N}
            skip = too_long(kind, length, 1, sizes["limit_ms"])
            yield Case(kind, setting, prepare, floor, TOLERANCE[settings.dtype], skip=skip)
    for length in sizes["lengths"]:
        name = "flash attention"
        prepare = partial(flash_attention, settings, D, n_heads, batch, length)
        floor = attention_floor(settings, batch, length, D, D, causal=True)
        setting = {"length": length, "batch": batch, "d_model": D, "n_heads": n_heads}
        skip = too_long(name, length, 2, sizes["limit_ms"])
        yield Case(name, setting, prepare, floor, None, optional=True, skip=skip)


def too_long(name: str, length: int, power: int, limit_ms: float) -> Callable[[Sequence[Row]], str | None]:
    """A rule that skips a length if the last one of the same name ran out, or foretells more than the limit."""

    def skip(rows: Sequence[Row]) -> str | None:
        before = [row for row in rows if row.name == name]
        if not before:
            return None
        last = before[-1]
        if last.time_ms is None:
            return f"length {last.setting['length']} was {last.status}"
        expected = last.time_ms * (length / last.setting["length"]) ** power
        return f"would take about {expected:.0f} ms, the limit is {limit_ms:.0f}" if expected > limit_ms else None

    return skip


def finish(rows: Sequence[Row], settings: Settings) -> tuple[list[Row], list[str]]:
    """Fit exponents of time (of CUDA graphs where there are such) and memory over the upper half of the lengths."""
    final, findings = list(rows), []
    for name in dict.fromkeys(row.name for row in rows):
        done = [row for row in rows if row.name == name and row.status == OK]
        if len(done) < 2:
            continue
        upper = done[min(len(done) // 2, len(done) - 2) :]
        graphs = all(row.graph_ms for row in upper)
        time = exponent([(row.setting["length"], (row.graph_ms if graphs else row.time_ms) or 0.0) for row in upper])
        memory = exponent([(row.setting["length"], row.memory_mb or 0.0) for row in upper])
        first, last = upper[0].setting["length"], upper[-1].setting["length"]
        findings.append(f"{name}: time ~ L^{time:.2f}, memory ~ L^{memory:.2f}, from L = {first:,} to {last:,}")
        extra = {"time_exponent": time, "memory_exponent": memory}
        final = [replace(row, extra=extra) if row.name == name and row.status == OK else row for row in final]
    return final, findings


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the least-squares line through the logarithms of (x, y)."""
    xs, ys = zip(*((math.log(x), math.log(y)) for x, y in points))
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys)) / sum((x - x_mean) ** 2 for x in xs)


BENCHMARK = Benchmark(
    LISTED["scaling"],
    caption=(
        "One causal layer (SSM, GELU, linear map), forward and backward with all gradients. Exponents are slopes in "
        "the log-log plane over the upper half of the lengths, of the times as CUDA graphs on a GPU."
    ),
    cases=cases,
    finish=finish,
    lines=True,
)
