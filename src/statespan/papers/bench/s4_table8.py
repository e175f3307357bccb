"""`s4_table8`: tokens per second of the WikiText-103 models, the generation part of the S4 paper's Table 8.

The S4 model is that of appendix D.3.2 (16 blocks of S4, S4 and a feed-forward network, 1,024 features, 249M
parameters), complete: embedding, steps of all layers, adaptive softmax over 267,735 words and sampling of one. The
Transformer has the same width, depth, feed-forward networks and adaptive softmax, 8 heads, flash attention and a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from statespan.models import LanguageConfig, LanguageModel
from statespan.nn import AdaptiveTokens
from statespan.papers.bench import kv_cache
from statespan.papers.bench.case import (
    OK,
    Benchmark,
    BenchOptions,
    BenchRow,
    Case,
    Tensors,
    Work,
    count_parameters,
    with_rate,
)
from statespan.papers.bench.decoding import STATE, step_floor, steps_work
from statespan.papers.bench.kv_cache import AS_IT_COMES, STATIC, CachedTransformer, StackSizes

OURS, PLAIN, TRANSFORMER, AFTER = "S4", "S4 without a graph", "Transformer", "S4 after"
PAPER = {OURS: 48_000.0, AS_IT_COMES: 800.0}
PIECE = 8192
"""Tokens of a context that are read at a time."""
LONG = 8192
"""Beyond this context, Transformers skip small batches, because reading the caches dominates at any batch."""
COMPARED = 12
"""Tokens of the comparison with the parallel model."""


def config(options: BenchOptions) -> LanguageConfig:
    """The language model."""
    names = ("vocabulary", "d_model", "d_state", "n_layers", "cutoffs")
    return LanguageConfig(layer="s4", **{name: options.sizes[name] for name in names})


def stack_sizes(options: BenchOptions) -> StackSizes:
    """The sizes of all Transformers."""
    return StackSizes(*(options.sizes[name] for name in StackSizes._fields))


def cases(options: BenchOptions) -> Iterator[Case]:
    """S4 at each batch, Transformers at each context and batch, and S4 after each context."""
    sizes = options.sizes
    shape = LanguageModel(config(options), device="meta")
    state = shape.initial_state(1, dtype=STATE)

    def ours(name: str, batch: int, prepare: Callable[[], Work], **setting: Any) -> Case:
        floor = step_floor(shape, batch, [(state, 1.0)], itemsize=options.dtype.itemsize)
        setting = {"batch": batch, "d_model": sizes["d_model"], **setting}
        return Case(name, setting, prepare, floor, options.model_tolerance, optional=batch > 1)

    for batch in sizes["batches"]:
        yield ours(OURS, batch, partial(_work, options, batch), part="throughput")
    first = sizes["batches"][0]
    yield ours(PLAIN, first, partial(_work, options, first, graph=False), part="throughput")
    for context in sizes["contexts"]:
        make = partial(transformer, options, context)
        weights = count_parameters(make(device=torch.device("meta")))
        work = partial(kv_cache.cached_work, partial(make, device=options.device), options)
        yield from _at_context(options, TRANSFORMER, context, work=work, weights=weights, is_compared=True)
    if find_spec("transformers") is not None:
        yield from _hugging_face(options)
    for context in sizes["after"]:
        yield ours(f"{AFTER} {context}", 1, partial(_after, options, context), part="context", context=context)


def _hugging_face(options: BenchOptions) -> Iterator[Case]:
    """GPT-2 with a static cache in the precision of the other models, and with its defaults."""
    stack = stack_sizes(options)
    weights = 12 * stack.n_layers * stack.d_model**2
    work = partial(kv_cache.hugging_face_work, options, stack, as_it_comes=False)
    for context in options.sizes["hugging_face"]:
        yield from _at_context(options, STATIC, context, work=work, weights=weights)
    work = partial(kv_cache.hugging_face_work, options, stack, as_it_comes=True)
    for context in options.sizes["as_it_comes"]:
        # three copies: the cache before, the one after, and fragmentation between them
        yield from _at_context(options, AS_IT_COMES, context, work=work, weights=weights, itemsize=4, copies=3)


def _at_context(
    options: BenchOptions,
    kind: str,
    context: int,
    *,
    work: Callable[..., Work],
    weights: int,
    itemsize: int | None = None,
    copies: int = 1,
    is_compared: bool = False,
) -> Iterator[Case]:
    """Steps of a Transformer with a cache full up to a context, at the batches whose caches fit."""
    stack, itemsize = stack_sizes(options), itemsize or options.dtype.itemsize
    tolerance = options.model_tolerance if is_compared else None
    cached = 2 * stack.n_layers * context * stack.d_model
    for batch in batches(options, copies * cached, weights, itemsize, few=context > LONG):
        floor = kv_cache.cached_floor(stack, weights, batch, context=context, itemsize=itemsize)
        setting = {"part": "throughput", "batch": batch, "d_model": stack.d_model, "context": context}
        prepare = partial(work, batch=batch, context=context)
        yield Case(f"{kind} at {context}", setting, prepare, floor, tolerance, optional=True)


def batches(options: BenchOptions, cached: int, weights: int, itemsize: int, *, few: bool = False) -> list[int]:
    """The largest power-of-two batch whose caches of ``cached`` numbers per row fit, and smaller ones.

    ``few`` leaves out the smallest, where caches are most of the work at any batch.
    """
    if options.device.type == "cpu":
        return [2]
    free = 0.8 * torch.cuda.get_device_properties(options.device).total_memory / itemsize - weights
    largest = max(1, min(int(free / cached), options.sizes["batches"][-1]))
    top = 1 << (largest.bit_length() - 1)
    return [batch for batch in (() if few else (top // 16,)) + (top // 4, top) if batch]


def transformer(options: BenchOptions, context: int, device: torch.device) -> CachedTransformer:
    """The Transformer of the same size."""
    sizes, stack = options.sizes, stack_sizes(options)
    factory: dict[str, Any] = {"device": device, "dtype": options.dtype}
    tokens = AdaptiveTokens(sizes["vocabulary"], stack.d_model, cutoffs=sizes["cutoffs"], **factory)
    return CachedTransformer(stack, tokens, max(COMPARED, min(context, PIECE)))


def _model(options: BenchOptions) -> LanguageModel:
    return LanguageModel(config(options), device=options.device).to(options.dtype).eval()


def _work(options: BenchOptions, batch: int, graph: bool = True) -> Work:
    return steps_work(_model(options), options, batch, length=COMPARED, graph=graph)


@torch.no_grad()
def _after(options: BenchOptions, context: int) -> Work:
    """A step after a context, checked against a parallel pass over the same tokens."""
    model = _model(options)
    tokens = torch.randint(options.sizes["vocabulary"], (1, context), device=options.device)

    def read(tokens: Tensor) -> tuple[Tensor, Any]:
        state, y = model.initial_state(1, dtype=STATE), torch.empty(0)
        for piece in tokens.split(PIECE, 1):
            y, state = model.prefill(piece, state, last=True)
        return y, state

    _, state = read(tokens[:, :-1])
    work = steps_work(model, options, 1, length=COMPARED, state=state)

    @torch.no_grad()
    def stepped() -> Tensors:
        _, before = read(tokens[:, :-1])
        return {"output": model.step(tokens[:, -1], before)[0]}

    @torch.no_grad()
    def parallel() -> Tensors:
        return {"output": read(tokens)[0]}

    return replace(work, sample=stepped, reference=parallel)


def finish(rows: Sequence[BenchRow], options: BenchOptions) -> tuple[list[BenchRow], list[str]]:
    """Add "tokens_per_s"; report each model's best, its distance from the floor, and the ratios between models."""
    final = with_rate(rows, "tokens_per_s")
    measured = [row for row in final if row.status == OK]
    best: dict[str, BenchRow] = {}
    for row in measured:
        if row.setting["part"] == "throughput" and (row.name not in best or _rate(row) > _rate(best[row.name])):
            best[row.name] = row
    findings = []
    for name, row in best.items():
        paper = f" (paper, A100: {PAPER[_kind(name)]:,.0f})" if _kind(name) in PAPER else ""
        findings.append(
            f"{name}: {_rate(row):,.0f} tokens/s at batch {row.setting['batch']:,}{paper}; "
            f"the floor there is {1e3 * row.setting['batch'] / (row.floor_ms or 1.0):,.0f}, {row.ratio:.2f}x"
        )
    if OURS in best:
        for name, row in best.items():
            if name not in (OURS, PLAIN):
                paper = f" (paper: {PAPER[OURS] / PAPER[_kind(name)]:.0f}x)" if _kind(name) in PAPER else ""
                findings.append(f"{OURS} over {name}: {_rate(best[OURS]) / _rate(row):.1f}x{paper}")
        alone = next((row for row in measured if row.name == OURS and row.setting["batch"] == 1), None)
        if alone is not None:
            findings.append(f"{OURS}, one sequence: {alone.time_ms:.3g} ms a token")
    after = [row for row in measured if row.setting["part"] == "context"]
    if len(after) > 1:
        first, last = after[0], after[-1]
        findings.append(
            f"a step after {last.setting['context']:,} tokens takes {first.speed_over(last):.3f}x the time of one "
            f"after {first.setting['context']:,}"
        )
    if find_spec("transformers") is None:
        findings.append(f"{STATIC} was not measured: transformers is not installed")
    return final, findings


def _kind(name: str) -> str:
    """The name of a row without its context."""
    return name.partition(" at ")[0]


def _rate(row: BenchRow) -> float:
    return row.extra["tokens_per_s"]


BENCHMARK = Benchmark("s4_table8", cases, finish=finish, rate="tokens_per_s")
