"""`table8`: tokens a second of the WikiText-103 models, the generation part of the S4 paper's Table 8.

The S4 model is that of appendix D.3.2 (16 blocks of S4, S4 and a feed-forward network, 1,024 features, 249M
parameters), whole: embedding, steps of all layers, adaptive softmax over 267,735 words and the choice of one. The
Transformer has the same width, depth, feed-forward networks and adaptive softmax, 8 heads, flash attention and a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch

from statespan.models import LanguageConfig, LanguageModel
from statespan.papers.bench.cached import (
    AS_IT_COMES,
    HUGGING_FACE,
    CachedTransformer,
    cached_floor,
    cached_work,
    hugging_face_work,
    words,
)
from statespan.papers.bench.case import OK, Case, Row, Settings, Work
from statespan.papers.bench.compare import TOLERANCE
from statespan.papers.bench.decoding import CHECKED, STATE, step_floor, steps_work
from statespan.papers.bench.listing import LISTED
from statespan.papers.bench.model import DEPTH
from statespan.papers.bench.registry import Benchmark

OURS, PLAIN, TRANSFORMER, AFTER = "S4", "S4 without a graph", "Transformer", "S4 after"
PAPER = {OURS: 48_000.0, AS_IT_COMES: 800.0}
PIECE = 8192
"""Tokens of a context that are read at a time."""
LONG = 8192
"""Beyond this context small batches of Transformers are left out: all that they read is their caches."""


def config(settings: Settings) -> LanguageConfig:
    """The language model."""
    sizes = settings.sizes
    return LanguageConfig(
        vocabulary=sizes["vocabulary"], d_model=sizes["d_model"], d_state=sizes["d_state"], n_layers=sizes["n_layers"],
        cutoffs=sizes["cutoffs"], layer="s4",
    )  # fmt: skip


def cases(settings: Settings) -> Iterator[Case]:
    """S4 at each batch, Transformers at each context and batch, and S4 after each context."""
    sizes, dtype = settings.sizes, settings.dtype
    D, layers, heads = sizes["d_model"], sizes["n_layers"], sizes["n_heads"]
    shape = LanguageModel(config(settings), device="meta")
    state = shape.initial_state(1, dtype=STATE)
    tolerance = DEPTH * TOLERANCE[dtype]

    def ours(name: str, batch: int, prepare: Callable[[], Work], **setting: Any) -> Case:
        floor = step_floor(shape, batch, [(state, 1.0)], dtype.itemsize)
        return Case(name, {"batch": batch, "d_model": D, **setting}, prepare, floor, tolerance, optional=batch > 1)

    for batch in sizes["batches"]:
        yield ours(OURS, batch, partial(_work, settings, batch), part="throughput")
    yield ours(
        PLAIN, sizes["batches"][0], partial(_work, settings, sizes["batches"][0], graph=False), part="throughput"
    )
    for context in sizes["contexts"]:
        baseline = partial(transformer, settings, context)
        weights = sum(p.numel() for p in baseline(device=torch.device("meta")).parameters())
        for batch in batches(settings, 2 * layers * context * D, weights, dtype.itemsize, few=context > LONG):
            prepare = partial(cached_work, partial(baseline, device=settings.device), settings, batch, context)
            floor = cached_floor(D, layers, weights, batch, context, dtype.itemsize)
            setting = {"part": "throughput", "batch": batch, "d_model": D, "context": context}
            yield Case(f"{TRANSFORMER} at {context}", setting, prepare, floor, tolerance, optional=True)
    if find_spec("transformers") is not None:
        yield from _hugging_face(settings, D, heads, layers)
    for context in sizes["after"]:
        yield ours(f"{AFTER} {context}", 1, partial(_after, settings, context), part="context", context=context)


def _hugging_face(settings: Settings, D: int, heads: int, layers: int) -> Iterator[Case]:
    """GPT-2 with a static cache in the precision of all others, and as it comes."""
    weights = 12 * layers * D * D
    for kind, size in ((HUGGING_FACE, "hugging_face"), (AS_IT_COMES, "as_it_comes")):
        as_it_comes = kind == AS_IT_COMES
        itemsize = 4 if as_it_comes else settings.dtype.itemsize
        copies = 3 if as_it_comes else 1  # the cache before, the one after, and what is lost between them
        for context in settings.sizes[size]:
            cached = 2 * layers * context * D
            for batch in batches(settings, copies * cached, weights, itemsize, few=context > LONG):
                prepare = partial(
                    hugging_face_work, settings, batch, context, D, heads, layers, as_it_comes=as_it_comes
                )
                floor = cached_floor(D, layers, weights, batch, context, itemsize)
                setting = {"part": "throughput", "batch": batch, "d_model": D, "context": context}
                yield Case(f"{kind} at {context}", setting, prepare, floor, None, optional=True)


def batches(settings: Settings, cached: int, weights: int, itemsize: int, *, few: bool = False) -> list[int]:
    """The largest power of two of rows whose caches fit, and smaller ones.

    Args:
        settings: The user's choices.
        cached: Numbers of a row's cache.
        weights: Numbers of the model.
        itemsize: Bytes of a number.
        few: Whether to leave out the smallest, where caches are most of the work at any batch.
    """
    if settings.device.type == "cpu":
        return [2]
    room = 0.8 * torch.cuda.get_device_properties(settings.device).total_memory / itemsize - weights
    largest = max(1, min(int(room / cached), settings.sizes["batches"][-1]))
    top = 1 << (largest.bit_length() - 1)
    return [batch for batch in (() if few else (top // 16,)) + (top // 4, top) if batch]


def transformer(settings: Settings, context: int, device: torch.device) -> CachedTransformer:
    """The Transformer of the same size."""
    sizes, dtype = settings.sizes, settings.dtype
    tokens = words(sizes["vocabulary"], sizes["d_model"], sizes["cutoffs"], device, dtype)
    places = max(12, min(context, PIECE))
    return CachedTransformer(sizes["d_model"], sizes["n_heads"], sizes["n_layers"], tokens, places, device, dtype)


def _model(settings: Settings) -> LanguageModel:
    return LanguageModel(config(settings), device=settings.device).to(settings.dtype).eval()


def _tokens(settings: Settings, length: int) -> torch.Tensor:
    return torch.randint(settings.sizes["vocabulary"], (CHECKED, length), device=settings.device)


def _work(settings: Settings, batch: int, graph: bool = True) -> Work:
    return steps_work(_model(settings), settings, batch, 1, tokens=_tokens(settings, 12), graph=graph)


@torch.no_grad()
def _after(settings: Settings, context: int) -> Work:
    """A step after a context, compared with a pass over the context that ends with the same token."""
    model = _model(settings)
    tokens = torch.randint(settings.sizes["vocabulary"], (1, context), device=settings.device)

    def read(tokens: torch.Tensor) -> tuple[torch.Tensor, Any]:
        state, y = model.initial_state(1, dtype=STATE), torch.empty(0)
        for piece in tokens.split(PIECE, 1):
            y, state = model.prefill(piece, state, last=True)
        return y, state

    _, state = read(tokens[:, :-1])
    work = steps_work(model, settings, 1, 1, tokens=_tokens(settings, 12), state=state)

    @torch.no_grad()
    def last() -> dict[str, torch.Tensor]:
        _, before = read(tokens[:, :-1])
        return {"output": model.step(tokens[:, -1], before)[0]}

    @torch.no_grad()
    def wanted() -> dict[str, torch.Tensor]:
        return {"output": read(tokens)[0]}

    return replace(work, sample=last, reference=wanted)


def finish(rows: Sequence[Row], settings: Settings) -> tuple[list[Row], list[str]]:
    """Add "tokens_per_s"; say each model's best, how far it is from its floor, and who is how much faster."""
    final = [
        replace(row, extra={"tokens_per_s": 1e3 * row.setting["batch"] / row.time_ms}) if row.time_ms else row
        for row in rows
    ]
    best: dict[str, Row] = {}
    for row in final:
        fast = row.extra.get("tokens_per_s", 0.0)
        if row.status == OK and row.setting["part"] == "throughput" and fast > _rate(best.get(row.name)):
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
        alone = next((r for r in final if r.name == OURS and r.setting["batch"] == 1 and r.status == OK), None)
        if alone is not None:
            findings.append(f"{OURS}, one sequence: {alone.time_ms:.3g} ms a token")
    after = [row for row in final if row.setting["part"] == "context" and row.status == OK]
    if len(after) > 1:
        first, last = after[0], after[-1]
        ratio = (last.time_ms or 0.0) / (first.time_ms or 1.0)
        findings.append(f"a step after {last.setting['context']:,} tokens takes {ratio:.3f}x the time of one after "
                        f"{first.setting['context']:,}")  # fmt: skip
    if find_spec("transformers") is None:
        findings.append(f"{HUGGING_FACE} was not measured: transformers is not installed")
    return final, findings


def _kind(name: str) -> str:
    """A name without its context."""
    return name.partition(" at ")[0]


def _rate(row: Row | None) -> float:
    return 0.0 if row is None else row.extra.get("tokens_per_s", 0.0)


BENCHMARK = Benchmark(
    LISTED["table8"],
    caption=(
        "One step of generation: the model of appendix D.3.2 of the S4 paper with embedding, adaptive softmax and the "
        "choice of a word, float32 states, against Transformers of the same size with a cache that is full up to the "
        "context named. All but Hugging Face's as CUDA graphs on a GPU. Hugging Face's are blocks alone; as it comes "
        "means float32 and a cache that each step copies in order to append to it."
    ),
    cases=cases,
    finish=finish,
    rate="tokens_per_s",
)  # fmt: skip
