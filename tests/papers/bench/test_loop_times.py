"""Wall, host and device times, measured on a machine whose times are known."""

from types import SimpleNamespace

import pytest

from statespan.papers.bench import loop_times
from statespan.papers.bench.loop_times import Kernels, add_kernels, host_time, wall_times


class Machine:
    """A CPU that takes ``host`` seconds to issue a pass, and a device that takes ``device`` seconds to run it.

    The device works off its queue while the CPU goes on; with ``depth`` passes in the queue, the CPU has to wait.
    """

    def __init__(self, host, device, depth=10**9):
        self.host, self.device, self.depth = host, device, depth
        self.now, self.ends, self.passes = 0.0, [0.0], 0

    def run(self):
        self.passes += 1
        if self.passes > self.depth:
            self.now = max(self.now, self.ends[-self.depth])
        self.now += self.host
        self.ends.append(max(self.ends[-1], self.now) + self.device)

    def run_and_wait(self):
        self.run()
        self.wait()

    def wait(self):
        self.now = max(self.now, self.ends[-1])

    def clock(self):
        return self.now

    def measure(self, **options):
        return wall_times(self.run, self.wait, clock=self.clock, **options)


@pytest.mark.parametrize(("host", "device"), [(3e-4, 1e-3), (1e-3, 3e-4), (5e-5, 2e-5)])
def test_wall_is_the_longer_of_host_and_device(host, device):
    """Passes overlap: only the first one's host time, or the last one's device time, comes on top."""
    machine = Machine(host, device)
    times = machine.measure()
    count = round(loop_times.WINDOW / (host + device))
    want = 1e3 * (max(host, device) + min(host, device) / count)
    assert times.low == pytest.approx(want)
    assert times.median == pytest.approx(want)
    assert times.high == pytest.approx(want)
    assert machine.passes == 2 + count * (1 + loop_times.WINDOWS)


@pytest.mark.parametrize("device", [0.0, 1e-3, 0.1])
def test_host_is_what_the_cpu_needs_whatever_the_device_does(device):
    """Even where the CPU runs ahead of the device and the queue is full after two passes."""
    machine = Machine(3e-4, device, depth=2)
    assert host_time(machine.run, machine.wait, clock=machine.clock) == pytest.approx(0.3)


def test_host_includes_the_waiting_of_a_pass_that_waits_itself():
    machine = Machine(3e-4, 1e-3)
    assert host_time(machine.run_and_wait, machine.wait, clock=machine.clock) == pytest.approx(1.3)


def test_slow_passes_are_few():
    slow = Machine(0.0, 2.0)
    assert slow.measure().median == pytest.approx(2000)
    assert slow.passes == 3 + loop_times.FEWEST
    host_time(slow.run, slow.wait, clock=slow.clock)
    assert slow.passes == 3 + loop_times.FEWEST + loop_times.FEWEST_CALLS


def test_fast_passes_are_limited():
    fast = Machine(1e-6, 1e-6)
    fast.measure()
    assert fast.passes == 2 + 1000 * (1 + loop_times.WINDOWS)
    host_time(fast.run, fast.wait, clock=fast.clock)
    assert fast.passes == 2 + 1000 * (1 + loop_times.WINDOWS) + loop_times.CALLS


def test_quick_windows_are_shorter():
    machine = Machine(0.0, 1e-3)
    machine.measure(quick=True)
    assert machine.passes == 2 + 5 * (1 + loop_times.WINDOWS)


def event(kind, microseconds, call, *, is_range=False):
    return SimpleNamespace(
        device_type=lambda: SimpleNamespace(name=kind),
        duration_ns=lambda: 1000 * microseconds,
        correlation_id=lambda: call,
        is_user_annotation=lambda: is_range,
    )


def test_kernels_are_added_and_a_graph_is_one_launch():
    """Two passes: each a kernel, a copy and a CUDA graph of three kernels; beside them the CPU's own events."""
    graph = [event("CUDA", 5, 12), event("CUDA", 6, 12), event("CUDA", 7, 12)]
    first = [event("CPU", 900, 10), event("CUDA", 30, 10), event("CUDA", 2, 11), *graph]
    second = [event("CUDA", 30, 20), event("CUDA", 2, 21), event("CUDA", 18, 22)]
    others = [event("CUDA", 500, 0, is_range=True), event("CUDA", 0, 99)]
    assert add_kernels([*first, *second, *others], 2) == Kernels(pytest.approx(0.05), 3.0)


def test_a_profile_without_kernels_is_an_error():
    with pytest.raises(RuntimeError, match="recorded no kernels"):
        add_kernels([event("CPU", 900, 10)], 1)
