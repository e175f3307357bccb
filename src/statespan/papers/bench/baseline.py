"""The training step of baselines beside those of S4 and S4D in `model`: whole networks and layers, by their names.

Whole networks read the images of sCIFAR, as the layers do. What is a layer stands in the same residual blocks as S4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from statespan import models
from statespan._registry import keywords
from statespan._suggest import suggest
from statespan.models.config import ADDED_LAYERS, BackboneConfig, layer_class, make_layers
from statespan.models.registry import ADDED_MODELS
from statespan.nn.block import ResidualBlock
from statespan.papers.bench.case import BenchOptions, Case, Floor, Work, count_parameters
from statespan.papers.bench.training import EAGER, ResidualClassifier, step_work

if TYPE_CHECKING:
    from statespan.papers.bench.model import TaskSizes

CLASSES, FEATURES = 10, 3
UPDATE = 28  # bytes of a float32 weight: itself and two averages read and written, its gradient written and read


def check_names(names: tuple[str, ...]) -> None:
    """Reject what is neither a registered model nor a registered layer."""
    known = [*ADDED_MODELS.added(), *ADDED_LAYERS.added()]
    for name in names:
        if name not in known:
            hint = suggest(name, known)
            raise ValueError(f"--size baselines must be names of {', '.join(known)}, got {name!r}{hint}")


def baseline_cases(options: BenchOptions, task: TaskSizes, variants: list[str]) -> Iterator[Case]:
    """The training step of every requested baseline that can read the data of a task."""
    for name in options.sizes["baselines"]:
        is_network = name in ADDED_MODELS.added()
        if is_network and task.vocabulary:
            continue  # convolutions of samples
        setting: dict[str, Any] = {"task": task.name, "length": task.length, "batch": task.batch}
        if not is_network:
            setting |= {"d_model": task.d_model, "n_layers": task.n_layers}
        make = partial(_network, options, task, name) if is_network else partial(_stack, options, task, name)
        with torch.device("meta"):
            floor = Floor(UPDATE * count_parameters(make(), trained=True), 0.0, "each weight updated by AdamW")
        for variant in variants:
            prepare = partial(_work, options, task, make, variant)
            yield Case(f"{name} {variant}", setting, prepare, floor, None, optional=variant != EAGER)


def _network(options: BenchOptions, task: TaskSizes, name: str) -> nn.Module:
    known = {field.name for field in fields(ADDED_MODELS.find(name).config_class)}
    chosen: dict[str, Any] = {"d_input": FEATURES, "d_output": CLASSES}
    if "length" in known:
        chosen["length"] = task.length
    if options.quick:
        chosen["d_model"] = task.d_model
    return models.build(name, options=chosen)


def _stack(options: BenchOptions, task: TaskSizes, name: str) -> nn.Module:
    D = task.d_model
    config = BackboneConfig(d_model=D, d_state=options.sizes["d_state"], n_layers=task.n_layers, layer=name)
    both = "bidirectional" in keywords(layer_class(name))
    blocks = [ResidualBlock(layer, norm=task.norm) for layer in make_layers(config, D, bidirectional=both)]
    encoder = nn.Embedding(task.vocabulary, D) if task.vocabulary else nn.Linear(FEATURES, D)
    return ResidualClassifier(encoder, blocks, nn.Linear(D, CLASSES))


def _work(options: BenchOptions, task: TaskSizes, make: Any, variant: str) -> Work:
    shape = (task.batch, task.length)
    inputs = torch.randint(task.vocabulary, shape) if task.vocabulary else torch.randn(*shape, FEATURES)
    # convolutions and products of torch itself: there is nothing to compare them with
    return replace(step_work(make(), inputs, options, variant=variant, classes=CLASSES), reference=None)
