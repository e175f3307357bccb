"""Records the kernel launches of a pass and replays them with little host overhead.

``kernel[grid](…)`` inspects every argument to find the matching compiled kernel, which can take longer than a small
kernel runs. A pass (a function that only allocates memory and launches kernels) makes the same launches at every call
with tensors of the same form. :func:`repeat` therefore records its launches at the first call. Later calls allocate the
results and one workspace, and call each compiled kernel's own entry point with raw addresses.

Other passes are launched through Triton as usual: in the interpreter, with unaligned tensors or a profiler's launch
hooks, in a version of Triton without this entry point, and if a pass runs other operations than its own kernels.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
import triton
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Tensors: TypeAlias = Sequence[Tensor | None]
Pass: TypeAlias = Callable[[Tensors, Any], Tensors]
"""``function(tensors, options)`` returns tensors that it has allocated, each as a whole, or None."""

ALIGNED = 16  # bytes: pointers so aligned have a compiled form of their own
PART = 256  # bytes at which each part of a workspace starts
MOST_PASSES = 4096  # recorded before the cache is cleared, for programs that never repeat a shape
_recording = threading.local()
_recorded: dict[Hashable, Repeat | None] = {}
"""The recorded passes; None for those that cannot be replayed."""
_UNKNOWN = object()


class Region(NamedTuple):
    """The shape of a part of a workspace."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """The bytes that it takes, with its padding."""
        size = self.dtype.itemsize
        for count in self.shape:
            size = size * count
        return -(-size // PART) * PART


def cut(workspace: Tensor, parts: Sequence[Region]) -> list[Tensor]:
    """Cut the parts out of a workspace of bytes, one behind the other."""
    tensors, start = [], 0
    for part in parts:
        size = part.bytes
        flat = workspace[start : start + size].view(part.dtype)
        count = torch.Size(part.shape).numel()
        tensors.append(flat[:count].view(part.shape))
        start += size
    return tensors


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Uninitialised memory, which a recorded pass takes from its workspace unless it returns it."""
    tensor = torch.empty(tuple(shape), dtype=dtype, device=device)
    recorder = getattr(_recording, "recorder", None)
    if recorder is not None:
        recorder.allocations.append(tensor)
    return tensor


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """``kernel[grid](*arguments, **constants)``; pointers come first among the arguments."""
    if is_traced():
        torch.library.wrap_triton(kernel)[grid](*arguments, **constants)
        return
    compiled = kernel[grid](*arguments, **constants)
    recorder = getattr(_recording, "recorder", None)
    if recorder is not None:
        recorder.note(kernel, compiled, grid, arguments, constants)


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Let a compiler trace the launches in this block, which work on its tensors."""
    before, _recording.traced = is_traced(), True
    try:
        yield
    finally:
        _recording.traced = before


def is_traced() -> bool:
    """Whether a compiler traces the launches. It needs whole tensors that a kernel writes, not views of them."""
    return getattr(_recording, "traced", False)


def repeat(function: Pass, tensors: Tensors, options: Hashable) -> Tensors:
    """Call ``function(tensors, options)``; from the second call with tensors of the same form on, replay its launches.

    Args:
        function: The same object at each call. What it does depends on nothing but the form of the tensors (shapes,
            strides, dtypes, devices) and the options.
        tensors: What it reads; the first is not None.
        options: Hashable.
    """
    first = tensors[0]
    assert first is not None
    if is_traced() or not _has_entry(first) or getattr(_recording, "recorder", None) is not None:
        return function(tensors, options)
    with _current(first.device):
        form: list[Any] = [function, options]
        addresses, bits = [0], 0
        for tensor in tensors:
            if tensor is None:
                form.append(None)
                addresses.append(0)
            else:
                form.append((tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device()))
                address = tensor.data_ptr()
                addresses.append(address)
                bits |= address
        if bits % ALIGNED or _is_hooked():
            return function(tensors, options)
        key = tuple(form)
        recorded = _recorded.get(key, _UNKNOWN)
        if isinstance(recorded, Repeat):
            return recorded(addresses, first.device)
        if recorded is None or _overlap(tensors):
            return function(tensors, options)
        return _record(key, function, tensors, options)


def _record(key: Hashable, function: Pass, tensors: Tensors, options: Hashable) -> Tensors:
    """Run a pass and record its launches."""
    recorder = _PassRecorder(tensors)
    _recording.recorder = recorder
    try:
        with recorder:
            results = function(tensors, options)
    finally:
        _recording.recorder = None
    if len(_recorded) >= MOST_PASSES:
        _recorded.clear()
    _recorded[key] = recorder.finish(results)
    return results


class _Launch(NamedTuple):
    """A launch of a compiled kernel."""

    entry: Callable[..., None]
    before: tuple[Any, ...]
    """The grid."""
    handles: tuple[Any, ...]
    """The function and the metadata."""
    pointers: tuple[tuple[int, int], ...]
    """For each pointer, the number of its tensor and the offset in it; number 0 is the address 0."""
    rest: tuple[Any, ...]
    """The other arguments."""


class _Result(NamedTuple):
    """A tensor that a pass returns."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


class Repeat:
    """The launches of a pass. Tensors are numbered from 1: those it reads, those it returns, then the workspace."""

    def __init__(self, launches: list[_Launch], results: list[_Result | None], workspace: int) -> None:
        self.launches, self.results, self.workspace = launches, results, workspace

    def __call__(self, starts: list[int], device: torch.device) -> list[Tensor | None]:
        """Launch all kernels with tensors at these addresses, after 0, on this device; returns new results."""
        results: list[Tensor | None] = []
        for form in self.results:
            if form is None:
                results.append(None)
                starts.append(0)
            else:
                result = torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device=device)
                results.append(result)
                starts.append(result.data_ptr())
        if self.workspace:
            workspace = torch.empty(self.workspace, dtype=torch.uint8, device=device)
            starts.append(workspace.data_ptr())
        stream = _stream(device)
        for entry, grid, handles, pointers, rest in self.launches:
            entry(
                *grid, stream, *handles, None, None, None, *[starts[i] + offset for i, offset in pointers], *rest
            )  # fmt: skip
        return results


