"""`table3`: S4 against efficient Transformers, the S4 paper's Table 3.

Its appendix D.1 gives 4 layers, 256 features, 4 heads with 128 features for all queries, keys or values, batch 32 and
"roughly 600k parameters". The four projections of 4 layers are 527k and an embedding of 256 bytes 66k, so these models
have no feed-forward networks. S4 has "state size N = 256": with (A, B) shared by the heads, C and the mixing matrix are
as large as the projections: 597,002 and 600,586 parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from statespan import S4
from statespan.nn.block import ResidualBlock
from statespan.papers.baselines.attention import Attention
from statespan.papers.baselines.linear_attention import LinearAttention, Performer
from statespan.papers.baselines.transformer import TransformerBlock
from statespan.papers.bench.case import OK, Case, Floor, Row, Settings, Work
from statespan.papers.bench.compare import TOLERANCE
from statespan.papers.bench.layers import attention_floor, ssm_floor
from statespan.papers.bench.listing import LISTED
from statespan.papers.bench.model import DEPTH
from statespan.papers.bench.registry import Benchmark
from statespan.papers.bench.training import Residual, step_work

N_LAYERS, VOCABULARY, CLASSES = 4, 256, 10
BASE, FLASH, FFT = "Transformer", "Transformer, flash", "S4, fft"
PAPER = {  # A100: (speed, memory) over the Transformer's
    ("Performer", 1024): (1.23, 0.43),
    ("Linear Transformer", 1024): (1.58, 0.37),
    ("S4", 1024): (1.58, 0.43),
    ("Performer", 4096): (3.79, 0.086),
    ("Linear Transformer", 4096): (5.35, 0.067),
    ("S4", 4096): (5.19, 0.091),
}

Make = Callable[[], nn.Module]


def mixers(settings: Settings) -> dict[str, Make]:
    """How each model mixes positions."""
    D, heads = settings.sizes["d_model"], settings.sizes["n_heads"]
    attention = {"d_head": D // 2 // heads, "causal": False, "device": settings.device}
    return {
        BASE: partial(Attention, D, heads, flash=False, **attention),
        "Performer": partial(Performer, D, heads, **attention),
        "Linear Transformer": partial(LinearAttention, D, heads, **attention),
        FLASH: partial(Attention, D, heads, flash=True, **attention),
        "S4": partial(S4, D, D, n_ssm=1, mix="linear", device=settings.device),
        FFT: partial(S4, D, D, n_ssm=1, mix="linear", device=settings.device),
    }


def build(make: Make, d_model: int) -> Residual:
    """The model around a mixer, from bytes to classes."""
    blocks = [_block(make(), d_model) for _ in range(N_LAYERS)]
    return Residual(nn.Embedding(VOCABULARY, d_model), blocks, d_model, CLASSES)


def _block(mixer: nn.Module, d_model: int) -> nn.Module:
    return ResidualBlock(mixer) if isinstance(mixer, S4) else TransformerBlock(d_model, mixer, d_ff=None)


def cases(settings: Settings) -> Iterator[Case]:
    """Each model at each length."""
    batch, D = settings.sizes["batch"], settings.sizes["d_model"]
    for length in settings.sizes["lengths"]:
        setting = {"length": length, "batch": batch, "d_model": D, "n_layers": N_LAYERS}
        for name, make in mixers(settings).items():
            prepare = partial(_work, settings, make, name, length, "fft" if name == FFT else "auto")
            tolerance = DEPTH * TOLERANCE[settings.dtype]
            yield Case(name, setting, prepare, _floor(settings, name, batch, length, D), tolerance)


def _work(settings: Settings, make: Make, name: str, length: int, path: str) -> Work:
    D = settings.sizes["d_model"]
    inputs = torch.randint(VOCABULARY, (settings.sizes["batch"], length))
    model = build(make, D)
    plain = build(mixers(settings)[BASE], D) if name == FLASH else None
    return step_work(model, inputs, settings, classes=CLASSES, path=path, sample=2, reference=plain, graph=True)


def _floor(settings: Settings, name: str, batch: int, length: int, d_model: int) -> Floor:
    if name.startswith(BASE):
        layer = attention_floor(settings, batch, length, d_model, d_model // 2, causal=False)
    else:  # linear in L: two products with d_model × d_model numbers, or four with half as many
        layer = ssm_floor(settings, batch * length, d_model, d_model if name in ("S4", FFT) else 2 * d_model)
    return Floor(N_LAYERS * layer.bytes, N_LAYERS * layer.flops, f"in each of {N_LAYERS} layers {layer.how}")


def finish(rows: Sequence[Row], settings: Settings) -> tuple[list[Row], list[str]]:
    """Add "speed" and "memory" relative to the Transformer at the same length, and say them beside the paper's.

    Speeds are those of CUDA graphs where both have one: without, a slow CPU in front of the GPU hides the difference.
    """
    base = {row.setting["length"]: row for row in rows if row.name == BASE and row.status == OK}
    final, findings = [], []
    for row in rows:
        length = row.setting["length"]
        if row.status != OK or length not in base:
            final.append(row)
            continue
        graphs = base[length].graph_ms and row.graph_ms
        times = (base[length].graph_ms, row.graph_ms) if graphs else (base[length].time_ms, row.time_ms)
        speed = (times[0] or 0.0) / (times[1] or 1.0)
        memory = (row.memory_mb or 0.0) / (base[length].memory_mb or 1.0)
        final.append(replace(row, extra={"speed": speed, "memory": memory}))
        if (row.name, length) in PAPER:
            paper = "{:.2f}x and {:.3g}x".format(*PAPER[row.name, length])
            findings.append(f"L = {length}: {row.name} {speed:.2f}x speed, {memory:.3g}x memory (paper, A100: {paper})")
    return final, findings


BENCHMARK = Benchmark(
    LISTED["table3"],
    caption=(
        "Table 3 of the S4 paper by its appendix D.1: a training step (forward, loss, backward, AdamW) of 4 layers "
        "without feed-forward networks, heads with half of the features together, S4 with N = d_model and shared "
        "(A, B): equal parameters. Speed (of CUDA graphs on a GPU) and memory are relative to the Transformer that "
        "holds its L × L weights."
    ),
    cases=cases,
    finish=finish,
)
