"""`s4_table3`: S4 against efficient Transformers, the S4 paper's Table 3.

Its appendix D.1 gives 4 layers, 256 features, 4 heads with 128 features for all queries, keys or values, batch 32 and
"roughly 600k parameters". The four projections of 4 layers are 527k and an embedding of 256 bytes 66k, so these models
have no feed-forward networks. S4 has "state size N = 256": with (A, B) shared by the heads, C and the mixing matrix are
as large as the projections: 597,002 and 600,586 parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import nn

from statespan import S4
from statespan.nn.block import ResidualBlock
from statespan.papers.baselines.attention import Attention
from statespan.papers.baselines.linear_attention import LinearAttention, Performer
from statespan.papers.baselines.transformer import TransformerBlock
from statespan.papers.bench.case import Benchmark, BenchOptions, BenchRow, Case, Floor, Work, with_ratios
from statespan.papers.bench.layer_work import attention_floor, ssm_floor
from statespan.papers.bench.training import ResidualClassifier, step_work

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


def mixers(options: BenchOptions) -> dict[str, Make]:
    """The mixer of each model."""
    D, heads = options.sizes["d_model"], options.sizes["n_heads"]
    attention = {"d_head": D // 2 // heads, "bidirectional": True, "device": options.device}
    return {
        BASE: partial(Attention, D, heads, flash=False, **attention),
        "Performer": partial(Performer, D, heads, **attention),
        "Linear Transformer": partial(LinearAttention, D, heads, **attention),
        FLASH: partial(Attention, D, heads, flash=True, **attention),
        "S4": partial(S4, D, D, n_ssm=1, mix="linear", device=options.device),
        FFT: partial(S4, D, D, n_ssm=1, mix="linear", device=options.device),
    }


def build(make: Make, d_model: int) -> ResidualClassifier:
    """The model around a mixer, from bytes to classes."""
    layers = [make() for _ in range(N_LAYERS)]
    blocks = [ResidualBlock(m) if isinstance(m, S4) else TransformerBlock(d_model, m, d_ff=None) for m in layers]
    return ResidualClassifier(nn.Embedding(VOCABULARY, d_model), blocks, nn.Linear(d_model, CLASSES))


def cases(options: BenchOptions) -> Iterator[Case]:
    """Each model at each length."""
    batch, D = options.sizes["batch"], options.sizes["d_model"]
    for length in options.sizes["lengths"]:
        setting = {"length": length, "batch": batch, "d_model": D, "n_layers": N_LAYERS}
        for name, make in mixers(options).items():
            prepare = partial(_work, options, make, name, length)
            floor = _floor(options, name, length).in_each_of(N_LAYERS, "layers")
            yield Case(name, setting, prepare, floor, options.model_tolerance)


def _work(options: BenchOptions, make: Make, name: str, length: int) -> Work:
    D = options.sizes["d_model"]
    inputs = torch.randint(VOCABULARY, (options.sizes["batch"], length))
    model = build(make, D)
    plain = build(mixers(options)[BASE], D) if name == FLASH else None
    path = "fft" if name == FFT else "auto"
    return step_work(model, inputs, options, path=path, sample=2, reference=plain, graph=True)


def _floor(options: BenchOptions, name: str, length: int) -> Floor:
    """The floor of one layer."""
    batch, D = options.sizes["batch"], options.sizes["d_model"]
    if name.startswith(BASE):
        return attention_floor(options, batch, length, D, inner=D // 2, causal=False)
    # linear in L: two products with d_model × d_model numbers, or four with half as many
    return ssm_floor(options, batch * length, D, D if name in ("S4", FFT) else 2 * D)


def finish(rows: Sequence[BenchRow], options: BenchOptions) -> tuple[list[BenchRow], list[str]]:
    """Add "speed" and "memory" relative to the Transformer at the same length, and report them beside the paper's.

    Speeds are those of CUDA graphs if both have one: otherwise the launches of a slow CPU hide the difference.
    """

    def ratios(row: BenchRow, transformer: BenchRow) -> dict[str, float]:
        return {"speed": row.speed_over(transformer), "memory": row.memory_over(transformer)}

    final = with_ratios(rows, BASE, ["length"], ratios)
    findings = []
    for row in final:
        length = row.setting["length"]
        if row.extra and (row.name, length) in PAPER:
            speed, memory = row.extra["speed"], row.extra["memory"]
            paper = "{:.2f}x and {:.3g}x".format(*PAPER[row.name, length])
            findings.append(f"L = {length}: {row.name} {speed:.2f}x speed, {memory:.3g}x memory (paper, A100: {paper})")
    return final, findings


BENCHMARK = Benchmark("s4_table3", cases, finish=finish)
