"""The rows of `cpu` where calls cost more than arithmetic: short sequences, repeated evaluation, and single steps.

Shapes: B batch, L length, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from statespan.nn import Backbone
from statespan.papers.bench import naive
from statespan.papers.bench.case import BenchOptions, BenchRow, Case, Floor, Tensors, Work, count_parameters
from statespan.papers.bench.layer_work import KINDS, layer_work, ssm_floor

TRAINING, EVALUATION, STEP = "short, training", "short, evaluation", "one step"
KEPT, MADE = "set-up kept", "set-up made"
LSTM = "LSTM"
NAIVE = {"S4D": ("Vandermonde, c64", naive.vandermonde), "S4": ("Cauchy, one matrix, c64", naive.cauchy)}
ROUNDED = 1e-3
"""Allowed error with a matrix in complex64; see :mod:`statespan.papers.bench.cpu`."""


def short_cases(options: BenchOptions) -> Iterator[Case]:
    """Each SSM in each of the three uses, beside the naive kernel or an LSTM."""
    (batch, length, D), N = options.sizes["short"], options.sizes["d_state"]
    floor = ssm_floor(options, batch * length, D, 2 * D)
    setting = {"length": length, "batch": batch, "d_model": D, "d_state": N}
    for kind, layer in KINDS.items():
        make, training = partial(layer, D, N), {"part": TRAINING, **setting}
        work = partial(layer_work, make, options, batch, length)
        yield Case(kind, training, work, floor, options.tolerance)
        label, kernel = NAIVE[kind]
        slow = partial(work, forward=naive.forward_with(kernel))
        yield Case(f"{kind} naive {label}", training, slow, floor, max(options.tolerance, ROUNDED))
        for how in (KEPT, MADE):
            evaluate = partial(_evaluation, make, options, (batch, length, D), how == KEPT)
            name = f"{kind}, {how}"
            yield Case(name, {"part": EVALUATION, **setting}, evaluate, floor, options.tolerance)
    D, layers = options.sizes["steps"]
    setting = {"part": STEP, "length": 1, "batch": 1, "d_model": D, "d_state": N, "layers": layers}
    for kind, layer in KINDS.items():
        floor = Floor(layers * (2.0 * D * N * 8 + 2.0 * D * D * 4), layers * 4.0 * D * D, "states and weights")
        yield Case(kind, setting, partial(_steps, partial(layer, D, N), options, D, layers), floor, options.tolerance)
    floor = Floor(layers * 8.0 * D * D * 4, layers * 16.0 * D * D, "weights")
    yield Case(LSTM, setting, partial(_lstm, options, D, layers), floor, None)


def _evaluation(make: Callable[[], nn.Module], options: BenchOptions, shape: tuple[int, ...], kept: bool) -> Work:
    """A forward pass without gradients; in training mode, which changes nothing else here, nothing is kept."""
    layer = make().to(options.device, options.parameter_dtype).train(not kept)
    x = torch.randn(shape, device=options.device).to(options.dtype)

    @torch.no_grad()
    def run() -> Tensors:
        return {"output": layer(x)}

    @torch.no_grad()
    def reference() -> Tensors:
        wide = make().to(options.device, options.wide)
        wide.load_state_dict(layer.state_dict())
        return {"output": wide(x.to(options.wide))}

    return Work(run, reference, count_parameters(layer))


def _steps(make: Callable[[], nn.Module], options: BenchOptions, width: int, layers: int) -> Work:
    """One step of a stack of layers; compared over some steps with the convolution."""
    model = Backbone([make() for _ in range(layers)]).to(options.device, options.parameter_dtype).eval()  # type: ignore[misc]
    x = torch.randn(1, 16, width, device=options.device).to(options.parameter_dtype)
    with torch.no_grad():
        step, state = model.stepper(in_place=True), model.initial_state(1)

    @torch.no_grad()
    def run() -> Tensors:
        return {"output": step(x[:, 0], state)[0]}

    @torch.no_grad()
    def sample() -> Tensors:
        advance, now = model.stepper(), model.initial_state(1)
        outputs = []
        for t in range(x.shape[1]):
            y, now = advance(x[:, t], now)
            outputs.append(y)
        return {"output": torch.stack(outputs, 1)}

    @torch.no_grad()
    def convolved() -> Tensors:
        return {"output": model(x)}

    return Work(run, convolved, count_parameters(model), sample=sample)


def _lstm(options: BenchOptions, width: int, layers: int) -> Work:
    model = nn.LSTM(width, width, num_layers=layers).to(options.device, options.parameter_dtype).eval()
    x = torch.randn(1, 1, width, device=options.device).to(options.parameter_dtype)
    state = tuple(torch.zeros(layers, 1, width, dtype=x.dtype, device=x.device) for _ in range(2))

    @torch.no_grad()
    def run() -> Tensors:
        return {"output": model(x, state)[0]}

    return Work(run, None, count_parameters(model))


def short_findings(rows: Sequence[BenchRow]) -> tuple[list[BenchRow], list[str]]:
    """Add "speedup" of each row over its baseline, and report it."""
    final, findings = [], []
    bases = {(row.setting["part"], row.name): row for row in rows}
    for row in rows:
        part, kind = row.setting["part"], row.name.split()[0].rstrip(",")
        base = {
            TRAINING: f"{kind} naive {NAIVE[kind][0]}" if kind in NAIVE else "",
            EVALUATION: f"{kind}, {MADE}",
            STEP: LSTM,
        }.get(part)
        against = None if base is None else bases.get((part, base))
        if against is not None and row.time_ms and against.time_ms:
            speed = row.speed_over(against)
            row = replace(row, extra={"speedup": speed})
            if against.name != row.name:
                findings.append(f"{part}: {row.name} is {speed:.2f} times as fast as {against.name}")
        final.append(row)
    return final, findings
