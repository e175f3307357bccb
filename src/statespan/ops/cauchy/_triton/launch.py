"""Computes S4's kernel and its gradients on a GPU: shapes in, tensors out. No autograd here.

Shapes: K channels, H heads, S sets of modes, M modes, F nodes, L length.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from statespan.ops._triton.sums import PartialSums
from statespan.ops.cauchy._triton.sums import arriving_kernel, sums_backward_kernel, sums_kernel
from statespan.ops.cauchy._triton.tables import parameters_kernel, tables_kernel
from statespan.ops.cauchy._triton.values import nodes_kernel, values_backward_kernel, values_kernel
from statespan.ops.cauchy.arguments import CauchyOptions, SavedSums
from statespan.ops.cauchy.circle import choose_circle
from statespan.ops.ssm.arguments import ModeTensors
from statespan.ssm.powers import CUTOFF

NODES = 64  # of a program, two for each of its threads
MODES = 32  # of a program of the backward pass, one for each thread
WARPS = 2048  # of the backward pass: as many as run at a time on a large GPU
ROW = 512  # values of a row at a time


class _Tables(NamedTuple):
    """What every kernel reads; see :mod:`statespan.ops.cauchy._triton.tables`."""

    shared: Tensor
    channels: Tensor
    scales: Tensor
    nodes: Tensor
    """(H, F, 2), or (1, F, 2) if no head can grow."""
    circle: int
    """The number of nodes on the whole circle."""

    @property
    def node_stride(self) -> int:
        """The distance between the nodes of two heads in memory."""
        return 0 if self.nodes.shape[0] == 1 else self.nodes.stride(0)


def _tables(modes: ModeTensors, options: CauchyOptions) -> _Tables:
    dt, decay, freq, B, C, _, P = modes
    (channels, H, M, _), S = C.shape, decay.shape[0]
    count, x = choose_circle(options.length, options.dtype)
    F = count // 2 + 1

    def empty(*shape: int) -> Tensor:
        return dt.new_empty(shape, dtype=torch.float64)

    shared, of_channels, scales = empty(H, 6, M), empty(channels, H, 4, M), empty(H, 2)
    tables_kernel[(H,)](
        dt, decay, freq, P, B, C, shared, of_channels, scales, H, S, M, channels, options.length, X=x,
        P=_width(M), REAL=options.real_part, LOG=options.log_dt, num_warps=_warps(M),
    )  # fmt: skip
    nodes = empty(H if options.real_part == "none" else 1, F, 2)
    nodes_kernel[(nodes.shape[0] * triton.cdiv(F, ROW),)](scales, nodes, count, F, BLOCK=ROW, num_warps=4)
    return _Tables(shared, of_channels, scales, nodes, count)


def _width(M: int) -> int:
    return max(16, triton.next_power_of_2(M))


def _warps(M: int) -> int:
    return 1 if M <= 32 else 4


def forward(modes: ModeTensors, options: CauchyOptions) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The kernel (K, H, L), and e₁ (H, F, 2) and e₂ (K, H, F, 2) for a backward pass."""
    channels, H, M, _ = modes.C.shape
    L, tables = options.length, _tables(modes, options)
    F = tables.nodes.shape[1]
    spectrum = tables.nodes.new_empty(channels, H, F, 2)
    e1, e2 = (tables.nodes.new_empty(H, F, 2), torch.empty_like(spectrum)) if options.save else (None, None)
    sums_kernel[(H * triton.cdiv(F, NODES), channels)](
        tables.shared, tables.channels, tables.scales, tables.nodes, spectrum, e1, e2, H, M, F, tables.node_stride,
        SAVE=options.save, BLOCK=NODES, num_warps=1,
    )  # fmt: skip
    raw = torch.fft.irfft(torch.view_as_complex(spectrum), n=tables.circle)
    kernel = raw.new_empty(channels, H, L, dtype=options.dtype)
    values_kernel[(channels * H * triton.cdiv(L, ROW),)](
        raw, tables.scales, kernel, H, L, tables.circle, CUTOFF=CUTOFF, BLOCK=ROW, num_warps=4
    )
    return kernel, e1, e2


def backward(dkernel: Tensor, modes: ModeTensors, saved: SavedSums, options: CauchyOptions) -> ModeTensors:
    """The gradients of all parameters but D."""
    dt, decay, freq, B, C, _, P = modes
    (channels, H, M, _), S, L = C.shape, decay.shape[0], options.length
    tables = _tables(modes, options)
    F, count, stride = tables.nodes.shape[1], tables.circle, tables.node_stride
    draw, dkappa = tables.nodes.new_empty(channels, H, count), tables.nodes.new_empty(channels, H)
    rows = (channels * H,)
    values_backward_kernel[rows](
        saved.kernel, dkernel.contiguous(), tables.scales, draw, dkappa, H, L, count,
        CUTOFF=CUTOFF, BLOCK=ROW, num_warps=4,
    )  # fmt: skip
    arriving = torch.view_as_real(torch.fft.rfft(draw))
    del draw
    arriving_kernel[rows](
        arriving, saved.e1, saved.e2, tables.nodes, tables.scales, dkappa, H, F, count, stride, BLOCK=ROW, num_warps=4
    )
    blocks = triton.cdiv(M, MODES)
    segments = max(1, min(triton.cdiv(F, 16), WARPS // (H * channels * blocks)))
    size = triton.cdiv(F, segments)
    parts = tables.nodes.new_empty(H, channels, segments, 10, M)
    sums_backward_kernel[(H, blocks, channels * segments)](
        tables.shared, tables.channels, tables.nodes, arriving, saved.e1, saved.e2, parts, H, M, F, channels, stride,
        segments, size, BLOCK=MODES, num_warps=1,
    )  # fmt: skip
    assert P is not None
    ddt, dC = torch.empty_like(dt), torch.empty_like(C)
    shared = PartialSums([torch.empty_like(x) for x in (decay, freq, B, P)], H // S)
    parameters_kernel[(H,)](
        dt, decay, freq, P, B, C, parts, dkappa, ddt, *shared.first, dC, shared.size, H, S, M, channels, segments,
        P=_width(M), REAL=options.real_part, LOG=options.log_dt, num_warps=_warps(M),
    )  # fmt: skip
    ddecay, dfreq, dB, dP = shared.sum()
    return ModeTensors(ddt, ddecay, dfreq, dB, dC, None, dP)
