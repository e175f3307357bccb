"""Repeated launches: a stand-in for compiled kernels really computes, from the addresses that it is given."""

import ctypes
from types import SimpleNamespace

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from statespan.ops._triton import launcher
from statespan.ops._triton.launcher import Region, cut, empty, launch, repeat


class Kernel:
    """``out = factor · x + shift`` of n numbers in float32; ``shift`` may be None."""

    arg_names = ("x_ptr", "shift_ptr", "out_ptr", "n", "factor", "SHIFTED")

    def __init__(self):
        self.launches, self.entries = 0, 0

    def __getitem__(self, grid):
        def ordinary(*arguments, **constants):
            self.launches += 1
            x, shift, out, n, factor = arguments
            addresses = [0 if t is None else t.data_ptr() for t in (x, shift, out)]
            self._compute(*addresses, n, factor, constants["SHIFTED"])
            return SimpleNamespace(run=self._entry, function=11, packed_metadata=(12,))

        return ordinary

    def _entry(self, grid0, grid1, grid2, stream, function, metadata, launch_metadata, enter, leave, *arguments):
        assert (grid0, grid1, grid2, stream, function, metadata) == (3, 1, 1, 7, 11, (12,))
        assert launch_metadata is enter is leave is None
        self.entries += 1
        self._compute(*arguments)

    @staticmethod
    def _compute(x, shift, out, n, factor, shifted):
        x, out = (ctypes.cast(address, ctypes.POINTER(ctypes.c_float)) for address in (x, out))
        shift = ctypes.cast(shift, ctypes.POINTER(ctypes.c_float)) if shifted else [0.0] * n
        for i in range(n):
            out[i] = factor * x[i] + shift[i]


@pytest.fixture
def kernel(monkeypatch):
    """With everything that a GPU would have."""
    monkeypatch.setattr(launcher, "_has_entry", lambda x: True)
    monkeypatch.setattr(launcher, "_stream", lambda device: 7)
    monkeypatch.setattr(launcher, "_current", lambda device: launcher._UNCHANGED)
    monkeypatch.setattr(launcher, "_is_hooked", lambda: False)
    monkeypatch.setattr(launcher, "_recorded", {})
    return Kernel()


def aligned(*shape):
    """Random numbers at an address that is a multiple of 16, as on a GPU."""
    count = torch.Size(shape).numel()
    room = torch.empty(count + 16)
    start = -room.data_ptr() % 64 // 4
    return room[start : start + count].view(shape).normal_()


def two_steps(kernel):
    """``2 (factor x + shift)``, with the first step in the workspace; and its own output turned."""

    def function(tensors, options):
        (x, shift), (factor,) = tensors, options
        between, out = (empty(x.shape, x.dtype, x.device) for _ in range(2))
        launch(kernel, (3,), x, shift, between, x.numel(), factor, SHIFTED=shift is not None)
        launch(kernel, (3,), between, None, out, x.numel(), 2.0, SHIFTED=False)
        return out.t(), None

    return function


@pytest.mark.parametrize("shifted", [False, True])
def test_later_calls_use_the_entry_alone(kernel, shifted):
    function = two_steps(kernel)
    for call in range(4):
        x, shift = aligned(5, 4), aligned(5, 4) if shifted else None
        out, nothing = repeat(function, (x, shift), (0.5,))
        assert nothing is None
        assert torch.equal(out, (2 * (0.5 * x + (shift if shifted else 0))).t())
        assert out.stride() == (1, 4)
        assert (kernel.launches, kernel.entries) == (2, 2 * call)


def test_results_are_new_at_each_call(kernel):
    function, x = two_steps(kernel), aligned(3, 3)
    results = [repeat(function, (x, None), (1.0,))[0] for _ in range(3)]
    assert len({r.data_ptr() for r in results}) == 3
    results[1].zero_()
    assert torch.equal(results[2], 2 * x.t())


