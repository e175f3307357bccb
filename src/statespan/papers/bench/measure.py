"""Measures times, memory and the machine's peak rates."""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from statespan.nn.capture.recorder import CudaRecorder

Run = Callable[[], object]
T = TypeVar("T")

MEMORY_HOW = {
    "cuda": "peak of torch.cuda.max_memory_allocated during one run, less what was allocated before it",
    "cpu": "peak of torch's allocations during one run, as its profiler counts them (not libraries' own buffers)",
}


class MachineRates(NamedTuple):
    """The machine's peak rates, measured in the same run as everything else.

    Example:
        >>> rates = MachineRates(bandwidth=4e12, matmul=6e14)
        >>> 1e9 / rates.bandwidth  # seconds to move 1 GB
        0.00025
    """

    bandwidth: float  # bytes read or written per second by a plain copy of a large tensor
    matmul: float  # floating point operations per second of one large matrix product


class Times(NamedTuple):
    """Quantiles in milliseconds.

    Example:
        >>> times = Times(median=1.0, low=0.9, high=1.2)
        >>> round(times.high / times.low, 2)
        1.33
    """

    median: float
    low: float
    high: float


def measure_rates(device: torch.device, dtype: torch.dtype, quick: bool) -> MachineRates:
    """Measure copy bandwidth and the rate of matrix products in this dtype."""
    megabytes = (64 if quick else 1024) if device.type == "cuda" else (32 if quick else 256)
    source = torch.ones(megabytes << 18, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    copy = measure_time(lambda: target.copy_(source), device, quick)
    bandwidth = 2e3 * source.nbytes / copy.median
    side = (1024 if quick else 8192) if device.type == "cuda" else (256 if quick else 1024)
    a = torch.randn(side, side, device=device).to(dtype)
    product = measure_time(lambda: a @ a, device, quick)
    return MachineRates(bandwidth, 2e3 * side**3 / product.median)


def measure_time(run: Run, device: torch.device, quick: bool) -> Times:
    """The median time of a run and its 20 % and 80 % quantiles, after warm-up."""
    samples = _cuda_times(run, device, quick) if device.type == "cuda" else _cpu_times(run, quick)
    return quantiles(samples)


def quantiles(samples: Sequence[float]) -> Times:
    """The median of at least two samples and their 20 % and 80 % quantiles."""
    low, *_, high = statistics.quantiles(samples, n=5, method="inclusive")
    return Times(statistics.median(samples), low, high)


def median_of(rounds: Sequence[Times]) -> Times:
    """Each quantile's median over several rounds."""
    return Times(*map(statistics.median, zip(*rounds)))


def measure_graph(run: Run, device: torch.device, quick: bool) -> float | None:
    """The median time of a run replayed as a CUDA graph, in milliseconds; None if it cannot be captured."""
    replay = replay_of(run, device)
    return None if replay is None else measure_time(replay, device, quick).median


def allocated(device: torch.device) -> int:
    """Bytes of CUDA memory in use; 0 for a CPU."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def reset_peak(device: torch.device) -> None:
    """Reset the statistics that :func:`peak_over` reads."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_over(before: int, device: torch.device) -> float | None:
    """The peak CUDA memory above ``before`` bytes since its statistics were reset; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) - before if device.type == "cuda" else None


def capture(step: Callable[[], T], device: torch.device, warm_up: Run) -> tuple[torch.cuda.CUDAGraph, T]:
    """A step as a CUDA graph and what it returns, after ``warm_up`` has run on the stream of the graph."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(stream):
            warm_up()
    finally:
        torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = step()
    return graph, results


def replay_of(run: Run, device: torch.device) -> Run | None:
    """A function that replays a run as a CUDA graph, after a warm-up; None if it cannot be captured.

    Most often it waits for the device. A library that does so unnoticed by torch makes CUDA reject the graph.
    """
    recorder = CudaRecorder(device)
    try:
        recorder.warm(run, strict=True)
        recorded = recorder.record(run)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return None

    def replay() -> None:
        launch, _results = recorded  # which stay alive as long as this function: the graph writes to their memory
        launch()

    return replay


def measure_memory(run: Run, device: torch.device) -> float:
    """The peak memory of one run in bytes, beyond the memory in use before; see :data:`MEMORY_HOW`."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return float(torch.cuda.max_memory_allocated(device) - before)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with silenced(), torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        run()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return float(peak)


def _cpu_times(run: Run, quick: bool) -> list[float]:
    least, most, budget = (3, 20, 0.05) if quick else (3, 200, 2.0)  # seconds
    samples = [_cpu_time(run)]
    if samples[0] < 1e3:  # warming up makes a difference
        samples = []
    while len(samples) < least or (sum(samples) < 1e3 * budget and len(samples) < most):
        samples.append(_cpu_time(run))
    return samples


def _cpu_time(run: Run) -> float:
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


def _cuda_times(run: Run, device: torch.device, quick: bool) -> list[float]:
    """Event times of as many runs as fit the budget, with the L2 cache flushed before each."""
    budget = 30.0 if quick else 200.0  # ms
    flush = torch.empty(1 << 28, dtype=torch.int8, device=device)
    with torch.cuda.device(device):
        first = _cuda_samples(run, flush, 2)[-1]
        _cuda_samples(run, flush, min(50, int(0.2 * budget / first)))
        return _cuda_samples(run, flush, max(5, min(500, int(budget / first))))


def _cuda_samples(run: Run, flush: Tensor, count: int) -> list[float]:
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
    for start, end in pairs:
        flush.zero_()
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in pairs]


@contextmanager
def silenced() -> Iterator[None]:
    """Suppress the profiler's native writes to standard error."""
    sys.stderr.flush()
    stderr, sink = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(sink)
