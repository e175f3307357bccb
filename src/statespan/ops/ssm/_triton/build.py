"""Builds operators from parameters on the device: one launch forward, one backward.

:func:`statespan.ops.ssm.registered.operators` does the same in plain torch.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from statespan.ops._triton.launcher import Region, empty, launch
from statespan.ops._triton.sums import PartialSums
from statespan.ops.ssm._triton.diagonal import diagonal_backward_kernel, diagonal_kernel
from statespan.ops.ssm._triton.joined import joined_diagonal_backward_kernel, joined_lowrank_finish_kernel
from statespan.ops.ssm._triton.lowrank import lowrank_backward_kernel, lowrank_finish_kernel, lowrank_kernel
from statespan.ops.ssm._triton.power import add_product, product_gradients
from statespan.ops.ssm.arguments import BuildOptions, BuiltLists, ChunkOperators, ModeTensors

PARTS = 4  # of a chunk, each with its own threads


def _constants(modes: ModeTensors, options: BuildOptions) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The common integer and compile-time arguments of the kernels."""
    channels, H, M, _ = modes.C.shape
    sizes = (H, modes.decay.shape[0], M, channels, channels - options.ahead)
    constants = {
        "c": options.chunk, "BITS": options.chunk.bit_length() - 1, "P": max(16, triton.next_power_of_2(M)),
        "REAL": options.real_part, "LOG": options.log_dt, "FT": tl.float64 if options.precise else tl.float32,
    }  # fmt: skip
    return sizes, constants


