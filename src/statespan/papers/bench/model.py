"""`model`: a training step of two whole models, as written, compiled, and captured in a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from statespan import S4, S4D
from statespan.nn.block import ResidualBlock
from statespan.nn.norm import NormName
from statespan.papers.bench.case import Case, Floor, Row, Settings, Work
from statespan.papers.bench.compare import TOLERANCE
from statespan.papers.bench.layers import ssm_floor
from statespan.papers.bench.listing import LISTED
from statespan.papers.bench.registry import Benchmark
from statespan.papers.bench.training import BOTH, COMPILED, EAGER, GRAPHED, Residual, step_work

DEPTH = 2.5
"""A model's tolerance over that of one layer: the roundings of all its layers add up in its scores and gradients."""


@dataclass(frozen=True)
class Task:
    """The shape of a model and its data."""

    name: str
    n_layers: int
    d_model: int
    batch: int
    length: int
    tokens: int
    """Size of the vocabulary; 0 for three real features at each position."""
    batch_norm: bool


def tasks(settings: Settings) -> list[Task]:
    """Sequential CIFAR and ListOps with the models of the S4D paper."""
    if settings.quick:
        return [Task("sCIFAR", 2, 8, 2, 64, 0, False), Task("ListOps", 2, 8, 3, 100, 18, True)]
    batch = settings.sizes["batch"]
    return [Task("sCIFAR", 6, 512, batch, 1024, 0, False), Task("ListOps", 8, 128, batch, 2048, 18, True)]


def variants(settings: Settings) -> list[str]:
    """What runs on this device."""
    if settings.device.type == "cuda":
        return [EAGER, COMPILED, GRAPHED, BOTH]
    return [EAGER] if settings.quick else [EAGER, COMPILED]


def cases(settings: Settings) -> Iterator[Case]:
    """Each task with S4D and S4 in each variant, and by the FFT."""
    for task in tasks(settings):
        setting = {"task": task.name, "length": task.length, "batch": task.batch, "d_model": task.d_model}
        setting |= {"n_layers": task.n_layers, "d_state": settings.sizes["d_state"]}
        for kind in ("S4D", "S4"):
            ways = [("auto", variant) for variant in variants(settings)] + [("fft", EAGER)]
            for path, variant in ways:
                name = f"{kind} {variant}" + (", fft" if path == "fft" else "")
                prepare = partial(_work, settings, task, kind, path, variant)
                tolerance = DEPTH * TOLERANCE[settings.dtype]
                yield Case(name, setting, prepare, _floor(settings, task), tolerance, optional=variant != EAGER)


def build(task: Task, kind: str, d_state: int, device: torch.device) -> Residual:
    """The model of a task."""
    D = task.d_model
    layer = {"S4D": S4D, "S4": S4}[kind]
    norm: NormName = "batch" if task.batch_norm else "layer"
    blocks = [
        ResidualBlock(layer(D, d_state, bidirectional=True, mix="glu", device=device), norm=norm, device=device)
        for _ in range(task.n_layers)
    ]
    encoder = nn.Embedding(task.tokens, D) if task.tokens else nn.Linear(3, D)
    return Residual(encoder, blocks, D, 10)


def _inputs(task: Task) -> Tensor:
    if task.tokens:
        return torch.randint(task.tokens, (task.batch, task.length))
    return torch.randn(task.batch, task.length, 3)


def _work(settings: Settings, task: Task, kind: str, path: str, variant: str) -> Work:
    model = build(task, kind, settings.sizes["d_state"], settings.device)
    return step_work(model, _inputs(task), settings, classes=10, path=path, variant=variant)


def _floor(settings: Settings, task: Task) -> Floor:
    layer = ssm_floor(settings, task.batch * task.length, task.d_model, 2 * task.d_model)
    return Floor(
        task.n_layers * layer.bytes, task.n_layers * layer.flops, f"in each of {task.n_layers} layers {layer.how}"
    )


def finish(rows: Sequence[Row], settings: Settings) -> tuple[list[Row], list[str]]:
    """Add "sequences_per_s"."""
    return [
        replace(row, extra={"sequences_per_s": 1e3 * row.setting["batch"] / row.time_ms}) if row.time_ms else row
        for row in rows
    ], []


BENCHMARK = Benchmark(
    LISTED["model"],
    caption=(
        "One training step (forward, loss, backward, AdamW) of residual models of bidirectional layers with GLU. "
        "sCIFAR: LayerNorm, 3 inputs a pixel; ListOps: BatchNorm, 18 tokens; mean over the sequence, 10 classes."
    ),
    cases=cases,
    finish=finish,
)
