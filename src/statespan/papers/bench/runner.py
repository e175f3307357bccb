"""The one runner: compare first, then measure."""

from __future__ import annotations

import gc
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from statespan.papers.bench.case import (
    FAILED,
    OK,
    SKIPPED,
    WRONG,
    Benchmark,
    BenchOptions,
    BenchRow,
    Case,
    Floor,
    Measure,
    Tensors,
    Work,
)  # fmt: skip
from statespan.papers.bench.measure import (
    MachineRates,
    Times,
    measure_graph,
    measure_memory,
    measure_rates,
    measure_time,
    median_of,
)

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class BenchResult:
    """The measurements of a benchmark run.

    Example:
        >>> from statespan.papers.bench.case import BenchRow
        >>> options = BenchOptions(torch.device("cpu"), torch.float32, seed=0, quick=True, sizes={})
        >>> benchmark, rates = Benchmark("op", cases=lambda options: []), MachineRates(bandwidth=1e10, matmul=1e11)
        >>> rows = (BenchRow("chunks", {"length": 1024}, time_ms=0.5),)
        >>> result = BenchResult(benchmark, options, rates, rows, findings=(), fault=False, seconds=3.0)
        >>> [row.name for row in result.rows if row.status == "ok"]
        ['chunks']
    """

    benchmark: Benchmark
    options: BenchOptions
    rates: MachineRates  # measured in this run
    rows: tuple[BenchRow, ...]  # one for each case
    findings: tuple[str, ...]  # what the rows say together, a line each
    fault: bool  # whether a result was wrong, or a case failed that is not optional
    seconds: float  # wall time


class Unfinished(NamedTuple):
    """What an interrupted run has measured.

    Example:
        >>> Unfinished().extended
        0
    """

    rows: Sequence[BenchRow] = ()
    """Those of the first cases."""
    extended: int = 0
    """How many cases have finished their later measurements; 0 until all cases have a row."""


NEW_RUN = Unfinished()


def run_benchmark(
    benchmark: Benchmark,
    options: BenchOptions,
    progress: Progress = lambda done, total, name: None,
    *,
    begun: Unfinished = NEW_RUN,
    keep: Callable[[Unfinished], None] = lambda unfinished: None,
) -> BenchResult:
    """Run all cases of a benchmark.

    ``progress`` is called before each case and at the end with the number of cases done, their total and what is next.
    ``begun`` is an earlier run of the same cases to continue; ``keep`` is called with the rows so far after each case.
    """
    start = time.perf_counter()
    progress(0, 1, "the machine's own rates")
    rates = {options.dtype: measure_rates(options.device, options.dtype, options.quick)}
    cases = list(benchmark.cases(options))
    rounds = benchmark.rounds if options.device.type == "cpu" and not options.quick else 1
    rows = list(begun.rows)
    total = rounds * len(cases) + sum(case.later is not None for case in cases)
    for done, case in list(enumerate(cases))[len(rows) :]:
        progress(done, total, _label(case))
        chosen = replace(options, dtype=case.dtype or options.dtype)
        if chosen.dtype not in rates:
            rates[chosen.dtype] = measure_rates(chosen.device, chosen.dtype, chosen.quick)
        rows.append(run_case(case, chosen, rates[chosen.dtype], rows))
        keep(Unfinished(rows))
    fault = any(_is_fault(row, case) for row, case in zip(rows, cases, strict=True))
    times = [[Times(row.time_ms or 0.0, row.low_ms or 0.0, row.high_ms or 0.0)] for row in rows]
    for done in range(len(cases), rounds * len(cases)):
        i = done % len(cases)
        progress(done, total, f"{_label(cases[i])}, round {done // len(cases) + 1}")
        if rows[i].status == OK:
            torch.manual_seed(options.seed)
            times[i].append(measure_time(cases[i].prepare().run, options.device, options.quick))
    rows = [timed(row, median_of(each)) if row.status == OK else row for row, each in zip(rows, times, strict=True)]
    rows = _extended(
        rows, cases, options, lambda done, name: progress(rounds * len(cases) + done, total, name),
        begun=begun.extended, keep=keep,
    )  # fmt: skip
    progress(total, total, "done")
    final, findings = benchmark.finish(rows, options) if benchmark.finish else (rows, [])
    return BenchResult(
        benchmark, options, rates[options.dtype], tuple(final), tuple(findings), fault, time.perf_counter() - start
    )


def _is_fault(row: BenchRow, case: Case) -> bool:
    return row.status == WRONG or (row.status == FAILED and not case.optional)


def run_case(case: Case, options: BenchOptions, rates: MachineRates, before: Sequence[BenchRow] = ()) -> BenchRow:
    """Run one case after the rows ``before``: a wrong or failing case gets no time."""
    row = BenchRow(case.name, case.setting, tolerance=case.tolerance, notes=case.notes)
    reason = case.skip(before) if case.skip else None
    if reason:
        return replace(row, status=SKIPPED, reason=reason)
    try:
        with _prepared(case, options) as work:
            row = _compared(row, work)
            if row.status == WRONG:
                return row
            floor, how = floor_ms(case.floor, rates)
            return (case.measure or _measured)(replace(row, floor_ms=floor, floor_how=how), work, options)
    except Exception as error:
        return replace(row, status=FAILED, reason=one_line(error))


