"""The one runner: compare first, then measure."""

from __future__ import annotations

import gc
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from statespan.papers.bench.case import FAILED, OK, SKIPPED, WRONG, Case, Floor, Row, Settings, Work
from statespan.papers.bench.compare import compare
from statespan.papers.bench.measure import (
    Machine,
    Times,
    measure_graph,
    measure_machine,
    measure_memory,
    measure_time,
    median_of,
)
from statespan.papers.bench.registry import Benchmark

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Result:
    """What a run found.

    Args:
        benchmark: What ran.
        settings: With these choices.
        machine: The machine's own rates, measured in this run.
        rows: One for each case.
        findings: What the rows say together, a line each.
        fault: Whether a result was wrong, or something failed that must not.
        seconds: Wall time.
    """

    benchmark: Benchmark
    settings: Settings
    machine: Machine
    rows: tuple[Row, ...]
    findings: tuple[str, ...]
    fault: bool
    seconds: float


def run_benchmark(
    benchmark: Benchmark, settings: Settings, progress: Progress = lambda done, total, name: None
) -> Result:
    """Run all cases of a benchmark.

    Args:
        benchmark: What to run.
        settings: The user's choices.
        progress: Called before each case and at the end with the number of cases done, their total and what runs next.

    Returns:
        The rows, in the order of the cases.
    """
    start = time.perf_counter()
    progress(0, 1, "the machine's own rates")
    machine = measure_machine(settings.device, settings.dtype, settings.quick)
    cases = list(benchmark.cases(settings))
    rounds = benchmark.rounds if settings.device.type == "cpu" and not settings.quick else 1
    rows: list[Row] = []
    fault, total = False, rounds * len(cases)
    for done, case in enumerate(cases):
        progress(done, total, f"{case.name} {_words(case)}")
        row = run_case(case, settings, machine, rows)
        fault = fault or row.status == WRONG or (row.status == FAILED and not case.optional)
        rows.append(row)
    times = [[_times(row)] for row in rows]
    for done in range(len(cases), total):
        i = done % len(cases)
        progress(done, total, f"{cases[i].name} {_words(cases[i])}, round {done // len(cases) + 1}")
        if rows[i].status == OK:
            torch.manual_seed(settings.seed)
            times[i].append(measure_time(cases[i].prepare().run, settings.device, settings.quick))
    rows = [_with(row, median_of(each)) if row.status == OK else row for row, each in zip(rows, times, strict=True)]
    progress(total, total, "done")
    final, findings = benchmark.finish(rows, settings)
    return Result(benchmark, settings, machine, tuple(final), tuple(findings), fault, time.perf_counter() - start)


def run_case(case: Case, settings: Settings, machine: Machine, before: Sequence[Row] = ()) -> Row:
    """Run one case: a wrong or failing one gets no time."""
    row = Row(case.name, case.setting, tolerance=case.tolerance, notes=case.notes)
    reason = case.skip(before) if case.skip else None
    if reason:
        return replace(row, status=SKIPPED, reason=reason)
    try:
        with warnings.catch_warnings():
            # of the first product in the backward pass's own thread; it sets the context and all is well
            warnings.filterwarnings("ignore", "Attempting to run cuBLAS, but there was no current CUDA context")
            warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype feature")
            torch.manual_seed(settings.seed)
            work = case.prepare()
            row = _checked(row, work)
            return row if row.status == WRONG else _measured(row, case, work, settings, machine)
    except torch.OutOfMemoryError:
        return replace(row, status=FAILED, reason="out of memory")
    except Exception as error:
        return replace(row, status=FAILED, reason=one_line(error))
    finally:
        if settings.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()


def one_line(error: BaseException) -> str:
    """An error in one line of reasonable length."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):
        lines[0] += f" {lines[-1]}"  # a place, then code, then what is wrong with it
    text = ": ".join([type(error).__name__, *lines[:1]])
    return text if len(text) <= 200 else text[:197] + "..."


def floor_ms(floor: Floor, machine: Machine) -> tuple[float, str]:
    """The floor's time, and how it was computed."""
    moving, computing = 1e3 * floor.bytes / machine.bandwidth, 1e3 * floor.flops / machine.matmul
    if moving >= computing:
        how = f"{floor.bytes / 1e6:.4g} MB at the measured copy bandwidth of {machine.bandwidth / 1e9:.4g} GB/s"
    else:
        how = f"{floor.flops / 1e9:.4g} GFLOP at the measured matmul rate of {machine.matmul / 1e12:.4g} TFLOP/s"
    return max(moving, computing), f"{floor.how}: {how}"


def _checked(row: Row, work: Work) -> Row:
    """The row with the errors of this run's results against the reference; "wrong" where one is too large."""
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
    found = f"{name} is {worst:.1e} of its peak off" if math.isfinite(worst) else f"{name} is missing or not finite"
    return replace(row, status=WRONG, reason=f"{found}, allowed is {tolerance:.0e}")


def _measured(row: Row, case: Case, work: Work, settings: Settings, machine: Machine) -> Row:
    work.run()
    memory = work.peak_bytes if work.peak_bytes is not None else measure_memory(work.run, settings.device)
    graph = work.graph and settings.device.type == "cuda"
    floor, how = floor_ms(case.floor, machine)
    row = replace(row, status=OK, floor_ms=floor, floor_how=how, memory_mb=memory / 1e6)
    row = _with(row, measure_time(work.run, settings.device, settings.quick))
    return replace(row, graph_ms=measure_graph(work.run, settings.device, settings.quick) if graph else None)


def _with(row: Row, times: Times) -> Row:
    ratio = times.median / row.floor_ms if row.floor_ms else None
    return replace(row, time_ms=times.median, low_ms=times.low, high_ms=times.high, ratio=ratio)


def _times(row: Row) -> Times:
    return Times(row.time_ms or 0.0, row.low_ms or 0.0, row.high_ms or 0.0)


def _words(case: Case) -> str:
    return " ".join(f"{key}={value}" for key, value in case.setting.items())
