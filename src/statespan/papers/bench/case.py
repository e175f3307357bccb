"""The parts of a benchmark: a case is something to run, a row is its measurement.

Each case has its own reference. The runner compares the results with it before it times anything, so a wrong fast path
gets no time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from statespan.papers.bench.catalog import CATALOG, Listing

Tensors = Mapping[str, Tensor]

TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Allowed error of one SSM or layer by the dtype of its data: a few rounding errors, relative to the peak."""
DEPTH = 2.5
"""A model's tolerance over that of one layer: the rounding errors of all its layers add up."""

OK, WRONG, FAILED, SKIPPED = "ok", "wrong", "failed", "skipped"


@dataclass(frozen=True)
class Floor:
    """The least work of any implementation. Its time is the longer of the two parts.

    Example:
        >>> Floor(bytes=1e9, flops=0.0, how="x and y once").in_each_of(4, "layers").bytes
        4000000000.0
    """

    bytes: float  # moved through memory, at the rate of a plain copy
    flops: float  # of matrix products, at the rate of a large one in the same dtype
    how: str  # what was counted, in words

    def in_each_of(self, count: int, parts: str) -> Floor:
        """The floor of ``count`` such parts in sequence."""
        return Floor(count * self.bytes, count * self.flops, f"in each of {count} {parts} {self.how}")


@dataclass(frozen=True)
class Work:
    """A case that is ready to run.

    Example:
        >>> import torch
        >>> work = Work(run=lambda: {"output": torch.ones(2)}, reference=lambda: {"output": torch.ones(2)})
        >>> torch.equal(work.run()["output"], work.reference()["output"])
        True
    """

    run: Callable[[], Tensors]
    """What is timed. It returns the results by name: "output", and where it has a backward pass "input gradient"."""
    reference: Callable[[], Tensors] | None
    """The expected results; None if the case has nothing to compare with."""
    parameters: int | None = None  # number of trained parameters; None where it has no meaning
    peak_bytes: float | None = None  # measured while preparing, as a CUDA graph allocates nothing when it runs
    sample: Callable[[], Tensors] | None = None  # compared in place of ``run`` where the whole reference would not fit
    graph: bool = False  # also time it as a CUDA graph, which leaves out the cost of launching kernels


@dataclass(frozen=True)
class BenchRow:
    """One line of a result; the figures are None unless the status is "ok".

    Example:
        >>> slow, fast = (BenchRow("S4D", {"length": 1024}, time_ms=time) for time in (2.0, 0.5))
        >>> fast.speed_over(slow)
        4.0
    """

    name: str
    setting: Mapping[str, Any]  # the sizes
    status: str = OK  # or "wrong" (refused: the results are not the reference's), "failed", "skipped"
    time_ms: float | None = None  # median
    low_ms: float | None = None  # 20 % quantile
    high_ms: float | None = None  # 80 % quantile
    graph_ms: float | None = None  # median as a CUDA graph; None elsewhere and where it cannot be captured
    floor_ms: float | None = None  # the least time this machine needs for the work
    floor_how: str = ""
    ratio: float | None = None  # time_ms / floor_ms
    memory_mb: float | None = None  # peak of one run beyond inputs and parameters, in 10⁶ bytes
    parameters: int | None = None  # number of trained parameters
    error: float | None = None  # the largest of ``compared``; None if nothing was compared or it is not finite
    tolerance: float | None = None
    compared: Mapping[str, float | None] = field(default_factory=dict)
    """For each tensor the largest difference from the reference over the reference's peak."""
    reason: str = ""  # one line, for every status but "ok"
    notes: str = ""
    extra: Mapping[str, float] = field(default_factory=dict)  # figures of this benchmark alone, such as "speedup"

    def noted(self, note: str) -> BenchRow:
        """The row with one more note."""
        return replace(self, notes="; ".join(filter(None, [self.notes, note])))

    def figure(self, name: str) -> float | None:
        """A figure by its name, of every benchmark or of this one alone."""
        value = self.extra.get(name) if name in self.extra else getattr(self, name, None)
        return None if value is None else float(value)

    def speed_over(self, base: BenchRow, *, graphs: bool = True) -> float:
        """The speed relative to ``base``, from CUDA-graph times if both have them."""
        if graphs and self.graph_ms and base.graph_ms:
            return base.graph_ms / self.graph_ms
        return (base.time_ms or 0.0) / (self.time_ms or 1.0)

    def memory_over(self, base: BenchRow) -> float:
        """The peak memory relative to ``base``."""
        return (self.memory_mb or 0.0) / (base.memory_mb or 1.0)


