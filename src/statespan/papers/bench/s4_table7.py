"""`table7`: images a second of the CIFAR-10 density models, the generation part of the S4 paper's Table 7.

The S4 models are those of appendix D.3.1: a U-Net of S4 and feed-forward layers that reads 3,072 values, of which each
third, twelfth and forty-eighth wakes one more of its levels. The Transformer has about as many parameters as the base
model, flash attention and a cache. An image is 3,072 steps, a run here is one period of the U-Net.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from statespan.models import PixelModel, PixelsConfig
from statespan.papers.bench.cached import CachedTransformer, Values, cached_floor, cached_work
from statespan.papers.bench.case import OK, Case, Row, Settings, Work
from statespan.papers.bench.compare import TOLERANCE
from statespan.papers.bench.decoding import CHECKED, STATE, step_floor, steps_work
from statespan.papers.bench.listing import LISTED
from statespan.papers.bench.model import DEPTH
from statespan.papers.bench.registry import Benchmark

VALUES, CHANNELS = 256, 3
TRANSFORMER = "Transformer"
PAPER = {"S4 base": 20.84, "S4 large": 3.36, TRANSFORMER: 0.32}


def models(settings: Settings) -> dict[str, PixelsConfig]:
    """The models of the paper."""
    sizes = settings.sizes
    shared: dict[str, Any] = {
        "vocabulary": 1 + VALUES * CHANNELS, "d_output": VALUES, "layer": "s4", "d_state": sizes["d_state"],
        "pools": sizes["pools"], "mix": "linear",
    }  # fmt: skip
    return {
        "S4 base": PixelsConfig(d_model=sizes["base"][0], n_layers=sizes["base"][1], **shared),
        "S4 large": PixelsConfig(d_model=sizes["large"][0], n_layers=sizes["large"][1], **shared),
    }


def cases(settings: Settings) -> Iterator[Case]:
    """Each model at each batch, and the Transformer at some contexts of an image."""
    sizes, dtype = settings.sizes, settings.dtype
    tolerance, period = DEPTH * TOLERANCE[dtype], math.prod(sizes["pools"])
    for name, config in models(settings).items():
        shape = PixelModel(config, device="meta")
        shares = list(_shares(shape.initial_state(1, dtype=STATE), sizes["pools"]))
        for batch in sizes["batches"]:
            floor = step_floor(shape, batch, shares, dtype.itemsize, period)
            setting = {"batch": batch, "d_model": config.d_model, "n_layers": config.n_layers, "steps": period}
            yield Case(name, setting, partial(_work, settings, config, batch), floor, tolerance, optional=batch > 1)
    D, layers, _ = sizes["transformer"]
    weights = sum(p.numel() for p in transformer(settings, device=torch.device("meta")).parameters())
    for context in sizes["contexts"]:
        for batch in sizes["transformer_batches"]:
            prepare = partial(cached_work, partial(transformer, settings, settings.device), settings, batch, context)
            floor = cached_floor(D, layers, weights, batch, context, dtype.itemsize)
            setting = {"batch": batch, "d_model": D, "n_layers": layers, "steps": 1, "context": context}
            yield Case(f"{TRANSFORMER} at {context}", setting, prepare, floor, tolerance, optional=True)


def _shares(state: Any, pools: Sequence[int]) -> Iterator[tuple[Any, float]]:
    """The states of a U-Net level by level, and the share of the steps in which each is woken."""
    (level,) = state
    share = 1.0
    for factor in pools:
        inner = next(part for part in level if isinstance(part, tuple) and len(part) == 4)
        yield tuple(part for part in level if part is not inner), share
        share /= factor
        level = inner[0]
    yield level, share


def transformer(settings: Settings, device: torch.device) -> CachedTransformer:
    """A Transformer of as many parameters as the base model."""
    D, layers, heads = settings.sizes["transformer"]
    tokens = Values(1 + VALUES * CHANNELS, VALUES, D, device, settings.dtype)
    return CachedTransformer(D, heads, layers, tokens, max(settings.sizes["length"], 12), device, settings.dtype)


def _work(settings: Settings, config: PixelsConfig, batch: int) -> Work:
    model = PixelModel(config, device=settings.device).to(settings.dtype).eval()
    period = math.prod(settings.sizes["pools"])
    tokens = torch.randint(config.vocabulary, (CHECKED, period + 2), device=settings.device)
    return steps_work(model, settings, batch, period, tokens=tokens)


def finish(rows: Sequence[Row], settings: Settings) -> tuple[list[Row], list[str]]:
    """Add "images_per_s" (of the Transformer as if its whole image were at that context) and say the best ones."""
    length, limit = settings.sizes["length"], 1e3 * settings.sizes["memory_gb"]
    final = []
    for row in rows:
        if row.time_ms:
            image = row.time_ms * length / row.setting["steps"]
            row = replace(row, extra={"images_per_s": 1e3 * row.setting["batch"] / image})
        final.append(row)
    fits = [row for row in final if row.status == OK and (row.memory_mb or 0.0) <= limit]
    findings, best = [], {}
    for name in models(settings):
        mine = [row for row in fits if row.name == name]
        if mine:
            row = max(mine, key=lambda row: row.extra["images_per_s"])
            best[name] = row.extra["images_per_s"]
            floor = best[name] * (row.ratio or 0.0)
            findings.append(
                f"{name}: {best[name]:,.3g} images/s at batch {row.setting['batch']:,} within {limit / 1e3:g} GB "
                f"(paper, A100: {PAPER[name]}); the floor there is {floor:,.3g}, {row.ratio:.2f}x"
            )
    mean = _whole_image(fits, settings)
    if mean:
        findings.append(f"{TRANSFORMER}: {mean:,.3g} images/s over a whole image within {limit / 1e3:g} GB "
                        f"(paper, {PAPER[TRANSFORMER]})")  # fmt: skip
        findings += [f"{name} over {TRANSFORMER}: {rate / mean:.1f}x" for name, rate in best.items()]
    return final, findings


def _whole_image(rows: Sequence[Row], settings: Settings) -> float:
    """Images a second of the Transformer at its best batch: times at contexts between those measured lie on lines."""
    contexts, rates = settings.sizes["contexts"], [0.0]
    for batch in settings.sizes["transformer_batches"]:
        times = {row.setting["context"]: row.time_ms for row in rows if row.name.startswith(TRANSFORMER)
                 and row.setting["batch"] == batch}  # fmt: skip
        if set(times) != set(contexts):
            continue
        points = [(0, times[contexts[0]]), *((c, times[c]) for c in contexts)]
        total = sum((b - a) * ((s or 0.0) + (t or 0.0)) / 2 for (a, s), (b, t) in pairwise(points))
        rates.append(1e3 * batch / total if total else 0.0)
    return max(rates)


BENCHMARK = Benchmark(
    LISTED["table7"],
    caption=(
        "Steps of generation of 3,072 values: the models of appendix D.3.1 of the S4 paper over one period of their "
        "U-Net, with the choice of each value and float32 states, and one step of a Transformer of about the size of "
        "the base model with a cache that is full up to the context named. As CUDA graphs on a GPU."
    ),
    cases=cases,
    finish=finish,
    rate="images_per_s",
)  # fmt: skip
