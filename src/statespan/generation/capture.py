"""Repeated steps as CUDA graphs, without gaps between kernels.

A step reads and writes fixed tensors, so it can be recorded once and replayed. It may depend on small tensors on the
CPU (the positions in the frames of a U-Net): there is one graph for each of their values. The first step with a value
runs eagerly, as the warm-up that recording needs; the second one is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from statespan.nn.capture.recorder import CudaRecorder, Replay

__all__ = ["Captured", "CudaRecorder"]

Function = Callable[[], object]


class Captured:
    """A function without arguments and results, recorded and replayed.

    Args:
        function: Reads and writes the same tensors each time.
        host: Tensors on the CPU that it depends on and changes; all entries of each are equal.
        recorder: Where it runs.

    Example:
        >>> import torch
        >>> if torch.cuda.is_available():
        ...     x = torch.zeros(1, device="cuda")
        ...     step = Captured(lambda: x.add_(1), [], CudaRecorder(x.device))
        ...     for _ in range(3):  # the first call warms up, the second one records
        ...         step()
        ...     assert x.item() == 3
    """

    def __init__(self, function: Function, host: Sequence[Tensor], recorder: CudaRecorder) -> None:
        self.function, self.host, self.recorder = function, host, recorder
        self.seen: set[tuple[int, ...]] = set()
        self.replays: dict[tuple[int, ...], tuple[Replay, tuple[int, ...]]] = {}

    def __call__(self) -> None:
        """Call the function, or replay its graph."""
        before = self._values()
        if before in self.replays:
            replay, after = self.replays[before]
            for tensor, value in zip(self.host, after):
                tensor.fill_(value)
            replay()
        elif before in self.seen:
            replay, _ = self.recorder.record(self.function)  # changes the tensors on the CPU, and nothing else
            self.replays[before] = replay, self._values()
            replay()
        else:
            self.recorder.warm(self.function)
            self.seen.add(before)

    def _values(self) -> tuple[int, ...]:
        return tuple(int(tensor[0]) for tensor in self.host)
