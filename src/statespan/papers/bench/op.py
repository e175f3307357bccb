"""`op`: one SSM applied to a sequence, with no layer around it.

Shapes: B batch, H heads, L length. The memory layout is (B, H, L), seen as (B, L, H).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from statespan.ops import apply as apply_ssm
from statespan.ops import dispatch, fftconv, use_path
from statespan.ops.ssm.apply import build_operators, request_for, run_chunks
from statespan.ops.ssm.arguments import ChunkOptions
from statespan.ops.ssm.source import source_of
from statespan.papers.bench.case import Benchmark, BenchOptions, BenchRow, Case, Floor, Tensors, Work, with_ratios
from statespan.papers.bench.layer_work import KINDS, in_pieces, paths, with_gradients
from statespan.ssm import DPLR, Diagonal, Structure

FORWARD, BUILD, TRAIN, COPY = "forward", "build + forward", "build + forward + backward", "copy"
CLONE = "u.clone()"

Shape = tuple[int, int, int]


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
                for path in paths(options.device):
                    prepare = partial(_work, options, shape, kind=kind, path=path, part=part)
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


def _work(options: BenchOptions, shape: Shape, *, kind: str, path: str, part: str) -> Work:
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
            return results(u, dy, lambda u: apply_by("fft", structure(leaf, options.wide), u))

        return in_pieces(piece, u.detach(), dy, options.wide)

    def build_and_apply(u: Tensor) -> Tensor:
        return apply_by(path, structure(leaf, dtype), u)

    with torch.no_grad():
        apply = built_for(path, structure(leaf, dtype), u) if part == FORWARD else build_and_apply
    return Work(lambda: results(u, dy, apply), reference, graph=True)


def apply_by(path: str, ssm: Structure, u: Tensor) -> Tensor:
    """The SSM's output (B, L, K, H) for u (B, L, H): build what the path needs, then apply it."""
    with use_path(path):
        return apply_ssm(ssm, u, dtype=_dtype(ssm, u, path)).to(u.dtype)


def built_for(path: str, ssm: Structure, u: Tensor) -> Callable[[Tensor], Tensor]:
    """The same for inputs like u, with everything that depends only on the parameters built beforehand."""
    dtype = _dtype(ssm, u, path)
    if path == "fft":
        kernel = ssm.kernel(u.shape[1]).to(dtype)
        return lambda u: fftconv(u.to(dtype), kernel).to(u.dtype)
    with use_path(path):
        request = request_for(ssm, u, dtype=dtype)
    operators, options = build_operators(request), ChunkOptions(path, request.working)
    return lambda u: run_chunks(u, None, operators, options)[0].to(u.dtype)


def _dtype(ssm: Structure, u: Tensor, path: str) -> torch.dtype:
    """The dtype to compute in: the kernels' own choice, except that FFTs have no half precision."""
    dtype = dispatch.input_dtype(source_of(ssm), u)
    return torch.promote_types(dtype, torch.float32) if path == "fft" else dtype


def finish(rows: Sequence[BenchRow], options: BenchOptions) -> tuple[list[BenchRow], list[str]]:
    """Add "copies": the time over that of u.clone() at the same shape, both as CUDA graphs if available."""
    same = ("batch", "heads", "length")
    return with_ratios(rows, CLONE, same, lambda row, clone: {"copies": clone.speed_over(row)}), []


BENCHMARK = Benchmark("op", cases, finish=finish)