def _threads(constants: dict[str, Any]) -> dict[str, int]:
    """Of a diagonal SSM: one for each mode in each part of a chunk."""
    parts = min(PARTS, constants["c"])
    return {"PARTS": parts, "num_warps": max(1, min(8, parts * constants["P"] // 32))}


def room_for(modes: ModeTensors, options: BuildOptions) -> list[Region]:
    """The shapes of the operators."""
    channels, H, M, _ = modes.C.shape
    N, chunk, rank = 2 * M, options.chunk, 0 if modes.P is None else modes.P.shape[0]
    shapes: list[tuple[int, ...]] = [
        (channels, H, chunk), (H, chunk, N), (H, N, N) if rank and not options.factored else (H, N),
        (channels, H, chunk, N), (2, H, rank * chunk, N) if rank else (0,),
    ]  # fmt: skip
    assert not (rank and options.rounded)
    wide = torch.float64 if options.precise else torch.float32
    lists = torch.float32 if options.rounded else wide
    return [Region(shape, dtype) for shape, dtype in zip(shapes, (lists, lists, wide, lists, wide))]


def forward(modes: ModeTensors, options: BuildOptions, *, room: ChunkOperators | None = None) -> ChunkOperators:
    """The operators in the computing precision or rounded, with the factors W even beside a dense G, in ``room``."""
    sizes, constants = _constants(modes, options)
    dt, decay, freq, B, C, D, P = modes
    channels, H, M, _ = C.shape
    skip, constants["SKIP"] = C if D is None else D, D is not None
    K, E, G, O, W = room or ChunkOperators(*(empty(*part, C.device) for part in room_for(modes, options)))  # noqa: E741
    assert W is not None
    if P is None:
        launch(
            diagonal_kernel, (H,),
            dt, decay, freq, B, C, skip, K, E, G, O, *sizes, **constants, RULE=options.rule, **_threads(constants),
        )  # fmt: skip
        return ChunkOperators(K, E, G, O)
    F, J, rank = W[0], W[1], P.shape[0]
    launch(
        lowrank_kernel, (H, 1 + 2 * rank + channels),
        dt, decay, freq, P, B, C, skip, K, E, O, F, J, G, *sizes, **constants, FACTORED=options.factored, R=rank,
        num_warps=1 if M <= 32 else 4,
    )  # fmt: skip
    if not options.factored:
        add_product(G, F, J)
    return ChunkOperators(K, E, G, O, W)


def backward(arriving: ChunkOperators, modes: ModeTensors, built: BuiltLists, options: BuildOptions) -> ModeTensors:
    """The gradients of all parameters but D; those of A and B summed over the heads that share them.

    ``built`` is used for a low-rank SSM alone. ``arriving.W`` comes with factors that were left apart.
    """
    sizes, constants = _constants(modes, options)
    dt, decay, freq, B, C, _, P = modes
    dK, dE, dG, dO, dW = arriving
    H, M, dC = sizes[0], sizes[2], empty(C.shape, C.dtype, C.device)
    dK, dE, dO = (x.contiguous() for x in (dK, dE, dO))
    if P is None:
        ddt, shared = empty(dt.shape, dt.dtype, dt.device), _shared_gradients(modes)
        kernel, sums = diagonal_backward_kernel, shared.first
        if shared.is_joined:
            kernel, sums = joined_diagonal_backward_kernel, shared.places()
        launch(
            kernel, (H,), dt, decay, freq, B, C, dK, dE, dG.contiguous(), dO, ddt, dC, *sums, shared.size, *sizes,
            **constants, RULE=options.rule, **_threads(constants),
        )  # fmt: skip
        ddecay, dfreq, dB = shared.sum()
        return ModeTensors(ddt, ddecay, dfreq, dB, dC)
    E, O, W = built  # noqa: E741
    F, J, dG, rank = W[0], W[1], dG.contiguous(), P.shape[0]
    dF, dJ = product_gradients(dG, F, J) if dW is None else (x.contiguous() for x in dW.unbind())
    tasks = empty((H, 1 + 2 * rank + sizes[3], 4 + 4 * rank, constants["P"]), F.dtype, F.device)
    launch(
        lowrank_backward_kernel, (H, 1 + 2 * rank + sizes[3]),
        dt, decay, freq, P, B, C, E, O, F, J, dK, dE, dO, dF, dJ, dG, tasks, dC, *sizes, **constants,
        FACTORED=options.factored, R=rank, num_warps=1 if M <= 32 else 4,
    )  # fmt: skip
    return finish(modes, tasks, options.real_part, options.log_dt)._replace(C=dC)


def finish(modes: ModeTensors, tasks: Tensor, real_part: str, log_dt: bool) -> ModeTensors:
    """The gradients of a low-rank SSM's parameters, C and D aside, from those of d, f, b and B̄.

    Args:
        modes: The parameters.
        tasks: (H, programs, 4 + 4R, P), what each program found, in the precision of the computation.
        real_part: As in :class:`statespan.ops.ssm.arguments.BuildOptions`.
        log_dt: Likewise.
    """
    H, count, rows, P = tasks.shape
    S, M = modes.decay.shape
    ddt, shared = empty(modes.dt.shape, modes.dt.dtype, modes.dt.device), _shared_gradients(modes)
    kernel, sums = lowrank_finish_kernel, shared.first
    if shared.is_joined:
        kernel, sums = joined_lowrank_finish_kernel, shared.places()
    launch(
        kernel, (H,), modes.dt, modes.decay, modes.freq, modes.P, modes.B, tasks, ddt, *sums, shared.size, S, M, count,
        P=P, REAL=real_part, LOG=log_dt, FT=tl.float64 if tasks.dtype == torch.float64 else tl.float32, R=rows // 4 - 1,
        num_warps=1 if M <= 32 else 4,
    )  # fmt: skip
    ddecay, dfreq, dB, dP = shared.sum()
    return ModeTensors(ddt, ddecay, dfreq, dB, modes.C, None, dP)


def _shared_gradients(modes: ModeTensors) -> PartialSums:
    """For parameters that heads share: each group of S heads uses A, B and P once and has one share of them."""
    totals = [empty(x.shape, x.dtype, x.device) for x in (modes.decay, modes.freq, modes.B, modes.P) if x is not None]
    return PartialSums(totals, modes.C.shape[1] // modes.decay.shape[0])
