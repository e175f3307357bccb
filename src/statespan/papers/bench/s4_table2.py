"""`table2`: S4 against LSSL, the S4 paper's Table 2.

Its appendix D.1 gives one layer with H features, state size N = H for LSSL and H/2 for S4 ("to parameter-match"), and
one forward and backward pass. That does match the parameters: 197,632 and 197,376 at H = 256. It gives neither batch
nor length. One sequence of 1024 samples is our choice: the paper's 5.3, 12.6 and 33.5 MB of S4 are about 35 kB a
feature beside what grows with N, and the FFTs of such a sequence need as much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from torch import nn

from statespan import LSSL, S4
from statespan.papers.bench import naive
from statespan.papers.bench.case import OK, Case, Row, Settings
from statespan.papers.bench.compare import TOLERANCE
from statespan.papers.bench.layers import Forward, call, layer_work, ssm_floor
from statespan.papers.bench.listing import LISTED
from statespan.papers.bench.registry import Benchmark

NAIVE = "LSSL Krylov"
PAPER = {  # A100: (ms of LSSL, ms of S4, MB of LSSL, MB of S4)
    128: (9.32, 4.77, 222.1, 5.3),
    256: (20.6, 3.07, 1685.0, 12.6),
    512: (140.7, 4.75, 13140.0, 33.5),
}


def cases(settings: Settings) -> Iterator[Case]:
    """LSSL in three ways and S4 in three at each width."""
    batch, length = settings.sizes["batch"], settings.sizes["length"]
    krylov = naive.forward_with(partial(naive.krylov, dtype=settings.parameter_dtype))
    for d in settings.sizes["d_model"]:
        lssl = partial(LSSL, d, d, mix="linear", device=settings.device)
        s4 = partial(S4, d, d // 2, mix="linear", device=settings.device)
        cauchy = partial(s4, kernel="cauchy")
        ways: list[tuple[str, Callable[[], nn.Module], str, Forward, str]] = [
            (NAIVE, lssl, "fft", krylov, "all of Ā^l B̄ in memory, as the LSSL paper has it"),
            ("LSSL fft", lssl, "fft", call, "our Krylov kernel of two short lists"),
            ("LSSL chunks", lssl, "chunks", call, "our chunk engine"),
            ("S4 Cauchy", cauchy, "fft", call, "the S4 paper's algorithm"),
            ("S4 fft", s4, "fft", call, "our Krylov kernel"),
            ("S4", s4, "auto", call, "what a user gets"),
        ]
        for name, make, path, forward, notes in ways:
            setting = {
                "d_model": d,
                "d_state": d if name.startswith("LSSL") else d // 2,
                "batch": batch,
                "length": length,
            }
            prepare = partial(layer_work, make, settings, batch, length, path=path, forward=forward)
            floor = ssm_floor(settings, batch * length, d, d)
            yield Case(name, setting, prepare, floor, TOLERANCE[settings.dtype], optional=name == NAIVE, notes=notes)


def finish(rows: Sequence[Row], settings: Settings) -> tuple[list[Row], list[str]]:
    """Add "speedup" and "memory_saving" over LSSL's own way at the same width, and say it as the paper does."""
    base = {row.setting["d_model"]: row for row in rows if row.name == NAIVE and row.status == OK}
    final, findings = [], []
    for row in rows:
        d = row.setting["d_model"]
        if row.status != OK or d not in base:
            final.append(row)
            continue
        time = (base[d].time_ms or 0.0) / (row.time_ms or 1.0)
        memory = (base[d].memory_mb or 0.0) / (row.memory_mb or 1.0)
        final.append(replace(row, extra={"speedup": time, "memory_saving": memory}))
        if row.name == "S4":
            paper = ""
            if d in PAPER:
                lssl_ms, s4_ms, lssl_mb, s4_mb = PAPER[d]
                paper = f" (paper, A100: {lssl_ms / s4_ms:.1f} and {lssl_mb / s4_mb:.0f})"
            findings.append(f"d = {d}: S4 is {time:.1f} times as fast as LSSL, in 1/{memory:.0f} of its memory{paper}")
    return final, findings


BENCHMARK = Benchmark(
    LISTED["table2"],
    caption=(
        "Table 2 of the S4 paper by its appendix D.1: one layer with H features, state size H for LSSL and H/2 for S4, "
        "one forward and backward pass. The appendix gives neither batch nor length: see the rows for ours."
    ),
    cases=cases,
    dtype="float32",
    finish=finish,
)