@dataclass(frozen=True)
class Case:
    """Something to run.

    Example:
        >>> work = Work(run=dict, reference=None)
        >>> case = Case("nothing", {"length": 1024}, lambda: work, Floor(0.0, 0.0, "nothing"), tolerance=None)
        >>> case.prepare().run()
        {}
    """

    name: str  # such as "S4D fft"
    setting: Mapping[str, Any]  # its sizes, such as {"length": 1024}
    prepare: Callable[[], Work]  # makes parameters, inputs and reference; the random seed is set before each call
    floor: Floor
    tolerance: float | None  # allowed error; None where there is no reference
    optional: bool = False  # its failure is a finding, not a fault: baselines and variants not every machine can run
    notes: str = ""
    skip: Callable[[Sequence[BenchRow]], str | None] | None = None  # from the rows so far to the reason not to run it
    dtype: torch.dtype | None = None  # of this case's data, if not that of the run
    measure: Measure | None = None  # measures in place of the runner: time, memory and CUDA graph
    later: Measure | None = None  # adds figures after all cases have been timed, because measuring them disturbs times


@dataclass(frozen=True)
class BenchOptions:
    """The user's choices for a run.

    Example:
        >>> import torch
        >>> options = BenchOptions(torch.device("cpu"), torch.bfloat16, seed=0, quick=True, sizes={})
        >>> options.half, options.parameter_dtype
        (True, torch.float32)
    """

    device: torch.device
    dtype: torch.dtype  # of the data; float16 and bfloat16 run whole layers under autocast
    seed: int  # of parameters and inputs
    quick: bool  # small sizes, few repetitions
    sizes: Mapping[str, Any]  # those of the benchmark by name, with the user's changes
    reference: Path | None = None  # the user's folder with the papers' public code

    @property
    def half(self) -> bool:
        """Whether the data has half precision, so that layers run under autocast."""
        return self.dtype in (torch.float16, torch.bfloat16)

    @property
    def wide(self) -> torch.dtype:
        """The precision of references: float64, or float32 if the data itself is 10⁴ times coarser."""
        return torch.float32 if self.half else torch.float64

    @property
    def parameter_dtype(self) -> torch.dtype:
        """The precision of a layer's parameters: autocast keeps them in float32."""
        return torch.float32 if self.half else self.dtype

    @property
    def tolerance(self) -> float:
        """The allowed error of one SSM or layer."""
        return TOLERANCE[self.dtype]

    @property
    def model_tolerance(self) -> float:
        """The allowed error of a whole model."""
        return DEPTH * TOLERANCE[self.dtype]

    def autocast(self) -> torch.autocast:
        """The context that whole layers run in."""
        return torch.autocast(self.device.type, dtype=self.dtype if self.half else None, enabled=self.half)


Measure = Callable[[BenchRow, Work, BenchOptions], BenchRow]
Finish = Callable[[Sequence[BenchRow], BenchOptions], tuple[list[BenchRow], list[str]]]


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: what it runs, and what its rows say together. The catalog has its caption and sizes.

    Example:
        >>> Benchmark("op", cases=lambda options: []).listing.name
        'op'
    """

    name: str
    cases: Callable[[BenchOptions], Iterable[Case]]
    dtype: str = "bfloat16"  # the default on CUDA; on a CPU it is float32
    devices: tuple[str, ...] = ("cuda", "cpu")
    finish: Finish | None = None  # adds figures that need all rows, and returns the findings
    lines: bool = False  # the rows are points of curves over the length, one for each name
    rounds: int = 1  # times to measure all cases in turn on a CPU, as its background load varies over minutes
    rate: str = ""  # the figure to draw over the batch, one curve for each name
    columns: Mapping[str, str] = field(
        default_factory=dict
    )  # figures of the table and their headings, if not the usual
    sections: tuple[str, ...] = ()  # settings that head the table's sections and the panels of dots, if not the usual
    dots: Mapping[str, str] = field(
        default_factory=dict
    )  # figures to draw as dots in one line for each row, and labels
    on_cpu: Mapping[str, Any] = field(default_factory=dict)  # sizes in place of the usual ones on a CPU
    takes_reference: bool = False  # whether it also measures the papers' public code

    @property
    def listing(self) -> Listing:
        """Its summary, caption and sizes."""
        return CATALOG[self.name]


Ratios = Callable[[BenchRow, BenchRow], dict[str, float]]


def with_ratios(rows: Sequence[BenchRow], base_name: str, same: Sequence[str], ratios: Ratios) -> list[BenchRow]:
    """Add the ``ratios(row, base)`` of each row to the row ``base_name`` with the same settings ``same``."""

    def key(row: BenchRow) -> tuple[Any, ...]:
        return tuple(row.setting[name] for name in same)

    bases = {key(row): row for row in rows if row.name == base_name and row.status == OK}
    return [
        replace(row, extra=ratios(row, bases[key(row)])) if row.status == OK and key(row) in bases else row
        for row in rows
    ]


def with_rate(
    rows: Sequence[BenchRow], name: str, count: Callable[[BenchRow], float] = lambda row: row.setting["batch"]
) -> list[BenchRow]:
    """Add a figure ``name``: sequences, tokens or images per second, from their ``count`` in one run."""
    return [replace(row, extra={name: 1e3 * count(row) / row.time_ms}) if row.time_ms else row for row in rows]


def count_parameters(model: nn.Module, *, trained: bool = False) -> int:
    """The number of parameters of a model, or of its trained parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trained)
