"""`s4_table2`: S4 against LSSL, the S4 paper's Table 2.

Its appendix D.1 gives one layer with H features, state size N = H for LSSL and H/2 for S4 ("to parameter-match"), and
one forward and backward pass. That does match the parameters: 197,632 and 197,376 at H = 256. It gives neither batch
nor length. One sequence of 1024 samples is our choice: the paper's 5.3, 12.6 and 33.5 MB of S4 are about 35 kB a
feature beside what grows with N, and the FFTs of such a sequence need as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from statespan import LSSL, S4
from statespan.papers.bench import naive
from statespan.papers.bench.case import Benchmark, BenchOptions, BenchRow, Case, with_ratios
from statespan.papers.bench.layer_work import OWN_FORWARD, Forward, layer_work, ssm_floor

NAIVE = "LSSL Krylov"
PAPER = {  # A100: (ms of LSSL, ms of S4, MB of LSSL, MB of S4)
    128: (9.32, 4.77, 222.1, 5.3),
    256: (20.6, 3.07, 1685.0, 12.6),
    512: (140.7, 4.75, 13140.0, 33.5),
}


def cases(options: BenchOptions) -> Iterator[Case]:
    """Three variants of LSSL and four of S4 at each width."""
    batch, length = options.sizes["batch"], options.sizes["length"]
    krylov = naive.forward_with(partial(naive.krylov, dtype=options.parameter_dtype))
    for d in options.sizes["d_model"]:
        lssl = partial(LSSL, d, d, mix="linear", device=options.device)
        s4 = partial(S4, d, d // 2, mix="linear", device=options.device)
        cauchy = partial(s4, kernel="cauchy")
        variants: list[tuple[str, Any, str, Forward, str]] = [
            (NAIVE, lssl, "fft", krylov, "all of Ā^l B̄ in memory, as the LSSL paper has it"),
            ("LSSL fft", lssl, "fft", OWN_FORWARD, "our Krylov kernel of two short lists"),
            ("LSSL chunks", lssl, "chunks", OWN_FORWARD, "our chunk engine"),
            ("S4 Cauchy", cauchy, "auto", OWN_FORWARD, "the S4 paper's algorithm; on a GPU in Triton kernels"),
            ("S4 Cauchy, plain torch", cauchy, "fft", OWN_FORWARD, "the same by blocks of the Cauchy matrix"),
            ("S4 fft", s4, "fft", OWN_FORWARD, "our Krylov kernel"),
            ("S4", s4, "auto", OWN_FORWARD, "what a user gets"),
        ]
        for name, make, path, forward, notes in variants:
            d_state = d if name.startswith("LSSL") else d // 2
            setting = {"d_model": d, "d_state": d_state, "batch": batch, "length": length}
            prepare = partial(layer_work, make, options, batch, length, path=path, forward=forward)
            floor = ssm_floor(options, batch * length, d, d)
            yield Case(name, setting, prepare, floor, options.tolerance, optional=name == NAIVE, notes=notes)


def finish(rows: Sequence[BenchRow], options: BenchOptions) -> tuple[list[BenchRow], list[str]]:
    """Add "speedup" and "memory_saving" over LSSL's own algorithm at the same width, reported as in the paper."""

    def ratios(row: BenchRow, lssl: BenchRow) -> dict[str, float]:
        return {"speedup": row.speed_over(lssl, graphs=False), "memory_saving": lssl.memory_over(row)}

    final = with_ratios(rows, NAIVE, ["d_model"], ratios)
    findings = []
    for row in final:
        if row.name == "S4" and row.extra:
            d, time, memory = row.setting["d_model"], row.extra["speedup"], row.extra["memory_saving"]
            paper = ""
            if d in PAPER:
                lssl_ms, s4_ms, lssl_mb, s4_mb = PAPER[d]
                paper = f" (paper, A100: {lssl_ms / s4_ms:.1f} and {lssl_mb / s4_mb:.0f})"
            findings.append(f"d = {d}: S4 is {time:.1f} times as fast as LSSL, in 1/{memory:.0f} of its memory{paper}")
    return final, findings


BENCHMARK = Benchmark("s4_table2", cases, dtype="float32", finish=finish)
