"""`layer`: one whole layer, forward and backward, at a fixed number of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from statespan.papers.baselines.attention import Attention
from statespan.papers.bench.case import Benchmark, BenchOptions, Case
from statespan.papers.bench.layer_work import KINDS, attention_floor, layer_work, paths, ssm_floor


def cases(options: BenchOptions) -> Iterator[Case]:
    """S4D and S4 on each path, and flash attention, at each length."""
    D, N = options.sizes["d_model"], options.sizes["d_state"]
    for length in options.sizes["lengths"]:
        batch = max(1, options.sizes["tokens"] // length)
        setting = {"length": length, "batch": batch, "d_model": D}
        floor = ssm_floor(options, batch * length, D, 2 * D)
        for kind, layer in KINDS.items():
            for path in paths(options.device):
                make = partial(layer, D, N, mix="glu", device=options.device)
                prepare = partial(layer_work, make, options, batch, length, path=path)
                yield Case(f"{kind} {path}", {**setting, "d_state": N}, prepare, floor, options.tolerance)
        yield flash_attention(options, batch, length)


def flash_attention(options: BenchOptions, batch: int, length: int) -> Case:
    """Causal attention of the same width by torch's fused kernel, which is not checked."""
    D, n_heads = options.sizes["d_model"], options.sizes["n_heads"]
    make = partial(Attention, D, n_heads, flash=True, device=options.device)
    prepare = partial(layer_work, make, options, batch, length, compared=False)
    floor = attention_floor(options, batch, length, D, inner=D, causal=True)
    setting = {"length": length, "batch": batch, "d_model": D, "n_heads": n_heads}
    return Case("flash attention", setting, prepare, floor, None, optional=True)


BENCHMARK = Benchmark("layer", cases)
