"""Repeated steps as CUDA graphs, without gaps between kernels.

A step reads and writes fixed tensors, so it can be recorded once and replayed. It may depend on small tensors on the
CPU (the positions in the frames of a U-Net): there is one graph for each of their values. The first step with a value
runs eagerly, as the warm-up that recording needs; the second one is recorded.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Function = Callable[[], object]


class CudaRecorder:
    """CUDA graphs that share one memory pool, because none needs another's allocations."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()

    def warm(self, function: Function) -> None:
        """Run a function eagerly, on the capture stream."""
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            function()
        current.wait_stream(self.stream)

    def record(self, function: Function) -> Function:
        """Capture a function without running its kernels; the result runs them."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        # torch.cuda.graph would return all free memory each time, which takes seconds for dozens of small graphs
        collects = gc.isenabled()
        gc.disable()  # nothing may be freed in the middle of a recording
        try:
            with torch.cuda.stream(self.stream):
                graph.capture_begin(pool=self.pool)
                try:
                    function()
                finally:
                    graph.capture_end()
        finally:
            if collects:
                gc.enable()
        return graph.replay


class Captured:
    """A function without arguments and results, recorded and replayed.

    Args:
        function: Reads and writes the same tensors each time.
        host: Tensors on the CPU that it depends on and changes; all entries of each are equal.
        recorder: Where it runs.
    """

    def __init__(self, function: Function, host: Sequence[Tensor], recorder: CudaRecorder) -> None:
        self.function, self.host, self.recorder = function, host, recorder
        self.seen: set[tuple[int, ...]] = set()
        self.replays: dict[tuple[int, ...], tuple[Function, tuple[int, ...]]] = {}

    def __call__(self) -> None:
        """Call the function, or replay its graph."""
        before = self._values()
        if before in self.replays:
            replay, after = self.replays[before]
            for tensor, value in zip(self.host, after):
                tensor.fill_(value)
            replay()
        elif before in self.seen:
            replay = self.recorder.record(self.function)  # changes the tensors on the CPU, and nothing else
            self.replays[before] = replay, self._values()
            replay()
        else:
            self.recorder.warm(self.function)
            self.seen.add(before)

    def _values(self) -> tuple[int, ...]:
        return tuple(int(tensor[0]) for tensor in self.host)
