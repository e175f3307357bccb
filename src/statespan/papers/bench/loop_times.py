"""Times of a pass as an eager loop sees it: wall, host and device.

wall    Passes are issued one after another, with one synchronization behind the last; the time is divided by their
        number. It is the longer of host and device where the CPU runs ahead, as in a training loop.
host    The time until a call returns. The queue is empty before it, and nothing waits for it: what the CPU needs to
        issue one pass. A pass that waits for the device itself (reads a number back) includes that.
device  The wall time of the same pass as a CUDA graph; or the sum of the times of its kernels and copies.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from statespan.papers.bench.measure import Run, Times, quantiles, replay_of, silenced

Clock = Callable[[], float]

WINDOW, QUICK_WINDOW = 0.04, 0.005
"""Seconds of passes between two synchronizations."""
WINDOWS, FEWEST = 7, 3
LIMIT = 1.5
"""Seconds after which no further window begins, if there are enough."""
CALLS, FEWEST_CALLS, CALLS_LIMIT = 100, 5, 0.25
"""Calls for the host's time, and the seconds after which no further one begins, if there are enough."""
PROFILED = 3


class Kernels(NamedTuple):
    """What the device does in one pass.

    Example:
        >>> Kernels(ms=0.8, launches=12).launches
        12
    """

    ms: float  # the sum of the times of its kernels, copies and fills
    launches: float  # calls that put them into the queue; that of a CUDA graph counts once


def waiting(device: torch.device) -> Run:
    """A function that waits until the device is idle."""
    return partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None


def wall_times(run: Run, wait: Run, *, quick: bool = False, clock: Clock = time.perf_counter) -> Times:
    """Quantiles over windows of the time per pass, in milliseconds, after one window to warm up."""
    window = QUICK_WINDOW if quick else WINDOW
    _window(run, wait, 1, clock)
    once = _window(run, wait, 1, clock)
    count = max(1, min(1000, round(window / max(once, 1e-9))))
    _window(run, wait, count, clock)
    samples: list[float] = []
    while len(samples) < FEWEST or (len(samples) < WINDOWS and sum(samples) * count < LIMIT):
        samples.append(_window(run, wait, count, clock))
    return quantiles([1e3 * sample for sample in samples])


def _window(run: Run, wait: Run, count: int, clock: Clock) -> float:
    """Seconds per pass of ``count`` passes, from an idle device to an idle device."""
    wait()
    start = clock()
    for _ in range(count):
        run()
    wait()
    return (clock() - start) / count


def host_time(run: Run, wait: Run, *, quick: bool = False, clock: Clock = time.perf_counter) -> float:
    """The median time until a call returns, in milliseconds; the device is idle before each."""
    samples: list[float] = []
    limit = CALLS_LIMIT / 10 if quick else CALLS_LIMIT
    begin = clock()
    while len(samples) < FEWEST_CALLS or (len(samples) < CALLS and clock() - begin < limit):
        wait()
        start = clock()
        run()
        samples.append(clock() - start)
    wait()
    return 1e3 * statistics.median(samples)


def graph_time(run: Run, device: torch.device, quick: bool) -> float | None:
    """The wall time of a pass as a CUDA graph, in milliseconds; None if it waits for the device."""
    replay = replay_of(run, device)
    return None if replay is None else wall_times(replay, waiting(device), quick=quick).median


def profile_kernels(run: Run, device: torch.device) -> Kernels:
    """The kernels of one pass, by torch's profiler.

    The profiler stays attached to the process and slows launches down: measure times before.
    """
    # attaching again breaks CUDA graphs that were captured in between
    os.environ.setdefault("DISABLE_CUPTI_LAZY_REINIT", "1")
    os.environ.setdefault("TEARDOWN_CUPTI", "0")
    wait = waiting(device)
    for _ in range(PROFILED):
        run()
    wait()
    with silenced(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(PROFILED):
            run()
        wait()
    return add_kernels(profile.profiler.kineto_results.events(), PROFILED)


def add_kernels(events: Sequence[Any], passes: int) -> Kernels:
    """The sum per pass over the profiler's events on the device; its ranges with names are no work."""
    work = [
        event
        for event in events
        if event.device_type().name == "CUDA" and event.duration_ns() > 0 and not event.is_user_annotation()
    ]
    if not work:
        raise RuntimeError("torch's profiler recorded no kernels")
    launches = {event.correlation_id() for event in work}
    return Kernels(1e-6 * sum(event.duration_ns() for event in work) / passes, len(launches) / passes)
