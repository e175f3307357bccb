"""Building operators from parameters on the device: one launch forward, one backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from statespan.ops._triton.diagonal import diagonal_backward_kernel, diagonal_kernel
from statespan.ops._triton.lowrank import lowrank_backward_kernel, lowrank_finish_kernel, lowrank_kernel
from statespan.ops._triton.sums import sum_shares

PARTS = 4  # of a chunk, each walked through by threads of its own


class Modes(NamedTuple):
    """The parameters of a modal SSM. Heads share A, B and P in turn: head h has number h mod S."""

    dt: Tensor
    """(H,): log Δ or Δ."""
    decay: Tensor
    """(S, M): Re A, or the parameter behind it."""
    freq: Tensor
    """(S, M): Im A."""
    B: Tensor
    """(S, M, 2)."""
    C: Tensor
    """(K, H, M, 2)."""
    D: Tensor | None
    """(causal channels, H): a skip, which joins the kernel's first value; or None."""
    P: Tensor | None
    """(S, M, 2) of a diagonal plus rank-one matrix; or None."""


class Settings(NamedTuple):
    """What is not a tensor."""

    chunk: int
    ahead: int
    rule: str
    real_part: str
    log_dt: bool
    precise: bool
    """Compute in float64; in float32 otherwise, which is enough for 16-bit operators."""
    factored: bool = False
    """Leave the low-rank part of G in its two factors."""


def _launch(modes: Modes, settings: Settings) -> tuple[tuple[Any, ...], dict[str, Any]]:
    channels, H, M, _ = modes.C.shape
    width = max(16, triton.next_power_of_2(M))
    sizes = (H, modes.decay.shape[0], M, channels, channels - settings.ahead)
    constants = {
        "c": settings.chunk, "BITS": settings.chunk.bit_length() - 1, "P": width, "REAL": settings.real_part,
        "LOG": settings.log_dt, "FT": tl.float64 if settings.precise else tl.float32,
    }  # fmt: skip
    return sizes, constants


