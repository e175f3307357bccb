"""The recurrences of ExpRNN and LipschitzRNN over whole sequences, with gradients written by hand.

A recurrence that is not linear has to run step by step. Here each step is as few operations as possible: the drive of
all positions is computed before, and the backward pass recomputes what was inside all steps by matrix products over
the whole length, so that its own loop only carries the gradient. Weights get their gradient in one product at the end.
Both scans are registered with torch, so torch.compile does not unroll their loops, and a CUDA graph can record them.

Shapes: L length, B batch, H hidden features; time comes first, because a step reads one contiguous block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from statespan.ops.register import differentiable, no_autocast, operator


class Driven(NamedTuple):
    """What a recurrence reads.

    Example:
        >>> driven = Driven(drive=torch.zeros(50, 2, 8), start=torch.zeros(2, 8))
        >>> driven.drive[0].shape == driven.start.shape
        True
    """

    drive: Tensor  # u (L, B, H), L ≥ 1
    start: Tensor  # the state h_0 (B, H)


class Rotation(NamedTuple):
    """The weights of ``h_t = modrelu(W h_{t−1} + u_t)``, where modrelu is ``sign(z) · relu(|z| + b)``.

    Example:
        >>> rotation = Rotation(weight=torch.eye(8), bias=torch.zeros(8))
        >>> torch.equal(rotation.weight @ torch.ones(8), torch.ones(8))
        True
    """

    weight: Tensor  # W (H, H)
    bias: Tensor  # b (H,)


class Flow(NamedTuple):
    """The weights of ``h' = A h + tanh(W h + u)``, and how it is integrated.

    Example:
        >>> flow = Flow(A=-torch.eye(8), W=torch.zeros(8, 8), eps=0.1, midpoint=False)
        >>> h = torch.ones(8)
        >>> (h + flow.eps * (flow.A @ h))[0]  # a step of Euler's without a drive
        tensor(0.9000)
    """

    A: Tensor  # (H, H)
    W: Tensor  # (H, H)
    eps: float  # the step ε
    midpoint: bool  # h + ε f(h + ε/2 f(h)) instead of Euler's h + ε f(h)


def _rotate(driven: Driven, weights: Rotation) -> Tensor:
    drive, state = driven
    states, transposed = torch.empty_like(drive), weights.weight.mT.contiguous()
    for t in range(len(drive)):
        z = torch.addmm(drive[t], state, transposed)
        state = torch.copysign((z.abs() + weights.bias).relu_(), z, out=states[t])  # modrelu
    return states


def _rotate_backward(
    grad: Tensor, states: Tensor, driven: Driven, weights: Rotation
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the drive, the start, W and the bias."""
    drive, start = driven
    weight, bias = weights
    before = torch.cat([start[None], states[:-1]])  # (L, B, H)
    z = drive + before @ weight.mT
    passes = (z.abs() + bias > 0).to(z.dtype)
    inner = torch.empty_like(drive)  # of z
    total = grad[-1]
    for t in range(len(drive) - 1, -1, -1):
        torch.mul(total, passes[t], out=inner[t])
        total = torch.addmm(grad[t - 1], inner[t], weight) if t else inner[0] @ weight
    rows = inner.flatten(0, 1)
    return inner, total, rows.mT @ before.flatten(0, 1), (rows * z.flatten(0, 1).sign()).sum(0)


def _flow(driven: Driven, weights: Flow) -> Tensor:
    drive, state = driven
    A, W, eps, midpoint = weights
    states, through, linear = torch.empty_like(drive), W.mT.contiguous(), eps * A.mT
    whole, half = _identity(A) + linear, _identity(A) + linear / 2
    for t in range(len(drive)):
        bent = torch.addmm(drive[t], state, through).tanh_()
        if midpoint:
            middle = torch.addmm(bent, state, half, beta=eps / 2)
            bent = torch.addmm(drive[t], middle, through).tanh_()
            state = torch.add(state, torch.addmm(bent, middle, linear, beta=eps), out=states[t])
        else:
            state = torch.addmm(bent, state, whole, beta=eps, out=states[t])
    return states