@pytest.mark.parametrize("change", ["shape", "stride", "dtype", "options", "absent", "function"])
def test_another_form_is_recorded_anew(kernel, change):
    function, x, shift, options = two_steps(kernel), aligned(4, 4), aligned(4, 4), (1.0,)
    for _ in range(2):
        repeat(function, (x, shift), options)
    if change == "shape":
        x, shift = aligned(2, 8), aligned(2, 8)
    elif change == "stride":
        shift = aligned(4, 4).t()  # read as it lies in memory
    elif change == "dtype":
        shift = shift.view(torch.int32)
    elif change == "options":
        options = (4.0,)
    elif change == "absent":
        shift = None
    else:
        function = two_steps(kernel)
    before = kernel.entries
    out, _ = repeat(function, (x, shift), options)
    assert kernel.entries == before
    flat = 0 if shift is None else (shift.t() if change == "stride" else shift.view(torch.float32))
    assert torch.equal(out, (2 * (options[0] * x + flat)).t())


def test_unaligned_tensors_are_launched_in_the_ordinary_way(kernel):
    function, x = two_steps(kernel), aligned(4, 4)
    for _ in range(2):
        repeat(function, (x, None), (1.0,))
    part = aligned(17)[1:].view(4, 4)
    launches = kernel.launches
    assert torch.equal(repeat(function, (part, None), (1.0,))[0], 2 * part.t())
    assert kernel.launches == launches + 2


def test_a_profiler_sees_every_launch(kernel, monkeypatch):
    function, x = two_steps(kernel), aligned(4, 4)
    repeat(function, (x, None), (1.0,))
    monkeypatch.setattr(launcher, "_is_hooked", lambda: True)
    repeat(function, (x, None), (1.0,))
    assert (kernel.launches, kernel.entries) == (4, 0)


@pytest.mark.parametrize(
    ("knobs", "hooked"),
    [
        (SimpleNamespace(launch_enter_hook=None), False),
        (SimpleNamespace(launch_enter_hook=SimpleNamespace(calls=[])), False),
        (SimpleNamespace(launch_enter_hook=SimpleNamespace(calls=[print])), True),
        (SimpleNamespace(launch_enter_hook=print), True),
        (SimpleNamespace(), False),
    ],
)
def test_hooks_of_all_versions(knobs, hooked, monkeypatch):
    monkeypatch.setattr(launcher, "_KNOBS", knobs)
    assert launcher._is_hooked() == hooked


def test_tensors_that_share_memory_are_not_recorded(kernel):
    """Their addresses do not tell which of them a kernel reads."""
    function, x = two_steps(kernel), aligned(4, 4)
    for _ in range(2):
        assert torch.equal(repeat(function, (x, x), (1.0,))[0], 4 * x.t())
    assert kernel.entries == 0
    other = aligned(4, 4)
    for _ in range(2):
        assert torch.equal(repeat(function, (x, other), (1.0,))[0], 2 * (x + other).t())
    assert kernel.entries == 2
    assert torch.equal(repeat(function, (x, x), (1.0,))[0], 4 * x.t())  # what was recorded reads both alike


@pytest.mark.parametrize("what", ["operation", "foreign memory", "part of a result", "no entry", "a float between"])
def test_what_cannot_be_repeated_runs_each_time(kernel, what):
    elsewhere = aligned(4, 4)
    if what == "no entry":
        kernel = WithoutEntry()
    if what == "a float between":
        kernel = WithFloat()

    def function(tensors, options):
        (x,) = tensors
        out = empty((2, *x.shape) if what == "part of a result" else x.shape, x.dtype, x.device)
        y = out[1] if what == "part of a result" else out
        source, shift = elsewhere if what == "foreign memory" else x, 0.5 if what == "a float between" else None
        launch(kernel, (3,), source, shift, y, x.numel(), 1.0, SHIFTED=False)
        return (y.add_(1.0) if what == "operation" else y,)

    for _ in range(3):
        x = aligned(4, 4)
        wanted = elsewhere if what == "foreign memory" else x + 1 if what == "operation" else x
        assert torch.equal(repeat(function, (x,), None)[0], wanted)
    assert kernel.entries == 0


