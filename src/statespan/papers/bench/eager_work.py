"""One layer's pass as a training loop has it, and how its times are measured.

A pass drops the gradients of the pass before, runs the layer on x (B, L, D), or (B, D, L) in the papers' public code,
and fills the gradients of x and of all parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import statespan
from statespan._quiet import quiet
from statespan.models.reference import from_reference
from statespan.papers.bench.case import BenchOptions, BenchRow, Tensors, Work, count_parameters
from statespan.papers.bench.layer_work import wide_results
from statespan.papers.bench.loop_times import graph_time, host_time, profile_kernels, waiting, wall_times
from statespan.papers.bench.measure import measure_memory
from statespan.papers.bench.runner import one_line, timed
from statespan.papers.bench.training import CAPTURED

COMPILED, REDUCED = "torch.compile", "reduce-overhead"
WARM_UP = 5
"""Passes that compile or record: torch records its CUDA graphs in the second and replays them from the third on."""
SAME_MAP = 5e-2
"""Allowed difference between the public code and our layer with its weights, relative to the peak: the public code
computes its kernels in complex64, which only has to show that both are the same map."""


@dataclass
class Pass:
    """Forward and backward of a layer on x with output gradients dy, under autocast in half precision.

    Example:
        >>> options = BenchOptions(torch.device("cpu"), torch.float32, seed=0, quick=True, sizes={})
        >>> layer, x = nn.Linear(4, 4), torch.ones(2, 4, requires_grad=True)
        >>> Pass(layer, layer, x, torch.ones(2, 4), options)()
        {}
        >>> x.grad.shape
        torch.Size([2, 4])
    """

    layer: nn.Module
    call: Callable[[Tensor], Any]  # the layer, or what a variant makes of it
    x: Tensor
    dy: Tensor
    options: BenchOptions
    before: Callable[[], object] | None = None  # called before each pass

    def __post_init__(self) -> None:
        self.leaves = [self.x, *(p for p in self.layer.parameters() if p.requires_grad)]

    def forward(self) -> Tensor:
        """The output; the first of several if a layer also returns a state."""
        with self.options.autocast():
            y = self.call(self.x)
        return y[0] if isinstance(y, tuple) else y

    def begin(self) -> None:
        """Drop the gradients of the pass before."""
        for leaf in self.leaves:
            leaf.grad = None
        if self.before is not None:
            self.before()

    def __call__(self) -> Tensors:
        """The whole pass; what it leaves are the gradients."""
        self.begin()
        self.forward().backward(self.dy)
        return {}

    def results(self) -> Tensors:
        """Those of a pass, copied, because a CUDA graph of torch.compile overwrites its own."""
        self.begin()
        y = self.forward()
        output = y.detach().clone()
        y.backward(self.dy)
        gradients = {"input gradient": self.x.grad}
        gradients |= {f"gradient of {name}": p.grad for name, p in self.layer.named_parameters() if p.requires_grad}
        return {"output": output, **{name: g.clone() for name, g in gradients.items() if g is not None}}


def pass_work(
    make: Callable[[], nn.Module],
    options: BenchOptions,
    shape: tuple[int, int, int],
    *,
    variant: str | None = None,
    compared: bool = True,
    graph: bool = True,
) -> Work:
    """A layer's pass on x (B, L, D), compared with the layer itself in wide precision on the path "fft".

    ``variant`` is a way to call it: :data:`COMPILED`, :data:`REDUCED` or :data:`CAPTURED`. Only without one it can be
    a CUDA ``graph`` as a whole.
    """
    layer = make().to(options.device, options.parameter_dtype)
    x = torch.randn(shape, device=options.device).to(options.dtype).requires_grad_()
    once = Pass(layer, layer, x, x, options)
    once.dy = torch.randn(shape, device=options.device).to(options.dtype).to(once.forward().dtype)
    if variant is not None:
        _prepare(once, variant)

    def reference() -> Tensors:
        return wide_results(copy.deepcopy(layer), x.detach(), once.dy, options.wide)

    parameters = count_parameters(layer, trained=True)
    return Work(once, reference if compared else None, parameters, sample=once.results, graph=graph and variant is None)


def public_work(make: Callable[[], nn.Module], options: BenchOptions, shape: tuple[int, int, int]) -> Work:
    """The pass of a layer of the public code, compared with our layer that has its weights.

    Its x (B, D, L) is in float32, as torch.fft takes no bfloat16; under autocast its linear map has half precision.
    """
    layer = make().to(options.device, options.parameter_dtype)
    x = torch.randn(shape, device=options.device).to(options.parameter_dtype).mT.contiguous().requires_grad_()
    once = Pass(layer, layer, x, x, options)
    once.dy = torch.randn(shape, device=options.device).mT.contiguous().to(once.forward().dtype)

    def results() -> Tensors:
        found = once.results()
        return {name: found[name].mT for name in ("output", "input gradient")}

    def reference() -> Tensors:
        ours = from_reference(layer.state_dict(), device=options.device)
        wide = wide_results(ours, x.detach().mT, once.dy.mT, options.wide)
        return {name: wide[name] for name in ("output", "input gradient")}

    return Work(once, reference, count_parameters(layer, trained=True), sample=results)


def _prepare(once: Pass, variant: str) -> None:
    """Compile or capture the layer and run it until nothing changes any more, without torch's warnings on the way."""
    torch._dynamo.reset()
    with quiet():
        if variant == CAPTURED:
            once.call = statespan.capture(once.layer)
        else:
            once.call = torch.compile(once.layer, mode=REDUCED if variant == REDUCED else None)
        if variant == REDUCED:
            once.before = torch.compiler.cudagraph_mark_step_begin
        for _ in range(WARM_UP):
            once()


def measure(row: BenchRow, work: Work, options: BenchOptions) -> BenchRow:
    """Add the wall time and the peak memory; on a GPU "host_ms" too, and as a CUDA graph "device_ms"."""
    device, quick = options.device, options.quick
    wait = waiting(device)
    work.run()
    if isinstance(work.run, Pass):
        work.run.begin()  # the gradients of the pass before are no memory in use
    row = replace(row, memory_mb=measure_memory(work.run, device) / 1e6)
    row = timed(row, wall_times(work.run, wait, quick=quick))
    if device.type != "cuda":
        return row
    row = replace(row, extra={"host_ms": host_time(work.run, wait, quick=quick)})
    if not work.graph:
        return row
    try:
        graph = graph_time(work.run, device, quick)
    except RuntimeError as error:  # the sum over kernels takes its place
        return row.noted(f"no CUDA graph: {one_line(error)}")
    return replace(row, graph_ms=graph, extra={**row.extra, "device_ms": graph}) if graph else row


def measure_kernels(row: BenchRow, work: Work, options: BenchOptions) -> BenchRow:
    """Add the "launches" of a pass, and "device_ms" if there is none yet."""
    kernels = profile_kernels(work.run, options.device)
    if "device_ms" not in row.extra:
        row = row.noted("device: the sum of its kernels")
    return replace(row, extra={"device_ms": kernels.ms, **row.extra, "launches": kernels.launches})
