"""Running the recurrence of a diagonal plus rank-one SSM: shapes in, tensors out. No autograd here."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from statespan.ops._triton.build import Modes, finish
from statespan.ops._triton.steps import steps_backward_kernel, steps_kernel

PROGRAMS = 176  # of the backward pass: a few more than multiprocessors, and few enough that their room is small


class Walk(NamedTuple):
    """What is not a tensor."""

    ahead: int
    """How many of the channels, the last ones, look ahead."""
    real_part: str
    log_dt: bool

    def constants(self, modes: Modes) -> dict[str, Any]:
        """The kernels' common compile-time arguments."""
        width = max(16, triton.next_power_of_2(modes.decay.shape[1]))
        return {"P": width, "REAL": self.real_part, "LOG": self.log_dt, "FT": tl.float64}


def _ways(modes: Modes, walk: Walk) -> list[tuple[bool, Tensor]]:
    """Whether to look ahead, and the C of the channels that do so."""
    causal = modes.C.shape[0] - walk.ahead
    ways = [(False, modes.C[:causal])]
    return [*ways, (True, modes.C[causal:])] if walk.ahead else ways


def _warps(modes: Modes) -> int:
    return 1 if modes.decay.shape[1] <= 64 else 2  # a sum over one warp is fastest, but 128 modes need the registers


def forward(modes: Modes, walk: Walk, u: Tensor, first: Tensor | None, last: bool) -> tuple[Tensor, Tensor | None]:
    """Y (K, H, B, L), and the state after the last sample (H, B, N) in float64 where asked.

    Args:
        modes: The parameters.
        walk: The rest of them.
        u: (H, B, L), any strides but 1 along L.
        first: (H, B, N), or None for zeros. Only the channels that look back start from it.
        last: Whether to return the state.
    """
    (H, batch, L), (S, M) = u.shape, modes.decay.shape
    first = None if first is None else first.contiguous()
    y = u.new_empty(modes.C.shape[0] - walk.ahead, H, batch, L)
    end = u.new_empty(H, batch, 2 * M, dtype=torch.float64) if last else None
    for ahead, C in _ways(modes, walk):
        steps_kernel[(C.shape[0] * H, batch)](
            modes.dt, modes.decay, modes.freq, modes.P, modes.B, C, modes.D, u, y, first, end,
            H, S, M, batch, L, u.stride(0), u.stride(1), **walk.constants(modes), AHEAD=ahead,
            SKIP=modes.D is not None and not ahead, FIRST=first is not None and not ahead, LAST=last and not ahead,
            num_warps=_warps(modes),
        )  # fmt: skip
    return y, end


class Gradients(NamedTuple):
    """Of everything the forward pass takes."""

    u: Tensor
    dt: Tensor
    decay: Tensor
    freq: Tensor
    B: Tensor
    C: Tensor
    P: Tensor
    D: Tensor | None
    first: Tensor | None


def backward(modes: Modes, walk: Walk, u: Tensor, dy: Tensor, first: Tensor | None, dlast: Tensor | None) -> Gradients:
    """Every gradient, in the dtype of its tensor; dy is (K·H, B, L)."""
    (H, batch, L), (S, M) = u.shape, modes.decay.shape
    channels, P = modes.C.shape[0], modes.P
    assert P is not None
    first, dlast = (None if x is None else x.contiguous() for x in (first, dlast))
    causal = channels - walk.ahead
    piece = 1 << math.ceil(math.log2(max(1, L)) / 2)
    pieces = -(-L // piece)
    constants = walk.constants(modes)
    width = constants["P"]
    wide: dict[str, Any] = {"dtype": torch.float64, "device": u.device}
    du = u.new_empty(causal * H, batch, L)
    dfirst = torch.empty(causal * H, batch, 2 * M, **wide) if first is not None else None
    parts, dC, dD = [], [], None
    for ahead, C in _ways(modes, walk):
        virtual = C.shape[0] * H
        shares = min(batch, -(-PROGRAMS // virtual))
        programs = min(virtual * shares, PROGRAMS)
        share = torch.empty(H, C.shape[0] * shares, 8, width, **wide)
        grad_C = torch.empty(shares, *C.shape, **wide)
        grad_D = torch.empty(shares, virtual, **wide)
        room = u.new_empty(programs, pieces + piece, 2, width)
        skip = modes.D is not None and not ahead
        steps_backward_kernel[(programs,)](
            modes.dt, modes.decay, modes.freq, P, modes.B, C, modes.D, u, dy, du, first,
            None if ahead else dlast, dfirst, share, grad_C, grad_D, room,
            H, S, M, batch, L, u.stride(0), u.stride(1), dy.stride(0), dy.stride(1), virtual, shares, pieces, piece,
            **constants, AHEAD=ahead, SKIP=skip, FIRST=first is not None and not ahead,
            INJECT=dlast is not None and not ahead, num_warps=_warps(modes),
        )  # fmt: skip
        parts.append(share)
        dC.append(grad_C.sum(0))
        dD = grad_D.sum(0).view(causal, H) if skip else dD
    tasks = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    ddt, ddecay, dfreq, dB, dP = finish(modes, tasks, walk.real_part, walk.log_dt)
    return Gradients(
        du.view(causal, H, batch, L).sum(0) if causal > 1 else du, ddt, ddecay, dfreq, dB,
        torch.cat(dC).to(modes.C.dtype), dP, None if dD is None or modes.D is None else dD.to(modes.D.dtype),
        None if dfirst is None else dfirst.view(causal, H, batch, 2 * M).sum(0),
    )  # fmt: skip