class WithoutEntry(Kernel):
    """As in a version of Triton that returns nothing."""

    def __getitem__(self, grid):
        ordinary = super().__getitem__(grid)
        return lambda *arguments, **constants: ordinary(*arguments, **constants) and None


class WithFloat(Kernel):
    """With a number where the others have a pointer."""

    def __getitem__(self, grid):
        ordinary = super().__getitem__(grid)
        return lambda x, _, out, *rest, **constants: ordinary(x, None, out, *rest, **constants)


def test_an_argument_may_lie_inside_a_tensor(kernel):
    """Half of an input, and half of the workspace."""

    def function(tensors, options):
        (x,) = tensors
        both, out = empty((2, *x.shape[1:]), x.dtype, x.device), empty(x.shape[1:], x.dtype, x.device)
        n = out.numel()
        launch(kernel, (3,), x[1], None, both[1], n, 2.0, SHIFTED=False)
        launch(kernel, (3,), both[1], x[0], out, n, 1.0, SHIFTED=True)
        return (out,)

    for call in range(3):
        x = aligned(2, 8)
        assert torch.equal(repeat(function, (x,), None)[0], 2 * x[1] + x[0])
        assert kernel.entries == 2 * call


def test_a_pass_inside_a_pass_is_part_of_it(kernel):
    inner = two_steps(kernel)

    def function(tensors, options):
        (x,) = tensors
        out = empty(x.shape, x.dtype, x.device)
        (y, _) = repeat(inner, (x, None), (1.0,))
        launch(kernel, (3,), y.t(), None, out, x.numel(), 1.0, SHIFTED=False)
        return (out,)

    for call in range(3):
        x = aligned(4, 4)
        assert torch.equal(repeat(function, (x,), None)[0], 2 * x)
        assert kernel.entries == 3 * call


def test_no_more_than_so_many_passes(kernel, monkeypatch):
    monkeypatch.setattr(launcher, "MOST_PASSES", 3)
    function, x = two_steps(kernel), aligned(4, 4)
    for factor in range(10):
        for _ in range(2):
            assert torch.equal(repeat(function, (x, None), (float(factor),))[0], 2.0 * factor * x.t())
        assert len(launcher._recorded) <= 3


def test_empty_results_and_parameters(kernel):
    def function(tensors, options):
        (weight,) = tensors
        return empty((0, 3), weight.dtype, weight.device), empty((0,), torch.uint8, weight.device)

    weight = nn.Parameter(aligned(2, 2))
    for _ in range(2):
        one, other = repeat(function, (weight,), None)
        assert one.shape == (0, 3)
        assert other.dtype == torch.uint8


def test_parts_of_a_workspace():
    """Each starts at a multiple of 256 bytes and has its shape; nothing overlaps."""
    parts = [
        Region((3, 5), torch.float64),
        Region((0,), torch.float32),
        Region((7,), torch.bfloat16),
        Region((64,), torch.float32),
    ]
    assert [part.bytes for part in parts] == [256, 0, 256, 256]
    workspace = torch.zeros(sum(part.bytes for part in parts), dtype=torch.uint8)
    tensors = cut(workspace, parts)
    for number, (tensor, part) in enumerate(zip(tensors, parts, strict=True), start=1):
        assert (tuple(tensor.shape), tensor.dtype) == part
        assert not tensor.numel() or (tensor.data_ptr() - workspace.data_ptr()) % 256 == 0
        tensor.fill_(number)
    assert all(bool((tensor == number).all()) for number, tensor in enumerate(tensors, start=1))


def test_without_a_gpu_nothing_is_recorded():
    before, kernel = len(launcher._recorded), Kernel()
    for _ in range(2):
        x = aligned(2, 2)
        assert torch.equal(repeat(two_steps(kernel), (x, None), (1.0,))[0], 2 * x.t())
    assert (len(launcher._recorded), kernel.entries) == (before, 0)