class _CannotRepeatError(Exception):
    """The pass does something other than allocating and launching."""


class _PassRecorder(TorchDispatchMode):
    """Records the launches of a pass, and whether they can be replayed."""

    def __init__(self, tensors: Tensors) -> None:
        super().__init__()
        self.tensors = list(tensors)
        self.allocations: list[Tensor] = []
        self.notes: list[tuple[Any, ...]] = []
        self.is_repeatable = len({t.device for t in tensors if t is not None}) == 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation; all but views and allocations prevent a replay."""
        if not (func.is_view or func.overloadpacket in _ALLOCATIONS):
            self.is_repeatable = False
        return func(*args, **(kwargs or {}))

    def note(
        self, kernel: Any, compiled: Any, grid: tuple[int, ...], arguments: Sequence[Any], constants: dict[str, Any]
    ) -> None:
        """Record a launch."""
        self.notes.append((kernel, compiled, grid, arguments, constants))

    def finish(self, results: Tensors) -> Repeat | None:
        """The launches, or None if they cannot be replayed."""
        if not self.is_repeatable:
            return None
        returned = [None if r is None else self._allocation(r) for r in results]
        kept = {id(x) for x in returned if x is not None}
        if len(kept) != sum(r is not None for r in results):
            return None  # something is returned twice or in part, or was not allocated here
        scratch = [x for x in self.allocations if id(x) not in kept]
        parts = [Region(tuple(x.shape), x.dtype) for x in scratch]
        starts = [sum(part.bytes for part in parts[:i]) for i in range(len(parts))]
        numbered = [*self.tensors, *returned]
        places = [(t, number, 0) for number, t in enumerate(numbered, start=1) if t is not None]
        places += [(x, len(numbered) + 1, start) for x, start in zip(scratch, starts)]
        try:
            launches = [_launch_of(note, places) for note in self.notes]
        except _CannotRepeatError:
            return None
        made = [None if r is None else _Result(r.shape, r.stride(), r.dtype) for r in results]
        return Repeat(launches, made, sum(part.bytes for part in parts))

    def _allocation(self, result: Tensor) -> Tensor | None:
        """The allocation that a result fills completely, or None."""
        if not result.numel():
            return result
        for x in self.allocations:
            if x.data_ptr() == result.data_ptr() and x.numel() == result.numel() and x.dtype == result.dtype:
                return x
        return None


_ALLOCATIONS = {torch.ops.aten.empty, torch.ops.aten.empty_strided, torch.ops.aten.empty_like, torch.ops.aten.new_empty}


def _launch_of(note: tuple[Any, ...], places: list[tuple[Tensor, int, int]]) -> _Launch:
    kernel, compiled, grid, arguments, constants = note
    try:
        handles = (compiled.function, compiled.packed_metadata)
        names = kernel.arg_names
        entry = compiled.run
    except AttributeError:
        raise _CannotRepeatError from None
    arguments = [*arguments, *[constants[name] for name in names[len(arguments) :]]]
    last = max((i for i, x in enumerate(arguments) if isinstance(x, Tensor)), default=-1)
    pointers = tuple(_place(x, places) for x in arguments[: last + 1])
    return _Launch(entry, (*grid, 1, 1)[:3], handles, pointers, tuple(arguments[last + 1 :]))


def _place(x: Any, places: list[tuple[Tensor, int, int]]) -> tuple[int, int]:
    """The number of the tensor in which an argument lies and its offset there; other arguments are offsets from 0."""
    if x is None or (isinstance(x, Tensor) and not x.numel()):
        return 0, 0  # never read
    if isinstance(x, int):
        return 0, x
    if not isinstance(x, Tensor):
        raise _CannotRepeatError
    for tensor, number, start in places:
        offset = x.data_ptr() - tensor.data_ptr()
        if 0 <= offset < _extent(tensor):
            return number, start + offset
    raise _CannotRepeatError


def _extent(x: Tensor) -> int:
    """The bytes from the first to the last number of a tensor."""
    if not x.numel():
        return 0
    return (1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride()))) * x.itemsize


def _overlap(tensors: Tensors) -> bool:
    """Whether two of them share memory, which makes an address ambiguous."""
    spans = sorted((t.data_ptr(), t.data_ptr() + _extent(t)) for t in tensors if t is not None and t.numel())
    return any(end > start for (_, end), (start, _) in itertools.pairwise(spans))


def _has_entry(x: Tensor) -> bool:
    """Whether compiled kernels can be called directly, which the interpreter's cannot."""
    return x.is_cuda and _KNOBS is not None and not _INTERPRETED


def _is_hooked() -> bool:
    """Whether a profiler has registered a launch hook."""
    hook = getattr(_KNOBS, "launch_enter_hook", None)
    return hook is not None and bool(getattr(hook, "calls", True))


def _stream(device: torch.device) -> int:
    """The current stream."""
    return int(torch._C._cuda_getCurrentRawStream(device.index))


def _current(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Make a device the current one, where kernels are launched."""
    return _UNCHANGED if torch._C._cuda_getDevice() == device.index else torch.cuda.device(device)


_KNOBS: Any = getattr(getattr(triton, "knobs", None), "runtime", None)
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_UNCHANGED: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