def _threads(constants: dict[str, Any]) -> dict[str, int]:
    """Of a diagonal SSM: one for each mode in each part of a chunk."""
    parts = min(PARTS, constants["c"])
    return {"PARTS": parts, "num_warps": max(1, min(8, parts * constants["P"] // 32))}


def _empty(modes: Modes, chunk: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    channels, H, M, _ = modes.C.shape
    C = modes.C
    return (
        C.new_empty(channels, H, chunk, dtype=dtype),
        C.new_empty(H, chunk, 2 * M, dtype=dtype),
        C.new_empty(channels, H, chunk, 2 * M, dtype=dtype),
    )


def forward(modes: Modes, settings: Settings) -> tuple[Tensor, ...]:
    """K, E, G, O, and of a low-rank part the factors W (2, H, c, N); in the precision of the computation."""
    sizes, constants = _launch(modes, settings)
    H, M = sizes[0], sizes[2]
    dtype = torch.float64 if settings.precise else torch.float32
    K, E, O = _empty(modes, settings.chunk, dtype)  # noqa: E741
    skip = modes.C if modes.D is None else modes.D
    constants["SKIP"] = modes.D is not None
    own: dict[str, Any] = {"dtype": dtype, "device": modes.C.device}
    if modes.P is None:
        G = torch.empty(H, 2 * M, **own)
        diagonal_kernel[(H,)](
            modes.dt, modes.decay, modes.freq, modes.B, modes.C, skip, K, E, G, O, *sizes, **constants,
            RULE=settings.rule, **_threads(constants),
        )  # fmt: skip
        return K, E, G, O
    W = torch.empty(2, H, settings.chunk, 2 * M, **own)
    F, J = W
    G = torch.empty(H, 2 * M, **own) if settings.factored else torch.empty(H, 2 * M, 2 * M, **own)
    lowrank_kernel[(H, 3 + sizes[3])](
        modes.dt, modes.decay, modes.freq, modes.P, modes.B, modes.C, skip, K, E, O, F, J, G, *sizes, **constants,
        FACTORED=settings.factored, num_warps=1 if M <= 32 else 4,
    )  # fmt: skip
    if not settings.factored:
        G.baddbmm_(F.mT, J)
    return K, E, G, O, W


def backward(
    modes: Modes, settings: Settings, kept: tuple[Tensor, ...], dK: Tensor, dE: Tensor, dG: Tensor, dO: Tensor,
    dW: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients of dt, decay, freq, B, C and, where there is one, P; A's and B's summed over the heads that share.

    ``kept`` is E, O and W of a low-rank SSM, empty for a diagonal one. ``dW`` comes with factors that were left apart.
    """
    sizes, constants = _launch(modes, settings)
    H, M = sizes[0], sizes[2]
    dC = torch.empty_like(modes.C)
    dK, dE, dO = (x.contiguous() for x in (dK, dE, dO))
    if modes.P is None:
        ddt, shared = torch.empty_like(modes.dt), _Shared(modes)
        diagonal_backward_kernel[(H,)](
            modes.dt, modes.decay, modes.freq, modes.B, modes.C, dK, dE, dG.contiguous(), dO,
            ddt, dC, *shared.first, shared.size, *sizes, **constants, RULE=settings.rule, **_threads(constants),
        )  # fmt: skip
        return ddt, *shared.sum(), dC
    E, O, (F, J) = kept  # noqa: E741
    dG = dG.to(F.dtype).contiguous()
    dF, dJ = (J @ dG.mT, F @ dG) if dW is None else dW.to(F.dtype).contiguous()
    tasks = dG.new_empty(H, 3 + sizes[3], 8, constants["P"])
    lowrank_backward_kernel[tasks.shape[:2]](
        modes.dt, modes.decay, modes.freq, modes.P, modes.B, modes.C, E, O, F, J, dK, dE, dO, dF, dJ, dG,
        tasks, dC, *sizes, **constants, FACTORED=settings.factored, num_warps=1 if M <= 32 else 4,
    )  # fmt: skip
    ddt, ddecay, dfreq, dB, dP = finish(modes, tasks, settings.real_part, settings.log_dt)
    return ddt, ddecay, dfreq, dB, dC, dP


def finish(modes: Modes, tasks: Tensor, real_part: str, log_dt: bool) -> tuple[Tensor, ...]:
    """The gradients of dt, decay, freq, B and P of a rank-one SSM from what programs found of d, f, b and B̄.

    Args:
        modes: The parameters.
        tasks: (H, programs, 8, P), in the precision of the computation.
        real_part: As in :class:`Settings`.
        log_dt: Likewise.
    """
    H, count, _, P = tasks.shape
    S, M = modes.decay.shape
    ddt, shared = torch.empty_like(modes.dt), _Shared(modes)
    lowrank_finish_kernel[(H,)](
        modes.dt, modes.decay, modes.freq, modes.P, modes.B, tasks, ddt, *shared.first, shared.size, S, M, count,
        P=P, REAL=real_part, LOG=log_dt, FT=tl.float64 if tasks.dtype == torch.float64 else tl.float32,
        num_warps=1 if M <= 32 else 4,
    )  # fmt: skip
    return ddt, *shared.sum()


class _Shared:
    """The gradients of what heads share: each S heads have all of A, B and P between them, and make a share of each."""

    def __init__(self, modes: Modes) -> None:
        self.out = [torch.empty_like(x) for x in (modes.decay, modes.freq, modes.B, modes.P) if x is not None]
        sizes = [x.numel() for x in self.out]
        self.size, self.shares = sum(sizes), modes.C.shape[1] // modes.decay.shape[0]
        self.first: Sequence[Tensor] = self.out
        if self.shares > 1:
            self.each = modes.decay.new_empty(self.shares, self.size)
            self.first = self.each[0].split(sizes)

    def sum(self) -> list[Tensor]:
        """Where every head has its own, there is nothing to add."""
        if self.shares > 1:
            sum_shares(self.each, self.out)
        return self.out
