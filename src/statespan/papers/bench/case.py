"""What a benchmark is made of: a case is something to run, a row is what the runner found.

A case brings its own reference, and the runner times nothing whose results it has not compared with that reference in
the same run. So a fast path that is wrong has no time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]

OK, WRONG, FAILED, SKIPPED = "ok", "wrong", "failed", "skipped"


@dataclass(frozen=True)
class Floor:
    """The least that any implementation must do. Its time is the longer of the two parts, each at the machine's rate.

    Args:
        bytes: To move through memory; the rate is that of a plain copy.
        flops: Of matrix products; the rate is that of a large one in the same dtype.
        how: What was counted, in words.
    """

    bytes: float
    flops: float
    how: str


@dataclass(frozen=True)
class Work:
    """A case made ready to run.

    Args:
        run: What is timed. It returns the results by name: "output", and where it has a backward pass "input gradient".
        reference: What those results must be; None where the case is a model of its own with nothing to compare to.
        parameters: How many parameters are trained; None where that says nothing.
        peak_bytes: Peak memory, where it was found while preparing (a CUDA graph allocates nothing when it runs).
        sample: The same on few sequences, compared in place of ``run`` where the reference of all would not fit.
        graph: Whether to time it as a CUDA graph too, which leaves out the cost of launching kernels.
    """

    run: Callable[[], Tensors]
    reference: Callable[[], Tensors] | None
    parameters: int | None = None
    peak_bytes: float | None = None
    sample: Callable[[], Tensors] | None = None
    graph: bool = False


@dataclass(frozen=True)
class Row:
    """One line of a result.

    Args:
        name: What ran.
        setting: Its sizes.
        status: "ok", "wrong" (refused: the results are not the reference's), "failed" or "skipped".
        time_ms: Median time; None unless the status is "ok", as for all figures below.
        low_ms: The 20 % quantile.
        high_ms: The 80 % quantile.
        graph_ms: Median time replayed as a CUDA graph, which leaves out the cost of launching kernels; None elsewhere
            and where it cannot be captured.
        floor_ms: The least time the machine needs for what must be done.
        floor_how: How that was computed.
        ratio: ``time_ms / floor_ms``.
        memory_mb: Peak memory of one run beyond inputs and parameters, in 10⁶ bytes.
        parameters: How many parameters are trained.
        error: Largest difference from the reference over the reference's peak, over all compared tensors; None if
            nothing was compared or it is not finite.
        tolerance: What it may be.
        compared: The error of each compared tensor.
        reason: One line, for every status but "ok".
        notes: One line.
        extra: Figures of this benchmark alone, e.g. "copies" or "speedup".
    """

    name: str
    setting: Mapping[str, Any]
    status: str = OK
    time_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    graph_ms: float | None = None
    floor_ms: float | None = None
    floor_how: str = ""
    ratio: float | None = None
    memory_mb: float | None = None
    parameters: int | None = None
    error: float | None = None
    tolerance: float | None = None
    compared: Mapping[str, float | None] = field(default_factory=dict)
    reason: str = ""
    notes: str = ""
    extra: Mapping[str, float] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Case:
    """Something to run.

    Args:
        name: What runs, e.g. "S4D fft".
        setting: Its sizes, e.g. ``{"length": 1024}``.
        prepare: Makes parameters, inputs and reference; the random seed is set before each call.
        floor: The least that must be done.
        tolerance: Allowed error; None for a model of its own.
        optional: Its failure is a finding, not a fault: baselines and variants that not every machine can run.
        notes: One line for the table.
        skip: From the rows so far to the reason not to run this one, or None.
    """

    name: str
    setting: Mapping[str, Any]
    prepare: Callable[[], Work]
    floor: Floor
    tolerance: float | None
    optional: bool = False
    notes: str = ""
    skip: Callable[[Sequence[Row]], str | None] | None = None


@dataclass(frozen=True)
class Settings:
    """What the user chose for a run.

    Args:
        device: Where it runs.
        dtype: The precision of the data; float16 and bfloat16 run whole layers under autocast.
        seed: Of parameters and inputs.
        quick: Small sizes, few repetitions.
        sizes: The benchmark's sizes by name, with the user's changes.
    """

    device: torch.device
    dtype: torch.dtype
    seed: int
    quick: bool
    sizes: Mapping[str, Any]

    @property
    def half(self) -> bool:
        """Whether the data has half precision, so that layers run under autocast."""
        return self.dtype in (torch.float16, torch.bfloat16)

    @property
    def wide(self) -> torch.dtype:
        """The precision of references: float64, or float32 where the data itself is 10⁴ times coarser."""
        return torch.float32 if self.half else torch.float64

    @property
    def parameter_dtype(self) -> torch.dtype:
        """Of a layer's parameters: autocast keeps them in float32."""
        return torch.float32 if self.half else self.dtype

    def autocast(self) -> torch.autocast:
        """The context that whole layers run in."""
        return torch.autocast(self.device.type, dtype=self.dtype if self.half else None, enabled=self.half)