def _flow_backward(
    grad: Tensor, states: Tensor, driven: Driven, weights: Flow
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the drive, the start, A and W."""
    before = torch.cat([driven.start[None], states[:-1]])  # (L, B, H)
    bent = (driven.drive + before @ weights.W.mT).tanh()
    return (_midpoint_backward if weights.midpoint else _euler_backward)(grad, driven, weights, (before, bent))


def _euler_backward(
    grad: Tensor, driven: Driven, weights: Flow, inside: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    A, W, eps, _ = weights
    before, bent = inside
    slope, whole = eps * (1 - bent.square()), _identity(A) + eps * A
    outer, inner = torch.empty_like(before), torch.empty_like(before)  # of the new states, and inside the tanh
    total = grad[-1]
    for t in range(len(before) - 1, -1, -1):
        outer[t] = total
        torch.mul(total, slope[t], out=inner[t])
        total = torch.addmm(inner[t] @ W, total, whole)
        total = total + grad[t - 1] if t else total
    rows, flat = before.flatten(0, 1), inner.flatten(0, 1)
    return inner, total, eps * (outer.flatten(0, 1).mT @ rows), flat.mT @ rows


def _midpoint_backward(
    grad: Tensor, driven: Driven, weights: Flow, inside: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    A, W, eps, _ = weights
    before, bent = inside
    middle = before + eps / 2 * (before @ A.mT + bent)
    late_bent = (driven.drive + middle @ W.mT).tanh()
    slope, late_slope = eps / 2 * (1 - bent.square()), eps * (1 - late_bent.square())
    half = _identity(A) + eps / 2 * A
    outer, central, inner, late = (torch.empty_like(before) for _ in range(4))
    total = grad[-1]
    for t in range(len(before) - 1, -1, -1):
        outer[t] = total
        torch.mul(total, late_slope[t], out=late[t])
        torch.addmm(late[t] @ W, total, A, alpha=eps, out=central[t])  # of the state in the middle
        torch.mul(central[t], slope[t], out=inner[t])
        total = total + torch.addmm(inner[t] @ W, central[t], half)
        total = total + grad[t - 1] if t else total
    rows, middle_rows = before.flatten(0, 1), middle.flatten(0, 1)
    of_A = eps * (outer.flatten(0, 1).mT @ middle_rows) + eps / 2 * (central.flatten(0, 1).mT @ rows)
    of_W = inner.flatten(0, 1).mT @ rows + late.flatten(0, 1).mT @ middle_rows
    return inner + late, total, of_A, of_W


def _identity(A: Tensor) -> Tensor:
    return torch.eye(A.shape[0], dtype=A.dtype, device=A.device)


def _fake(driven: Driven, weights: Any) -> Tensor:
    return torch.empty_like(driven.drive)


def _fake_backward(grad: Tensor, states: Tensor, driven: Driven, weights: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    drive, start, first, second = map(torch.empty_like, (*driven, *weights[:2]))
    return drive, start, first, second


def _save(ctx: Any, arguments: list[Any], states: Tensor) -> None:
    driven, weights = arguments
    ctx.save_for_backward(*driven, *weights[:2], states)
    ctx.options = weights[2:]


def _rotation_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *driven, weight, bias, states = ctx.saved_tensors
    with no_autocast(grad):
        return rotate_backward(grad.contiguous(), states, Driven(*driven), Rotation(weight, bias))


def _flow_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *driven, A, W, states = ctx.saved_tensors
    with no_autocast(grad):
        return flow_backward(grad.contiguous(), states, Driven(*driven), Flow(A, W, *ctx.options))


rotate_backward = operator("statespan::exprnn_backward", _rotate_backward, _fake_backward)
rotate = differentiable("statespan::exprnn", _rotate, _fake, save=_save, gradient=_rotation_gradient)
"""The states (L, B, H) of ExpRNN, from Driven and a Rotation."""
flow_backward = operator("statespan::lipschitz_rnn_backward", _flow_backward, _fake_backward)
flow = differentiable("statespan::lipschitz_rnn", _flow, _fake, save=_save, gradient=_flow_gradient)
"""The states (L, B, H) of LipschitzRNN, from Driven and a Flow."""
