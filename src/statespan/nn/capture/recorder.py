"""Records functions as CUDA graphs.

A graph runs the same kernels on the same memory each time, without the host. So a recorded function reads and writes
fixed tensors, has sizes that do not depend on data, and never waits for the device.
"""

from __future__ import annotations

import contextlib
import gc
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")
Replay = Callable[[], object]
ErrorMode = Literal["global", "thread_local"]


class CannotCaptureError(RuntimeError):
    """A function cannot be recorded; most often it synchronizes with the device (``.item()``, data-dependent sizes).

    Example:
        >>> from statespan.nn.capture.call import Call
        >>> Call([], {}, None)
        Traceback (most recent call last):
            ...
        statespan.nn.capture.recorder.CannotCaptureError: neither it nor its arguments have tensors
    """


@contextlib.contextmanager
def no_waiting() -> Iterator[None]:
    """Make synchronization an error: during capture it would leave torch in a bad state."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode says that it is a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        except RuntimeError as error:
            raise CannotCaptureError(str(error).partition("\n")[0]) from error
        finally:
            torch.cuda.set_sync_debug_mode("default")


class RandomState(NamedTuple):
    """Random numbers on the device, which a graph draws anew in each run, and on the host, which it cannot draw.

    Example:
        >>> state = RandomState(torch.get_rng_state(), (random.getstate(),))  # as CudaRecorder.random_state returns it
        >>> random.setstate(state.host[0])
    """

    device: Tensor
    host: tuple[Any, ...]


class Recorder(Protocol):
    """What a captured module needs of a recorder; the tests have one that runs on a CPU.

    Example:
        >>> recorder: type[Recorder] = CudaRecorder
        >>> recorder.obstacle(torch.device("cpu"))
        'CUDA graphs need a CUDA device, and it is on cpu'
    """

    def __init__(self, device: torch.device) -> None: ...

    @staticmethod
    def obstacle(device: torch.device) -> str | None:
        """Why nothing can be recorded on this device, or None."""

    @staticmethod
    def is_recording() -> bool:
        """Whether another recording is under way around this call."""

    def warm(self, function: Callable[[], T], *, strict: bool = False) -> T:
        """Run a function on the recording stream; with ``strict``, synchronization raises a CannotCaptureError."""

    def record(self, function: Callable[[], T]) -> tuple[Replay, T]:
        """Record a function without running it. Returns its replay, and its result, which each replay overwrites."""

    def order(self) -> None:
        """Make the current stream wait for the last replay, which uses the same memory, maybe on another stream."""

    def free_memory(self) -> None:
        """Release cached memory, which a recording cannot use."""

    def random_state(self) -> RandomState:
        """The state of all random numbers."""

    def set_random_state(self, state: RandomState) -> None:
        """Set it."""


class CudaRecorder:
    """CUDA graphs that share one memory pool.

    What one graph leaves in the pool for a later one (activations for a backward pass) must be read before any other
    graph of the recorder runs.

    Args:
        device: A CUDA device.

    Example:
        >>> CudaRecorder.obstacle(torch.device("cpu"))
        'CUDA graphs need a CUDA device, and it is on cpu'
        >>> if torch.cuda.is_available():
        ...     x = torch.zeros(2, device="cuda")
        ...     replay, y = CudaRecorder(x.device).record(lambda: x + 1)
        ...     replay()
        ...     assert y.tolist() == [1.0, 1.0]
    """

    errors: ClassVar[ErrorMode] = "global"
    """Which threads must not allocate memory while a graph is recorded."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.last: torch.cuda.Stream | None = None

    @staticmethod
    def obstacle(device: torch.device) -> str | None:
        """See :class:`Recorder`."""
        return None if device.type == "cuda" else f"CUDA graphs need a CUDA device, and it is on {device}"

    @staticmethod
    def is_recording() -> bool:
        """See :class:`Recorder`."""
        return torch.cuda.is_current_stream_capturing()

    def warm(self, function: Callable[[], T], *, strict: bool = False) -> T:
        """Run a function eagerly, on the stream of the recordings."""
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        try:
            with torch.cuda.stream(self.stream), no_waiting() if strict else contextlib.nullcontext():
                return function()
        finally:
            current.wait_stream(self.stream)

    def record(self, function: Callable[[], T]) -> tuple[Replay, T]:
        """Capture a function without running its kernels; the first result runs them."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        # torch.cuda.graph would also return all free memory, which takes seconds for dozens of small graphs
        collects = gc.isenabled()
        gc.disable()  # nothing may be freed in the middle of a recording
        try:
            with torch.cuda.stream(self.stream):
                graph.capture_begin(pool=self.pool, capture_error_mode=self.errors)
                try:
                    result = function()
                except BaseException:
                    self._abandon(graph)
                    raise
                try:
                    graph.capture_end()
                except RuntimeError:
                    self._mend()
                    raise
        finally:
            if collects:
                gc.enable()
        return graph.replay, result

    def order(self) -> None:
        """See :class:`Recorder`."""
        stream = torch.cuda.current_stream(self.device)
        if self.last is not None and self.last != stream:
            stream.wait_stream(self.last)
        self.last = stream

    def free_memory(self) -> None:
        """See :class:`Recorder`."""
        torch.cuda.empty_cache()

    def random_state(self) -> RandomState:
        """See :class:`Recorder`."""
        host = (random.getstate(), _numpy_state(), torch.get_rng_state().numpy().tobytes())
        return RandomState(torch.cuda.get_rng_state(self.device), host)

    def set_random_state(self, state: RandomState) -> None:
        """See :class:`Recorder`."""
        torch.cuda.set_rng_state(state.device, self.device)
        python, numpy, cpu = state.host
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(torch.frombuffer(bytearray(cpu), dtype=torch.uint8))

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        try:
            graph.capture_end()
        except RuntimeError:  # the error that stopped the function is the one to report
            self._mend()

    def _mend(self) -> None:
        """Clean up after a failed recording, so that later random numbers on the device do not raise errors.

        torch ends the allocations of a graph and the recording of random numbers only if CUDA accepts the graph. A
        small graph that it does accept ends the latter.
        """
        with contextlib.suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(self.device.index or 0, self.pool)
        self.pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream(self.device)
        with contextlib.suppress(RuntimeError), torch.cuda.stream(stream):
            number, graph = torch.zeros((), device=self.device), torch.cuda.CUDAGraph()
            graph.capture_begin()
            number.zero_()
            graph.capture_end()


class LoopRecorder(CudaRecorder):
    """The same in the middle of a training loop, whose data loader has threads that allocate memory.

    Example:
        >>> LoopRecorder.errors, CudaRecorder.errors
        ('thread_local', 'global')
        >>> LoopRecorder.obstacle(torch.device("cpu"))
        'CUDA graphs need a CUDA device, and it is on cpu'
    """

    errors = "thread_local"


def _numpy_state() -> tuple[Any, ...]:
    """The state of numpy's generator, in a form that can be compared."""
    name, key, *rest = np.random.get_state()
    return name, tuple(key), *rest
