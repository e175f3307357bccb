"""`model`: a training step of two whole models: eager, compiled, and captured in a CUDA graph.

``--size baselines=resnet2d,convnet`` adds baselines on the same batch (:mod:`statespan.papers.bench.baseline`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import nn

from statespan.nn.block import ResidualBlock
from statespan.papers.bench.baseline import CLASSES, baseline_cases
from statespan.papers.bench.case import Benchmark, BenchOptions, Case, Work, with_rate
from statespan.papers.bench.layer_work import KINDS, ssm_floor
from statespan.papers.bench.training import BOTH, COMPILED, EAGER, GRAPHED, ResidualClassifier, step_work


class TaskSizes(NamedTuple):
    """The sizes of a model and its data.

    Example:
        >>> TaskSizes("lm", n_layers=4, d_model=64, batch=8, length=1024, vocabulary=100, norm="layer").length
        1024
    """

    name: str
    n_layers: int
    d_model: int
    batch: int
    length: int
    vocabulary: int  # 0 for three real features at each position
    norm: Literal["layer", "batch"]


def tasks(options: BenchOptions) -> list[TaskSizes]:
    """Sequential CIFAR and ListOps with the models of the S4D paper."""
    if options.quick:
        return [TaskSizes("sCIFAR", 2, 8, 2, 64, 0, "layer"), TaskSizes("ListOps", 2, 8, 3, 100, 18, "batch")]
    batch = options.sizes["batch"]
    return [
        TaskSizes("sCIFAR", 6, 512, batch, 1024, 0, "layer"),
        TaskSizes("ListOps", 8, 128, batch, 2048, 18, "batch"),
    ]


def variants(options: BenchOptions) -> list[str]:
    """The variants that run on this device."""
    if options.device.type == "cuda":
        return [EAGER, COMPILED, GRAPHED, BOTH]
    return [EAGER] if options.quick else [EAGER, COMPILED]


def cases(options: BenchOptions) -> Iterator[Case]:
    """Each task with S4D and S4 in each variant, and by the FFT; then the baselines."""
    for task in tasks(options):
        setting = {"task": task.name, "length": task.length, "batch": task.batch, "d_model": task.d_model}
        setting |= {"n_layers": task.n_layers, "d_state": options.sizes["d_state"]}
        layer = ssm_floor(options, task.batch * task.length, task.d_model, 2 * task.d_model)
        floor = layer.in_each_of(task.n_layers, "layers")
        for kind in KINDS:
            runs = [("auto", variant) for variant in variants(options)] + [("fft", EAGER)]
            for path, variant in runs:
                name = f"{kind} {variant}" + (", fft" if path == "fft" else "")
                prepare = partial(_work, options, task, kind, path=path, variant=variant)
                yield Case(name, setting, prepare, floor, options.model_tolerance, optional=variant != EAGER)
        yield from baseline_cases(options, task, variants(options))


def build(task: TaskSizes, kind: str, d_state: int, device: torch.device) -> ResidualClassifier:
    """The model of a task."""
    D = task.d_model
    layer = partial(KINDS[kind], D, d_state, bidirectional=True, mix="glu", device=device)
    blocks = [ResidualBlock(layer(), norm=task.norm, device=device) for _ in range(task.n_layers)]
    encoder = nn.Embedding(task.vocabulary, D) if task.vocabulary else nn.Linear(3, D)
    return ResidualClassifier(encoder, blocks, nn.Linear(D, CLASSES))


def _work(options: BenchOptions, task: TaskSizes, kind: str, *, path: str, variant: str) -> Work:
    model = build(task, kind, options.sizes["d_state"], options.device)
    shape = (task.batch, task.length)
    inputs = torch.randint(task.vocabulary, shape) if task.vocabulary else torch.randn(*shape, 3)
    return step_work(model, inputs, options, path=path, variant=variant)


BENCHMARK = Benchmark("model", cases, finish=lambda rows, options: (with_rate(rows, "sequences_per_s"), []))