@contextmanager
def _prepared(case: Case, options: BenchOptions) -> Iterator[Work]:
    """A case's work under the run's seed; its memory is freed afterwards."""
    try:
        with warnings.catch_warnings():
            # raised by the first matrix product in the backward pass's thread, which then sets the context
            warnings.filterwarnings("ignore", "Attempting to run cuBLAS, but there was no current CUDA context")
            torch.manual_seed(options.seed)
            yield case.prepare()
    finally:
        if options.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()


def _extended(
    rows: Sequence[BenchRow], cases: Sequence[Case], options: BenchOptions, progress: Callable[[int, str], None], *,
    begun: int, keep: Callable[[Unfinished], None],
) -> list[BenchRow]:  # fmt: skip
    """Add the later measurements of cases; a failure there becomes a note, and the times are kept."""
    final = list(rows)
    left = [i for i, case in enumerate(cases) if case.later is not None]
    for done, i in list(enumerate(left))[begun:]:
        case, later = cases[i], cases[i].later
        progress(done, f"{_label(case)}, again")
        if later is None or rows[i].status != OK:
            continue
        final[i] = _run_again(case, later, rows[i], options)
        keep(Unfinished(final, done + 1))
    return final


def _run_again(case: Case, later: Measure, row: BenchRow, options: BenchOptions) -> BenchRow:
    options = replace(options, dtype=case.dtype or options.dtype)
    try:
        with _prepared(case, options) as work:
            return later(row, work, options)
    except Exception as error:
        return row.noted(f"figures that are measured last: {one_line(error)}")


def one_line(error: BaseException) -> str:
    """An error in one line of reasonable length."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):
        lines[0] += f" {lines[-1]}"  # a place, then code, then what is wrong with it
    text = ": ".join([type(error).__name__, *lines[:1]])
    return text if len(text) <= 200 else text[:197] + "..."


def floor_ms(floor: Floor, rates: MachineRates) -> tuple[float, str]:
    """The floor's time, and how it was computed."""
    moving, computing = 1e3 * floor.bytes / rates.bandwidth, 1e3 * floor.flops / rates.matmul
    if moving >= computing:
        how = f"{floor.bytes / 1e6:.4g} MB at the measured copy bandwidth of {rates.bandwidth / 1e9:.4g} GB/s"
    else:
        how = f"{floor.flops / 1e9:.4g} GFLOP at the measured matmul rate of {rates.matmul / 1e12:.4g} TFLOP/s"
    return max(moving, computing), f"{floor.how}: {how}"


def compare(got: Tensors, want: Tensors) -> dict[str, float]:
    """For each tensor in either, ``max |got - want| / max |want|``.

    It is infinite where a tensor is missing, has another shape or is not finite.
    """
    return {name: _error(got.get(name), want.get(name)) for name in [*want, *(n for n in got if n not in want)]}


def _error(got: Tensor | None, want: Tensor | None) -> float:
    if got is None or want is None or got.shape != want.shape:
        return math.inf
    got, want = (t.detach().to(torch.promote_types(t.dtype, torch.float64)) for t in (got, want))
    peak = want.abs().max().item()
    error = (got - want).abs().max().item() / (peak or 1.0)
    return error if math.isfinite(error) else math.inf


def _compared(row: BenchRow, work: Work) -> BenchRow:
    """Add the errors of this run's results against the reference; the status is "wrong" if one is too large."""
    tolerance = row.tolerance
    if (work.reference is None) != (tolerance is None):
        raise RuntimeError(f"{row.name} must have both a reference and a tolerance, or neither")
    if work.reference is None or tolerance is None:
        return replace(row, parameters=work.parameters)
    errors = compare((work.sample or work.run)(), work.reference())
    worst = max(errors.values(), default=math.inf)
    finite = {name: error if math.isfinite(error) else None for name, error in errors.items()}
    row = replace(row, parameters=work.parameters, compared=finite, error=worst if math.isfinite(worst) else None)
    if worst <= tolerance:
        return row
    name = max(errors, key=lambda key: errors[key], default="output")
    fault = f"{name} is off by {worst:.1e} of its peak" if math.isfinite(worst) else f"{name} is missing or not finite"
    return replace(row, status=WRONG, reason=f"{fault}, allowed: {tolerance:.0e}")


def _measured(row: BenchRow, work: Work, options: BenchOptions) -> BenchRow:
    device, quick = options.device, options.quick
    work.run()
    memory = work.peak_bytes if work.peak_bytes is not None else measure_memory(work.run, device)
    row = replace(timed(row, measure_time(work.run, device, quick)), memory_mb=memory / 1e6)
    graph = measure_graph(work.run, device, quick) if work.graph and device.type == "cuda" else None
    return replace(row, graph_ms=graph)


def timed(row: BenchRow, times: Times) -> BenchRow:
    """Add a time with its quantiles and its ratio to the floor."""
    ratio = times.median / row.floor_ms if row.floor_ms else None
    return replace(row, time_ms=times.median, low_ms=times.low, high_ms=times.high, ratio=ratio)


def _label(case: Case) -> str:
    return " ".join([case.name, *(f"{key}={value}" for key, value in case.setting.items())])
