"""Kernels for compilers, which write their shares of several sums into one tensor.

A compiler has to be told of a tensor that a kernel writes as a whole: of the first row's parts, where the kernels
proper begin to write, it would take the rest to be untouched. See :class:`statespan.ops._triton.sums.PartialSums`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from statespan.ops.ssm._triton.diagonal import diagonal_backward_kernel
from statespan.ops.ssm._triton.lowrank import lowrank_finish_kernel
from statespan.ops.ssm._triton.scan import backward_kernel


@triton.jit
def joined_backward_kernel(
    u_ptr, dy_ptr, du_ptr, states_ptr, K_ptr, Kb_ptr, E_ptr, G_ptr, W_ptr, O_ptr, first_ptr, inject_ptr, dfirst_ptr,
    sums_ptr, at_T, at_E, at_O, at_G, share_size, adjoint_ptr,
    H, B, L, N, chunks, whole, segments, per_segment, su_h, su_b, sy_h, sy_b, sd_h, sd_b,
    C: tl.constexpr, Q: tl.constexpr, BT: tl.constexpr, EVEN: tl.constexpr, FULL: tl.constexpr, DENSE: tl.constexpr,
    LOW: tl.constexpr, BOTH: tl.constexpr, AHEAD: tl.constexpr, FIRST: tl.constexpr, INJECT: tl.constexpr,
    DFIRST: tl.constexpr, GELU: tl.constexpr, ACC: tl.constexpr, STATE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """As :func:`.scan.backward_kernel`."""
    backward_kernel(
        u_ptr, dy_ptr, du_ptr, states_ptr, K_ptr, Kb_ptr, E_ptr, G_ptr, W_ptr, O_ptr, first_ptr, inject_ptr, dfirst_ptr,
        sums_ptr + at_T, sums_ptr + at_E, sums_ptr + at_G, sums_ptr + at_O, share_size, adjoint_ptr,
        H, B, L, N, chunks, whole, segments, per_segment, su_h, su_b, sy_h, sy_b, sd_h, sd_b,
        C, Q, BT, EVEN, FULL, DENSE, LOW, BOTH, AHEAD, FIRST, INJECT, DFIRST, GELU, ACC, STATE, PRECISION,
    )  # fmt: skip


@triton.jit
def joined_diagonal_backward_kernel(
    dt_ptr, decay_ptr, freq_ptr, B_ptr, C_ptr, dK_ptr, dE_ptr, dG_ptr, dO_ptr, ddt_ptr, dC_ptr,
    sums_ptr, at_decay, at_freq, at_B, share, H, S, M, channels, causal,
    c: tl.constexpr, BITS: tl.constexpr, PARTS: tl.constexpr, P: tl.constexpr, RULE: tl.constexpr, REAL: tl.constexpr,
    LOG: tl.constexpr, FT: tl.constexpr,
):  # fmt: skip
    """As :func:`.diagonal.diagonal_backward_kernel`."""
    diagonal_backward_kernel(
        dt_ptr, decay_ptr, freq_ptr, B_ptr, C_ptr, dK_ptr, dE_ptr, dG_ptr, dO_ptr, ddt_ptr, dC_ptr,
        sums_ptr + at_decay, sums_ptr + at_freq, sums_ptr + at_B, share, H, S, M, channels, causal,
        c, BITS, PARTS, P, RULE, REAL, LOG, FT,
    )  # fmt: skip


@triton.jit
def joined_lowrank_finish_kernel(
    dt_ptr, decay_ptr, freq_ptr, P_ptr, B_ptr, task_ptr, ddt_ptr, sums_ptr, at_decay, at_freq, at_B, at_P, share,
    S, M, tasks, P: tl.constexpr, REAL: tl.constexpr, LOG: tl.constexpr, FT: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """As :func:`.lowrank.lowrank_finish_kernel`."""
    lowrank_finish_kernel(
        dt_ptr, decay_ptr, freq_ptr, P_ptr, B_ptr, task_ptr, ddt_ptr,
        sums_ptr + at_decay, sums_ptr + at_freq, sums_ptr + at_B, sums_ptr + at_P, share,
        S, M, tasks, P, REAL, LOG, FT, R,
    )  # fmt: skip
