"""`op`: one SSM applied to a sequence, with no layer around it.

Shapes: B batch, H heads, L length. The memory layout is (B, H, L), seen as (B, L, H).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statespan.papers.bench import engine_paths
from statespan.papers.bench.case import Benchmark, BenchOptions, BenchRow, Case, Floor, Tensors, Work, with_ratios
from statespan.papers.bench.layer_work import KINDS, in_pieces, with_gradients
from statespan.ssm import DPLR, Diagonal, Structure

FORWARD, BUILD, TRAIN, COPY = "forward", "build + forward", "build + forward + backward", "copy"
CLONE = "u.clone()"

Shape = tuple[int, int, int]


class Variant(NamedTuple):
    """A case of the benchmark: the SSM, the path and the stage."""

    kind: str
    path: str
    part: str


def cases(options: BenchOptions) -> Iterator[Case]:
    """A copy, then each SSM on each path: applied only, built and applied, and with all gradients."""
    for shape in options.sizes["shapes"]:
        batch, heads, length = shape
        tensor = batch * heads * length * options.dtype.itemsize
        two = Floor(2.0 * tensor, 0.0, "u read, y written")
        five = Floor(5.0 * tensor, 0.0, "u read twice, y and du written, dy read")
        setting = {"batch": batch, "heads": heads, "length": length, "d_state": options.sizes["d_state"]}
        yield Case(CLONE, {**setting, "part": COPY}, partial(_copy, options, shape), two, 0.0)
        for part, floor in ((FORWARD, two), (BUILD, two), (TRAIN, five)):
            for kind in KINDS:
                for path in engine_paths.available(options.device):
                    prepare = partial(_work, options, Variant(kind, path, part), shape)
                    yield Case(f"{kind} {path}", {**setting, "part": part}, prepare, floor, options.tolerance)


def leaves(kind: str, heads: int, d_state: int, device: torch.device) -> dict[str, Tensor]:
    """The parameters of an S4D's or S4's SSM as leaf tensors: A, B, C, dt, and P for S4."""
    ssm = KINDS[kind](heads, d_state, device=device).structure()
    names = ("A", "P", "B", "C", "dt") if kind == "S4" else ("A", "B", "C", "dt")
    return {name: getattr(ssm, name).detach().clone().requires_grad_() for name in names}


def structure(leaf: dict[str, Tensor], dtype: torch.dtype = torch.float32) -> Structure:
    """The SSM with these parameters, its results in ``dtype``."""
    wide = {**leaf, "C": leaf["C"].to(torch.promote_types(dtype, torch.complex64))}
    make: Any = partial(DPLR, algorithm="krylov") if "P" in leaf else Diagonal
    return make(**wide)


def _input(options: BenchOptions, shape: Shape) -> Tensor:
    return torch.randn(shape, device=options.device).to(options.dtype).mT


def _copy(options: BenchOptions, shape: Shape) -> Work:
    u = _input(options, shape)
    return Work(lambda: {"output": u.clone()}, lambda: {"output": u}, graph=True)


def _work(options: BenchOptions, variant: Variant, shape: Shape) -> Work:
    kind, path, part = variant
    leaf = leaves(kind, shape[1], options.sizes["d_state"], options.device)
    dtype = torch.promote_types(options.dtype, torch.float32)
    u, dy = _input(options, shape), _input(options, shape)

    def results(u: Tensor, dy: Tensor, apply: Callable[[Tensor], Tensor]) -> Tensors:
        if part != TRAIN:
            with torch.no_grad():
                return {"output": apply(u).squeeze(2)}
        u = u.requires_grad_()
        # squeezed, not indexed: the gradient of indexing is a copy in another order
        return with_gradients(apply(u).squeeze(2), u, dy, leaf)

    def reference() -> Tensors:
        def piece(u: Tensor, dy: Tensor) -> Tensors:
            return results(u, dy, lambda u: engine_paths.apply(structure(leaf, options.wide), u, "fft"))

        return in_pieces(piece, u.detach(), dy, options.wide)

    def build_and_apply(u: Tensor) -> Tensor:
        return engine_paths.apply(structure(leaf, dtype), u, path)

    with torch.no_grad():
        apply = engine_paths.built(structure(leaf, dtype), u, path) if part == FORWARD else build_and_apply
    return Work(lambda: results(u, dy, apply), reference, graph=True)


def finish(rows: Sequence[BenchRow], options: BenchOptions) -> tuple[list[BenchRow], list[str]]:
    """Add "copies": the time over that of u.clone() at the same shape, both as CUDA graphs if available."""
    same = ("batch", "heads", "length")
    return with_ratios(rows, CLONE, same, lambda row, clone: {"copies": clone.speed_over(row)}), []


BENCHMARK = Benchmark("op", cases, finish=finish)
