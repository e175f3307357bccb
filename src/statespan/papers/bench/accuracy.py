"""Compares results with their reference."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from statespan.papers.bench.case import Tensors

PIECE = 1 << 25
"""Numbers of input that a reference works on at a time."""


def compare(got: Tensors, want: Tensors) -> dict[str, float]:
    """For each tensor in either, ``max |got - want| / max |want|``.

    It is infinite where a tensor is missing, has another shape or is not finite.
    """
    return {name: _error(got.get(name), want.get(name)) for name in [*want, *(n for n in got if n not in want)]}


def in_pieces(results: Callable[[Tensor, Tensor], Tensors], x: Tensor, dy: Tensor, dtype: torch.dtype) -> Tensors:
    """Compute a reference on a few sequences at a time to limit its memory.

    ``results`` takes inputs and output gradients (B, L, D) in ``dtype``. Of what it returns, names that start with
    "gradient of" are summed over the pieces; the others have a batch dimension and are joined.
    """
    size = max(1, PIECE // max(1, x[0].numel()))
    pieces = [results(part.to(dtype, copy=True), dpart) for part, dpart in zip(x.split(size), dy.split(size))]
    return {
        name: torch.stack([piece[name] for piece in pieces]).sum(0)
        if name.startswith("gradient of")
        else torch.cat([piece[name] for piece in pieces])
        for name in pieces[0]
    }


def _error(got: Tensor | None, want: Tensor | None) -> float:
    if got is None or want is None or got.shape != want.shape:
        return math.inf
    got, want = (t.detach().to(torch.promote_types(t.dtype, torch.float64)) for t in (got, want))
    peak = want.abs().max().item()
    error = (got - want).abs().max().item() / (peak or 1.0)
    return error if math.isfinite(error) else math.inf
