"""`layer`: one whole layer, forward and backward, at a fixed number of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from statespan import S4, S4D
from statespan.papers.baselines.attention import Attention
from statespan.papers.bench import paths
from statespan.papers.bench.case import Case, Settings, Work
from statespan.papers.bench.compare import TOLERANCE
from statespan.papers.bench.layers import attention_floor, layer_work, ssm_floor
from statespan.papers.bench.listing import LISTED
from statespan.papers.bench.registry import Benchmark


def cases(settings: Settings) -> Iterator[Case]:
    """S4D and S4 on each path, and flash attention, at each length."""
    sizes = settings.sizes
    D, N, n_heads = sizes["d_model"], sizes["d_state"], sizes["n_heads"]
    for length in sizes["lengths"]:
        batch = max(1, sizes["tokens"] // length)
        setting = {"length": length, "batch": batch, "d_model": D}
        floor = ssm_floor(settings, batch * length, D, 2 * D)
        for kind, layer in (("S4D", S4D), ("S4", S4)):
            for path in paths.available(settings.device):
                make = partial(layer, D, N, mix="glu", device=settings.device)
                prepare = partial(layer_work, make, settings, batch, length, path=path)
                yield Case(f"{kind} {path}", {**setting, "d_state": N}, prepare, floor, TOLERANCE[settings.dtype])
        floor = attention_floor(settings, batch, length, D, D, causal=True)
        prepare = partial(flash_attention, settings, D, n_heads, batch, length)
        yield Case("flash attention", {**setting, "n_heads": n_heads}, prepare, floor, None, optional=True)


def flash_attention(settings: Settings, d_model: int, n_heads: int, batch: int, length: int) -> Work:
    """Causal attention of the same width by torch's fused kernel, which is not ours to check."""
    make = partial(Attention, d_model, n_heads, causal=True, flash=True, device=settings.device)
    return layer_work(make, settings, batch, length, reference=None)


BENCHMARK = Benchmark(
    LISTED["layer"],
    caption="One causal layer (SSM, GELU, linear map with GLU), forward and backward with all gradients.",
    cases=cases,
)
