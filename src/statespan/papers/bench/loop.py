"""`loop`: the overhead of the training loop over a bare training step, on synthetic data."""

from __future__ import annotations

import copy
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from statespan import models
from statespan.data.base import Arrays, Batch, Dataset, Info
from statespan.papers.bench.case import Benchmark, BenchOptions, BenchRow, Case, Tensors, Work, count_parameters
from statespan.papers.bench.layer_work import ssm_floor
from statespan.papers.bench.measure import capture
from statespan.train import recipes
from statespan.train.device import launched, quiet
from statespan.train.loop import Loop
from statespan.train.optim import build_optimizer
from statespan.train.sinks import RunFolder
from statespan.train.tasks import task_of

STEPS, QUICK_STEPS = 40, 3
"""Steps of one timed run, as the caption says: enough to include what is done every n-th step (log, loss check)."""
SAME_STEP = 1e-3
"""Allowed difference between the loss and the gradients of a captured step and those of the same step in eager mode,
which runs the same kernels."""

INFOS = {
    "scifar-s4d-legs": Info("classification", 1024, 3, None, 10),
    "lra-listops-s4d-legs": Info("classification", 2048, None, 18, 10),
}
SMALL = ("model.d_model=8", "model.d_state=4", "model.n_layers=2", "train.batch=4")


def cases(options: BenchOptions) -> Iterator[Case]:
    """Each recipe as a bare step and in the loop, for each step mode."""
    modes = ("graph", "both") if options.device.type == "cuda" else ("none",)
    for name, info in INFOS.items():
        recipe, info = _recipe(name, info, options)
        model, train = recipe.model, recipe.train
        layer = ssm_floor(options, train.batch * info.length, model["d_model"], 2 * model["d_model"])
        floor = layer.in_each_of(_steps(options) * model["n_layers"], "layers of all steps")
        for mode in modes:
            setting = {"recipe": name, "step": mode, "batch": train.batch, "length": info.length}
            variant = replace(recipe, train=replace(train, compile=mode))
            # a compiler draws its own random numbers
            tolerance = None if mode == "both" else SAME_STEP
            yield Case("bare step", setting, partial(_bare, variant, info, options), floor, tolerance)
            yield Case("loop", setting, partial(_looped, variant, info, options), floor, None)


def finish(rows: Sequence[BenchRow], options: BenchOptions) -> tuple[list[BenchRow], list[str]]:
    """Add "step_ms", and to the loop's rows "overhead_percent"."""
    final: list[BenchRow] = []
    findings = []
    steps = _steps(options)
    for row in rows:
        extra = {"step_ms": row.time_ms / steps} if row.time_ms else {}
        bare = final[-1] if final else None
        if row.name == "loop" and row.time_ms and bare is not None and bare.time_ms:
            extra["overhead_percent"] = 100 * (row.time_ms / bare.time_ms - 1)
            findings.append(
                f"{row.setting['recipe']}, {row.setting['step']}: {row.time_ms / steps:.3g} ms a step in the loop, "
                f"{extra['overhead_percent']:+.1f} % of the bare step's {bare.time_ms / steps:.3g}"
            )
        final.append(replace(row, extra=extra))
    return final, findings


def _recipe(name: str, info: Info, options: BenchOptions) -> tuple[Any, Info]:
    precision = "train.precision=bf16" if options.half else "train.precision=fp32"
    changes = [precision, "train.tensorboard=false", "train.save_every=1000000", "train.validate_every=1000000"]
    if options.quick:
        changes += SMALL
        info = replace(info, length=64)
    else:
        changes.append(f"train.batch={options.sizes['batch']}")
    return recipes.read(name, changes), info


def _dataset(info: Info, rows: int) -> Dataset:
    """Synthetic data of this shape, on the device if real data of this size would be."""
    random = np.random.default_rng(0)
    shape = (rows, info.length) if info.vocabulary else (rows, info.length, info.d_input or 1)
    x = random.integers(0, info.vocabulary or 256, shape, dtype=np.uint8)
    y = random.integers(0, info.d_output, rows, dtype=np.uint8)
    split = Arrays({"x": x, "y": y}, partial(_batch, is_tokens=info.vocabulary is not None))
    return Dataset("synthetic", info, split, split, split)


def _batch(rows: dict[str, Tensor], *, is_tokens: bool) -> Batch:
    x = rows["x"].long() if is_tokens else rows["x"].float() / 255
    return Batch(x, rows["y"].long())


def _model(recipe: Any, info: Info, options: BenchOptions) -> nn.Module:
    fields = dict(recipe.model)
    return models.build(fields.pop("name"), info, fields).to(options.device).train()


def _bare(recipe: Any, info: Info, options: BenchOptions) -> Work:
    """Only forward, loss, backward and optimizer on one batch."""
    on_cuda = options.device.type == "cuda"
    model = _model(recipe, info, options)
    batch = _dataset(info, recipe.train.batch).train.batch(list(range(recipe.train.batch)))
    x, y = batch.x.to(options.device), batch.y.to(options.device)
    optimizer = build_optimizer(model, recipe.train, captured=on_cuda)

    def gradients() -> Tensor:
        optimizer.zero_grad()
        with options.autocast():
            scores = model(x)
        loss = nn.functional.cross_entropy(scores.float(), y)
        loss.backward()
        return loss.detach()

    def step() -> Tensor:
        loss = gradients()
        optimizer.step()
        return loss

    advance: Callable[[], Any] = step
    if on_cuda:
        graph, loss = capture(step, options.device, lambda: [step() for _ in range(3)])
        advance = graph.replay
    else:
        loss = step()

    def run() -> Tensors:
        for _ in range(_steps(options)):
            advance()
        return {"output": loss}

    start = copy.deepcopy(model.state_dict())

    def results(way: Callable[[], Any]) -> Tensors:
        """The loss and all gradients of a step from the same weights with the same random numbers."""
        with torch.no_grad():
            for name, value in model.state_dict().items():
                value.copy_(start[name])
        torch.manual_seed(options.seed)
        found = way()
        named = {f"gradient of {name}": p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        return {"output": (loss if found is None else found).clone(), **named}

    parameters = count_parameters(model, trained=True)
    if recipe.train.compile == "both":
        return Work(run, None, parameters)
    return Work(run, partial(results, gradients), parameters, sample=partial(results, advance))


def _steps(options: BenchOptions) -> int:
    return QUICK_STEPS if options.quick else STEPS


def _looped(recipe: Any, info: Info, options: BenchOptions) -> Work:
    """The same number of steps in the loop, with its data, log, guard and seeds."""
    if recipe.train.compile == "both":
        torch._dynamo.reset()
    model = _model(recipe, info, options)
    folder = Path(tempfile.mkdtemp())
    (folder / "checkpoints").mkdir()
    dataset, sink = _dataset(info, 40 * recipe.train.batch), RunFolder(folder, recipe)
    with launched(recipe.train, options.device) as processes, quiet():
        loop = Loop(recipe.train, dataset, model, task=task_of(dataset), processes=processes, sink=sink)
    weakref.finalize(loop, shutil.rmtree, folder, ignore_errors=True)

    def run() -> Tensors:
        with loop.opened(progress=False) as batches:
            for _ in range(_steps(options)):
                loop.advance(batches)
        return {"output": loop.step.loss}

    return Work(run, None, count_parameters(model, trained=True))


BENCHMARK = Benchmark("loop", cases, finish=finish)
