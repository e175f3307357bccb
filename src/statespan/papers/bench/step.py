"""`step`: one step of one layer, and the drift of thousands of steps from the convolution.

The error of a row is the drift of its states: over ``steps`` steps of noise through a small layer of the same kind, the
largest difference from the convolution in float64, relative to the peak.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from statespan.ops import fftconv
from statespan.papers.bench.case import Benchmark, BenchOptions, Case, Floor, Tensors, Work, count_parameters
from statespan.papers.bench.layer_work import KINDS

STATES = {"float32": torch.float32, "float64": torch.float64}
DRIFT = 2e-6
"""Allowed difference over all steps in float32, relative to the peak."""
HEADS = 4


def cases(options: BenchOptions) -> Iterator[Case]:
    """Each layer with states of each precision, at each batch."""
    sizes = options.sizes
    D, N = sizes["d_model"], sizes["d_state"]
    for kind in KINDS:
        for states in STATES:
            for batch in sizes["batches"]:
                row = D * N * (4 if states == "float32" else 8)
                floor = Floor(2.0 * batch * row, 10.0 * batch * D * N, "states of all rows read and written")
                setting = {"batch": batch, "d_model": D, "d_state": N}
                tolerance = max(DRIFT, options.tolerance if options.half else 0.0)
                prepare = partial(_work, options, kind, states, batch)
                yield Case(f"{kind}, {states} states", setting, prepare, floor, tolerance, optional=batch > 1)


def _work(options: BenchOptions, kind: str, states: str, batch: int) -> Work:
    sizes, device = options.sizes, options.device
    layer = KINDS[kind](sizes["d_model"], sizes["d_state"], mix=None, device=device).to(options.dtype).eval()
    small = KINDS[kind](HEADS, sizes["d_state"], mix=None, activation=None, device=device).eval()
    noise = torch.randn(1, sizes["steps"], HEADS, device=device)
    state = layer.initial_state(batch, dtype=STATES[states])
    x = torch.randn(batch, sizes["d_model"], device=device).to(options.dtype)
    with torch.no_grad():
        step = layer.stepper(in_place=True)

    @torch.no_grad()
    def run() -> Tensors:
        return {"output": step(x, state)[0]}

    @torch.no_grad()
    def drift() -> Tensors:
        advance, state = small.stepper(in_place=True), small.initial_state(1, dtype=STATES[states])
        return {"output": torch.stack([advance(noise[:, t], state)[0] for t in range(noise.shape[1])], 1)}

    @torch.no_grad()
    def convolved() -> Tensors:
        kernel = small.structure().kernel(noise.shape[1]).double()
        y = fftconv(noise.double(), kernel)[:, :, 0] + small.D.double() * noise.double()
        return {"output": y}

    return Work(run, convolved, count_parameters(layer), sample=drift, graph=True)


BENCHMARK = Benchmark("step", cases)
