"""`s4_table7`: images per second of the CIFAR-10 density models, the generation part of the S4 paper's Table 7.

The S4 models are those of appendix D.3.1: a U-Net of S4 and feed-forward layers that reads 3,072 values, of which each
third, twelfth and forty-eighth runs one more of its levels. The Transformer has about as many parameters as the base
model, flash attention and a cache. An image is 3,072 steps, a run here is one period of the U-Net.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from statespan.models import PixelModel, PixelsConfig
from statespan.papers.bench.case import OK, Benchmark, BenchOptions, BenchRow, Case, Work, count_parameters, with_rate
from statespan.papers.bench.decoding import STATE, step_floor, steps_work
from statespan.papers.bench.kv_cache import CachedTransformer, StackSizes, cached_floor, cached_work

VALUES, CHANNELS = 256, 3
TRANSFORMER = "Transformer"
PAPER = {"S4 base": 20.84, "S4 large": 3.36, TRANSFORMER: 0.32}


def models(options: BenchOptions) -> dict[str, PixelsConfig]:
    """The paper's models."""
    sizes = options.sizes
    shared: dict[str, Any] = {
        "vocabulary": 1 + VALUES * CHANNELS, "d_output": VALUES, "layer": "s4", "d_state": sizes["d_state"],
        "pools": sizes["pools"], "mix": "linear",
    }  # fmt: skip
    return {
        "S4 base": PixelsConfig(d_model=sizes["base"][0], n_layers=sizes["base"][1], **shared),
        "S4 large": PixelsConfig(d_model=sizes["large"][0], n_layers=sizes["large"][1], **shared),
    }


def cases(options: BenchOptions) -> Iterator[Case]:
    """Each model at each batch, and the Transformer at several contexts within an image."""
    sizes, itemsize = options.sizes, options.dtype.itemsize
    tolerance, period = options.model_tolerance, math.prod(sizes["pools"])
    for name, config in models(options).items():
        shape = PixelModel(config, device="meta")
        shares = list(_shares(shape.initial_state(1, dtype=STATE), sizes["pools"]))
        for batch in sizes["batches"]:
            floor = step_floor(shape, batch, shares, itemsize=itemsize, steps=period)
            setting = {"batch": batch, "d_model": config.d_model, "n_layers": config.n_layers, "steps": period}
            yield Case(name, setting, partial(_work, options, config, batch), floor, tolerance, optional=batch > 1)
    stack = StackSizes(*sizes["transformer"])
    weights = count_parameters(transformer(options, torch.device("meta")))
    for context in sizes["contexts"]:
        for batch in sizes["transformer_batches"]:
            prepare = partial(cached_work, partial(transformer, options, options.device), options, batch, context)
            floor = cached_floor(stack, weights, batch, context=context, itemsize=itemsize)
            setting = {"batch": batch, "d_model": stack.d_model, "n_layers": stack.n_layers}
            setting |= {"steps": 1, "context": context}
            yield Case(f"{TRANSFORMER} at {context}", setting, prepare, floor, tolerance, optional=True)


def _shares(state: Any, pools: Sequence[int]) -> Iterator[tuple[Any, float]]:
    """The states of a U-Net level by level, and the share of the steps in which each runs."""
    (level,) = state
    share = 1.0
    for factor in pools:
        inner = next(part for part in level if isinstance(part, tuple) and len(part) == 4)
        yield tuple(part for part in level if part is not inner), share
        share /= factor
        level = inner[0]
    yield level, share


class PixelTokens(nn.Module):
    """An embedding of tokens, and a linear map to the values of a channel.

    Example:
        >>> tokens = PixelTokens(8, torch.device("cpu"), torch.float32)
        >>> tokens.log_probs(tokens(torch.zeros(2, 5, dtype=torch.int64))).shape
        torch.Size([2, 5, 256])
    """

    def __init__(self, d_model: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.table = nn.Embedding(1 + VALUES * CHANNELS, d_model, device=device, dtype=dtype)
        self.linear = nn.Linear(d_model, VALUES, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Features of tokens."""
        return self.table(x)

    def log_probs(self, features: Tensor) -> Tensor:
        """Log-probabilities of values."""
        return self.linear(features).log_softmax(-1)


def transformer(options: BenchOptions, device: torch.device) -> CachedTransformer:
    """A Transformer with as many parameters as the base model."""
    stack = StackSizes(*options.sizes["transformer"])
    tokens = PixelTokens(stack.d_model, device, options.dtype)
    return CachedTransformer(stack, tokens, max(options.sizes["length"], 12))


def _work(options: BenchOptions, config: PixelsConfig, batch: int) -> Work:
    model = PixelModel(config, device=options.device).to(options.dtype).eval()
    period = math.prod(options.sizes["pools"])
    return steps_work(model, options, batch, period, length=period + 2)


def finish(rows: Sequence[BenchRow], options: BenchOptions) -> tuple[list[BenchRow], list[str]]:
    """Add "images_per_s" (of the Transformer as if its whole image were at that context) and report the best ones."""
    length, limit = options.sizes["length"], 1e3 * options.sizes["memory_gb"]
    final = with_rate(rows, "images_per_s", lambda row: row.setting["batch"] * row.setting["steps"] / length)
    fitting = [row for row in final if row.status == OK and (row.memory_mb or 0.0) <= limit]
    findings, best = [], {}
    for name in models(options):
        candidates = [row for row in fitting if row.name == name]
        if candidates:
            row = max(candidates, key=lambda row: row.extra["images_per_s"])
            best[name] = row.extra["images_per_s"]
            floor = best[name] * (row.ratio or 0.0)
            findings.append(
                f"{name}: {best[name]:,.3g} images/s at batch {row.setting['batch']:,} within {limit / 1e3:g} GB "
                f"(paper, A100: {PAPER[name]}); the floor there is {floor:,.3g}, {row.ratio:.2f}x"
            )
    mean = whole_image_rate([vars(row) for row in final], options.sizes)
    if mean:
        findings.append(f"{TRANSFORMER}: {mean:,.3g} images/s over a whole image within {limit / 1e3:g} GB "
                        f"(paper, {PAPER[TRANSFORMER]})")  # fmt: skip
        findings += [f"{name} over {TRANSFORMER}: {rate / mean:.1f}x" for name, rate in best.items()]
    return final, findings


def whole_image_rate(rows: Sequence[Mapping[str, Any]], sizes: Mapping[str, Any]) -> float:
    """Images per second of the Transformer at its best batch, its time interpolated between the contexts measured.

    Args:
        rows: Rows of a record; those that failed or need more than ``memory_gb`` are left out.
        sizes: The sizes of the benchmark.
    """
    contexts, rates = sizes["contexts"], [0.0]
    fitting = [row for row in rows if row["status"] == OK and (row["memory_mb"] or 0.0) <= 1e3 * sizes["memory_gb"]]
    for batch in sizes["transformer_batches"]:
        times = {row["setting"]["context"]: row["time_ms"] for row in fitting if row["name"].startswith(TRANSFORMER)
                 and row["setting"]["batch"] == batch}  # fmt: skip
        if set(times) != set(contexts):
            continue
        measured = [times[context] or 0.0 for context in (contexts[0], *contexts)]
        total = float(torch.trapezoid(torch.tensor(measured), torch.tensor([0, *contexts])))
        rates.append(1e3 * batch / total if total else 0.0)
    return max(rates)


BENCHMARK = Benchmark("s4_table7", cases, finish=finish, rate="images_per_s")
