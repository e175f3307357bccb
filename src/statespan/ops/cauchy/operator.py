"""``statespan::cauchy``: S4's kernel by the algorithm of its paper, on a GPU.

The kernel (K, H, L) of a diagonal plus rank-one SSM under the bilinear rule, directly from its parameters: Cauchy sums
at the nodes of a circle, the Woodbury identity and an inverse FFT. ``statespan.ssm.DPLR.kernel`` is the reference in
plain torch, differentiable by autograd; there C (I - Ā^L) takes the place of a smaller circle.

Shapes: H heads, S sets of modes that the heads share in turn, M modes, K channels, L length, F nodes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statespan.ops.cauchy.arguments import CauchyOptions, SavedSums
from statespan.ops.cauchy.circle import choose_circle
from statespan.ops.register import ABSENT, differentiable, no_autocast, operator
from statespan.ops.ssm.arguments import ModeTensors
from statespan.ops.ssm.source import Modal


def cauchy_kernel(modal: Modal, length: int, dtype: torch.dtype) -> Tensor:
    """The kernel (K, H, L) of a rank-one SSM in float32 or float64, computed in float64 by Triton kernels."""
    modes = modal.modes(None)
    save = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in modes)
    return cauchy(modes, CauchyOptions(length, modal.real_part, modal.log_dt, dtype, save))[0]


def _forward(modes: ModeTensors, options: CauchyOptions) -> tuple[Tensor, Tensor, Tensor]:
    """The kernel and, for a backward pass, e₁ and e₂ of :mod:`statespan.ops.cauchy._triton.sums`; empty otherwise."""
    from statespan.ops.cauchy._triton import launch

    kernel, e1, e2 = launch.forward(modes, options)
    if e1 is None or e2 is None:
        return kernel, modes.dt.new_empty(ABSENT), modes.dt.new_empty(ABSENT)
    return kernel, e1, e2


def _fake(modes: ModeTensors, options: CauchyOptions) -> tuple[Tensor, Tensor, Tensor]:
    channels, H, _, _ = modes.C.shape
    kernel = modes.C.new_empty(channels, H, options.length, dtype=options.dtype)
    if not options.save:
        return kernel, modes.dt.new_empty(ABSENT), modes.dt.new_empty(ABSENT)
    F = choose_circle(options.length, options.dtype)[0] // 2 + 1
    wide = kernel.new_empty(channels + 1, H, F, 2, dtype=torch.float64)
    return kernel, torch.empty_like(wide[0]), torch.empty_like(wide[1:])


_Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _backward(dkernel: Tensor, modes: ModeTensors, saved: SavedSums, options: CauchyOptions) -> _Gradients:
    """The gradients of dt, decay, freq, B, C and P."""
    from statespan.ops.cauchy._triton import launch

    dt, decay, freq, B, C, _, P = launch.backward(dkernel, modes, saved, options)
    assert P is not None
    return dt, decay, freq, B, C, P


def _backward_fake(dkernel: Tensor, modes: ModeTensors, saved: SavedSums, options: CauchyOptions) -> _Gradients:
    return tuple(torch.empty_like(x) for x in (*modes[:5], modes.P) if x is not None)  # type: ignore[return-value]


cauchy_backward = operator(
    "statespan::cauchy_backward", _backward, _backward_fake,
    ((1, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1), (0, 0, 0, 0, 1, 0)),
)  # fmt: skip


def _save(ctx: Any, arguments: list[Any], output: tuple[Tensor, Tensor, Tensor]) -> None:
    modes, ctx.options = arguments
    ctx.save_for_backward(*modes[:5], modes.P, *output)
    ctx.set_materialize_grads(False)  # of e₁ and e₂, which are large


def _gradient(ctx: Any, dkernel: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    dt, decay, freq, B, C, P, *saved = ctx.saved_tensors
    if dkernel is None:
        return (None,) * 7
    with no_autocast(dkernel):
        modes = ModeTensors(dt, decay, freq, B, C, None, P)
        *gradients, dP = cauchy_backward(dkernel, modes, SavedSums(*saved), ctx.options)
    return *gradients, None, dP


cauchy = differentiable(
    "statespan::cauchy", _forward, _fake, save=_save, gradient=_gradient, heads=((0, 0, 0, 0, 1, 1, 0), (1, 0, 1))
)
