"""Runs the recurrence of a diagonal plus low-rank SSM on a GPU: shapes in, tensors out. No autograd here.

Tests compare it with :func:`statespan.ops.ssm.chunked.chunked`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from statespan.ops.ssm._triton.build import finish
from statespan.ops.ssm._triton.steps import steps_backward_kernel, steps_kernel
from statespan.ops.ssm.arguments import ModeTensors, OutputGradients, RecurrenceOptions, Sequences

PROGRAMS = 176  # of the backward pass: slightly more than multiprocessors, and few enough that their workspace is small


def _constants(modes: ModeTensors, options: RecurrenceOptions) -> dict[str, Any]:
    """The common compile-time arguments of the kernels."""
    assert modes.P is not None
    width = max(16, triton.next_power_of_2(modes.decay.shape[1]))
    return {"P": width, "R": modes.P.shape[0], "REAL": options.real_part, "LOG": options.log_dt, "FT": tl.float64}


def _directions(modes: ModeTensors, options: RecurrenceOptions) -> list[tuple[bool, Tensor]]:
    """Whether a direction is anti-causal, and the C of its channels."""
    causal = modes.C.shape[0] - options.ahead
    directions = [(False, modes.C[:causal])]
    return [*directions, (True, modes.C[causal:])] if options.ahead else directions


def _warps(modes: ModeTensors) -> int:
    return 1 if modes.decay.shape[1] <= 64 else 2  # a sum over one warp is fastest, but 128 modes need the registers


def forward(inputs: Sequences, modes: ModeTensors, options: RecurrenceOptions) -> tuple[Tensor, Tensor | None]:
    """Return y (K, H, B, L), and the state after the last sample (H, B, N) in float64 if requested.

    Args:
        inputs: u with any strides but 1 along L. Only the causal channels start from the first state.
        modes: The parameters.
        options: How to run.
    """
    u, first = inputs
    (H, batch, L), (S, M) = u.shape, modes.decay.shape
    first = None if first is None else first.contiguous()
    y = u.new_empty(modes.C.shape[0] - options.ahead, H, batch, L)
    end = u.new_empty(H, batch, 2 * M, dtype=torch.float64) if options.last else None
    for ahead, C in _directions(modes, options):
        steps_kernel[(C.shape[0] * H, batch)](
            modes.dt, modes.decay, modes.freq, modes.P, modes.B, C, modes.D, u, y, first, end,
            H, S, M, batch, L, u.stride(0), u.stride(1), **_constants(modes, options), AHEAD=ahead,
            SKIP=modes.D is not None and not ahead, FIRST=first is not None and not ahead,
            LAST=options.last and not ahead, num_warps=_warps(modes),
        )  # fmt: skip
    return y, end


def backward(
    arriving: OutputGradients, inputs: Sequences, modes: ModeTensors, options: RecurrenceOptions
) -> tuple[Tensor, Tensor | None, ModeTensors]:
    """The gradients of u, the first state and the parameters, in their dtypes; ``arriving.y`` is (K·H, B, L)."""
    u, dy = inputs.u, arriving.y
    (H, batch, L), (S, M) = u.shape, modes.decay.shape
    first, dlast = (None if x is None else x.contiguous() for x in (inputs.first, arriving.last))
    causal = modes.C.shape[0] - options.ahead
    piece = 1 << math.ceil(math.log2(max(1, L)) / 2)
    pieces = -(-L // piece)
    constants = _constants(modes, options)
    width, rows = constants["P"], 4 + 4 * constants["R"]
    wide: dict[str, Any] = {"dtype": torch.float64, "device": u.device}
    du = u.new_empty(causal * H, batch, L)
    dfirst = torch.empty(causal * H, batch, 2 * M, **wide) if first is not None else None
    parts, dC, dD = [], [], None
    for ahead, C in _directions(modes, options):
        virtual = C.shape[0] * H
        shares = min(batch, -(-PROGRAMS // virtual))
        programs = min(virtual * shares, PROGRAMS)
        share = torch.empty(H, C.shape[0] * shares, rows, width, **wide)
        grad_C = torch.empty(shares, *C.shape, **wide)
        grad_D = torch.empty(shares, virtual, **wide)
        workspace = u.new_empty(programs, pieces + piece, 2, width)
        skip = modes.D is not None and not ahead
        steps_backward_kernel[(programs,)](
            modes.dt, modes.decay, modes.freq, modes.P, modes.B, C, modes.D, u, dy, du, first,
            None if ahead else dlast, dfirst, share, grad_C, grad_D, workspace,
            H, S, M, batch, L, u.stride(0), u.stride(1), dy.stride(0), dy.stride(1), virtual, shares, pieces, piece,
            **constants, AHEAD=ahead, SKIP=skip, FIRST=first is not None and not ahead,
            INJECT=dlast is not None and not ahead, num_warps=_warps(modes),
        )  # fmt: skip
        parts.append(share)
        dC.append(grad_C.sum(0))
        dD = grad_D.sum(0).view(causal, H) if skip else dD
    tasks = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    dmodes = finish(modes, tasks, options.real_part, options.log_dt)._replace(
        C=torch.cat(dC).to(modes.C.dtype), D=None if dD is None or modes.D is None else dD.to(modes.D.dtype)
    )
    dfirst = None if dfirst is None else dfirst.view(causal, H, batch, 2 * M).sum(0)
    return du.view(causal, H, batch, L).sum(0) if causal > 1 else du, dfirst, dmodes
