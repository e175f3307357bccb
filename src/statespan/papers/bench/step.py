"""`step`: one step of one layer, and how far thousands of them stay from the convolution.

The comparison is over ``steps`` steps of noise through a small layer of the same kind: the largest difference from the
convolution in float64, over the peak. So the error of a row is the drift of its states.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from statespan import S4, S4D
from statespan.ops import fftconv
from statespan.papers.bench.case import Case, Floor, Settings, Tensors, Work
from statespan.papers.bench.compare import TOLERANCE
from statespan.papers.bench.listing import LISTED
from statespan.papers.bench.registry import Benchmark

KINDS = {"S4D": S4D, "S4": S4}
STATES = {"float32": torch.float32, "float64": torch.float64}
DRIFT = 2e-6
"""Allowed difference over all steps in float32, of the peak."""
HEADS = 4


def cases(settings: Settings) -> Iterator[Case]:
    """Each layer with states of each precision, at each batch."""
    sizes = settings.sizes
    D, N = sizes["d_model"], sizes["d_state"]
    for kind in KINDS:
        for states in STATES:
            for batch in sizes["batches"]:
                row = D * N * (4 if states == "float32" else 8)
                floor = Floor(2.0 * batch * row, 10.0 * batch * D * N, "states of all rows read and written")
                setting = {"batch": batch, "d_model": D, "d_state": N}
                tolerance = max(DRIFT, TOLERANCE[settings.dtype] if settings.half else 0.0)
                prepare = partial(_work, settings, kind, states, batch)
                yield Case(f"{kind}, {states} states", setting, prepare, floor, tolerance, optional=batch > 1)


def _work(settings: Settings, kind: str, states: str, batch: int) -> Work:
    sizes, device = settings.sizes, settings.device
    layer = KINDS[kind](sizes["d_model"], sizes["d_state"], mix=None, device=device).to(settings.dtype).eval()
    small = KINDS[kind](HEADS, sizes["d_state"], mix=None, activation=None, device=device).eval()
    noise = torch.randn(1, sizes["steps"], HEADS, device=device)
    state = layer.initial_state(batch, dtype=STATES[states])
    x = torch.randn(batch, sizes["d_model"], device=device).to(settings.dtype)
    with torch.no_grad():
        step = layer.stepper(in_place=True)

    @torch.no_grad()
    def run() -> Tensors:
        return {"output": step(x, state)[0]}

    @torch.no_grad()
    def drift() -> Tensors:
        advance, now = small.stepper(in_place=True), small.initial_state(1, dtype=STATES[states])
        return {"output": torch.stack([advance(noise[:, t], now)[0] for t in range(noise.shape[1])], 1)}

    @torch.no_grad()
    def wanted() -> Tensors:
        kernel = small.structure().kernel(noise.shape[1]).double()
        y = fftconv(noise.double(), kernel)[:, :, 0] + small.D.double() * noise.double()
        return {"output": y}

    parameters = sum(p.numel() for p in layer.parameters())
    return Work(run, wanted, parameters, sample=drift, graph=True)


BENCHMARK = Benchmark(
    LISTED["step"],
    caption=(
        "One step of S4D and S4 with GELU, states updated in place. The error is that of all steps of noise, from the "
        "convolution in float64."
    ),
    cases=cases,
)
