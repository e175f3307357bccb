"""`loop`: what the training loop adds to a bare training step, on made-up data."""

from __future__ import annotations

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

from statespan.data.base import Arrays, Batch, Dataset, Info
from statespan.papers.bench.case import Case, Floor, Row, Settings, Tensors, Work
from statespan.papers.bench.layers import ssm_floor
from statespan.papers.bench.listing import LISTED
from statespan.papers.bench.registry import Benchmark

STEPS, FEW = 40, 3
"""Steps of one timed run, enough that what happens every so many steps (log, looks at the loss) counts; of a quick."""

INFOS = {
    "scifar-s4d-legs": Info("classification", 1024, 3, None, 10),
    "lra-listops-s4d-legs": Info("classification", 2048, None, 18, 10),
}
SMALL = ("model.d_model=8", "model.d_state=4", "model.n_layers=2", "train.batch=4")


def cases(settings: Settings) -> Iterator[Case]:
    """Each recipe as a bare step and in the loop, for each way to run a step."""
    ways = ("graph", "both") if settings.device.type == "cuda" else ("none",)
    for name, info in INFOS.items():
        recipe, info = _recipe(name, info, settings)
        model, train = recipe.model, recipe.train
        floor = ssm_floor(settings, train.batch * info.length, model["d_model"], 2 * model["d_model"])
        n = _steps(settings) * model["n_layers"]
        floor = Floor(n * floor.bytes, n * floor.flops, f"in each of {n} layers of all steps {floor.how}")
        for way in ways:
            setting = {"recipe": name, "step": way, "batch": train.batch, "length": info.length}
            one = replace(recipe, train=replace(train, compile=way))
            yield Case("bare step", setting, partial(_bare, one, info, settings), floor, None)
            yield Case("loop", setting, partial(_looped, one, info, settings), floor, None)


def finish(rows: Sequence[Row], settings: Settings) -> tuple[list[Row], list[str]]:
    """Add "step_ms", and to the loop's rows "overhead_percent"."""
    found: list[Row] = []
    lines = []
    steps = _steps(settings)
    for row in rows:
        extra = {"step_ms": row.time_ms / steps} if row.time_ms else {}
        before = found[-1] if found else None
        if row.name == "loop" and row.time_ms and before is not None and before.time_ms:
            extra["overhead_percent"] = 100 * (row.time_ms / before.time_ms - 1)
            lines.append(
                f"{row.setting['recipe']}, {row.setting['step']}: {row.time_ms / steps:.3g} ms a step in the loop, "
                f"{extra['overhead_percent']:+.1f} % of the bare step's {before.time_ms / steps:.3g}"
            )
        found.append(replace(row, extra=extra))
    return found, lines


def _recipe(name: str, info: Info, settings: Settings) -> tuple[Any, Info]:
    from statespan.train import recipes

    precision = "train.precision=bf16" if settings.half else "train.precision=fp32"
    changes = [precision, "train.tensorboard=false", "train.save_every=1000000", "train.validate_every=1000000"]
    if settings.quick:
        changes += SMALL
        info = replace(info, length=64)
    else:
        changes.append(f"train.batch={settings.sizes['batch']}")
    return recipes.read(name, changes), info


def _dataset(info: Info, rows: int) -> Dataset:
    """Made-up data of this shape, on the device as real data of this size would be."""
    random = np.random.default_rng(0)
    shape = (rows, info.length) if info.vocabulary else (rows, info.length, info.d_input or 1)
    x = random.integers(0, info.vocabulary or 256, shape, dtype=np.uint8)
    split = Arrays({"x": x, "y": random.integers(0, info.d_output, rows, dtype=np.uint8)}, _Prepare(info))
    return Dataset("made up", info, split, split, split)


class _Prepare:
    def __init__(self, info: Info) -> None:
        self.tokens = info.vocabulary is not None

    def __call__(self, rows: dict[str, Tensor]) -> Batch:
        x = rows["x"].long() if self.tokens else rows["x"].float() / 255
        return Batch(x, rows["y"].long())


def _model(recipe: Any, info: Info, settings: Settings) -> nn.Module:
    from statespan import models

    options = dict(recipe.model)
    return models.build(options.pop("name"), info, options).to(settings.device).train()


def _bare(recipe: Any, info: Info, settings: Settings) -> Work:
    """Forward, loss, backward and optimizer on one batch, and nothing else."""
    from statespan.train.optim import build_optimizer

    on_cuda = settings.device.type == "cuda"
    model = _model(recipe, info, settings)
    batch = _dataset(info, recipe.train.batch).train.batch(list(range(recipe.train.batch)))
    x, y = batch.x.to(settings.device), batch.y.to(settings.device)
    optimizer = build_optimizer(model, recipe.train, captured=on_cuda)
    if on_cuda and recipe.train.compile == "both":
        torch._dynamo.reset()
        model.compile()

    def step() -> Tensor:
        optimizer.zero_grad()
        with settings.autocast():
            scores = model(x)
        loss = nn.functional.cross_entropy(scores.float(), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run: Callable[[], Any] = step
    if on_cuda:
        stream = torch.cuda.Stream(settings.device)
        stream.wait_stream(torch.cuda.current_stream(settings.device))
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream(settings.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            loss = step()
        run = graph.replay
    else:
        loss = step()
    return Work(partial(_repeat, run, _steps(settings), loss), None, _count(model))


def _steps(settings: Settings) -> int:
    return FEW if settings.quick else STEPS


def _repeat(run: Callable[[], object], steps: int, loss: Tensor) -> Tensors:
    for _ in range(steps):
        run()
    return {"output": loss}


def _looped(recipe: Any, info: Info, settings: Settings) -> Work:
    """The same number of steps by the loop, with its data, log, guard and seeds."""
    from statespan.train.device import launched, quiet
    from statespan.train.loop import Loop
    from statespan.train.sinks import RunFolder
    from statespan.train.tasks import task_of

    if recipe.train.compile == "both":
        torch._dynamo.reset()
    model = _model(recipe, info, settings)
    folder = Path(tempfile.mkdtemp())
    (folder / "checkpoints").mkdir()
    dataset, sink = _dataset(info, 40 * recipe.train.batch), RunFolder(folder, recipe)
    with launched(recipe.train, settings.device) as processes, quiet():
        loop = Loop(recipe.train, dataset, model, task=task_of(dataset), processes=processes, sink=sink)
    weakref.finalize(loop, shutil.rmtree, folder, ignore_errors=True)

    def run() -> Tensors:
        with loop.opened(progress=False) as batches:
            for _ in range(_steps(settings)):
                loop.advance(batches)
        return {"output": loop.step.loss}

    return Work(run, None, _count(model))


def _count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


BENCHMARK = Benchmark(
    LISTED["loop"],
    caption=(
        f"{STEPS} training steps of the models of two recipes on made-up data that is on the device: forward, loss, "
        "backward and AdamW alone (one batch, nothing else), and in the loop with its batches, random states, guard "
        'against numbers that are not finite, log and signals. Step "graph": as a CUDA graph; "both": compiled too.'
    ),
    cases=cases,
    finish=finish,
)
