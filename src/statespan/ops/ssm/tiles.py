"""Chooses the kernels' tiles by a fixed rule, so that the same input gives the same bits on every run.

``memory`` is the shared memory of a program (:func:`statespan.ops.memory.shared_memory`): 227 KiB on data-centre GPUs
since 2022, 163 KiB on those before, 99 KiB on workstation and gaming GPUs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

PROGRAMS = 256  # about two programs on each multiprocessor of the largest GPUs of today
FEWEST_CHUNKS = 8  # of a segment: below, its fixed costs show
SIXTEEN_BITS = (torch.float16, torch.bfloat16)
SMALL, MIDDLE, LARGE = 99 << 10, 160 << 10, 200 << 10
"""From which memory on there are kernels; chunks may be long; and those of a dense G in full precision too."""


class Tiles(NamedTuple):
    """The tile shape of a program.

    Example:
        >>> small = Tiles(columns=32, warps=2)
        >>> small.columns, small.stages
        (32, 3)
    """

    columns: int = 64
    """Rows of the matrix products: segments of sequences worked on together."""
    per_segment: int = 1 << 30
    """Chunks of each segment, a power of two; cut to the length of the input."""
    warps: int = 4
    stages: int = 3
    """Pieces of the input on their way; if kernels are apart, of the one for the states."""
    backward_warps: int = 4
    backward_stages: int = 2
    """The same of the backward pass; if kernels are apart, of the one for the outputs."""
    backward_columns: int = 0
    """0 for as many as forward."""
    apart: bool = False
    """Whether states, outputs and the gradients of the operators have a kernel each, as full precision needs."""


def fits(d_state: int, power: str, dtype: torch.dtype, memory: int) -> bool:
    """Whether kernels exist for this state size, ``power`` (:class:`statespan.ops.ssm.source.SSMSource`) and dtype."""
    if memory < SMALL:
        return False
    if dtype in SIXTEEN_BITS:
        return d_state <= (128 if power in ("low rank", "dense") else 256)
    largest = {"diagonal": 256 if memory >= MIDDLE else 128, "rank one": 256, "low rank": 256, "dense": 64}[power]
    return dtype == torch.float32 and d_state <= largest


def recomputes(d_state: int, dtype: torch.dtype, memory: int) -> bool:
    """Whether a backward pass has room to recompute the pre-activation; that of full precision never recomputes it."""
    return dtype in SIXTEEN_BITS and (memory >= MIDDLE or d_state <= 64)


def choose_tiles(
    *,
    heads: int,
    batch: int,
    length: int,
    d_state: int,
    chunk: int,
    dense: bool,
    factored: bool,
    dtype: torch.dtype,
    memory: int,
    both: bool = False,
) -> Tiles:
    """The tiles for this much work.

    Large tiles reuse the operators most, so they are taken as large as the batch fills and the state leaves room for;
    then smaller, and the sequences cut into segments, until the GPU is full. A G in factors is for large states, whose
    power over a segment would not fit; such sequences take a single pass.
    """
    narrow, tight = dtype in SIXTEEN_BITS, memory < MIDDLE
    largest = 64 if d_state <= 64 else 32 if d_state <= 128 and not (dense and tight) else 16
    if not narrow and (d_state > 64 or memory < LARGE):
        largest = 16
    columns = largest_filled = min(largest, 64 if batch >= 48 else 32 if batch >= 24 else 16)
    per_segment = 1 << max(0, -(-length // chunk) - 1).bit_length()

    if factored:
        warps = 2 if d_state <= 128 else 4
        return Tiles(16, per_segment, warps, 3 if narrow else 1, warps, 3 if narrow else 1)

    def programs() -> int:
        segments = -(-length // (chunk * per_segment))
        return heads * -(-batch * segments // columns)

    while batch * -(-length // (chunk * per_segment)) < 16 and per_segment > FEWEST_CHUNKS:
        per_segment //= 2
    while programs() < PROGRAMS and columns > 16:
        columns //= 2
    while programs() < PROGRAMS and per_segment > FEWEST_CHUNKS:
        per_segment //= 2
    warps = 4 if d_state <= 64 else 8
    if not narrow:
        stages = 1 if d_state > 64 or memory < LARGE else 3
        return Tiles(columns, per_segment, warps, min(stages, 2) if dense else stages, warps, stages, apart=True)
    if d_state > 64:
        stages = 2 if d_state <= 128 and not (dense and tight) else 1
        return Tiles(columns, per_segment, warps, stages, warps, stages)
    if columns == 16:
        return Tiles(columns, per_segment, 4, 4, 4, 4) if dense else Tiles(columns, per_segment, 1, 6, 4, 4)
    if dense:
        return Tiles(columns, per_segment, 4, 2 if tight else 4, 4, 2)
    if both:  # a forward pass in both directions has twice the work in a program: half as many fill the GPU
        wide, segments = columns, -(-length // (chunk * per_segment))
        while wide < largest_filled and heads * -(-batch * segments // (2 * wide)) >= PROGRAMS // 2:
            wide *= 2
        return Tiles(wide, per_segment, 4, 4, 4, 3, columns)
    # of a single direction four programs fit on a multiprocessor, if each has few pieces of the input on their way
    return Tiles(columns, per_segment, 4, 3 if columns == 64 else 4, 4, 3)


def is_single_pass(*, length: int, chunk: int, **work: Any) -> bool:
    """Whether the tiles for this work take each sequence in one pass."""
    return choose_tiles(length=length, chunk=chunk, **work).per_segment * chunk >= length


# A tracer calls these once. What it compiles need not check at every call that they would answer the same.
_CONSTANT: tuple[Any, ...] = (fits, recomputes, is_single_pass)
for _function in _CONSTANT:
    _function._dynamo_marked_constant = True
