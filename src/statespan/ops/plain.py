"""The chunk engine in plain torch: slow loops only over chunks, everything else matrix products.

It runs on any device, in float32 and float64, and is what the kernels are measured against. The forward pass is made of
differentiable operations; the backward pass is written out too, because it needs less memory than replaying it.

Shapes: H heads, B batch, L length, I chunks of c samples, N state size, K channels. Inputs are (H, B, L), states
(H, B, N), kernels (K, H, c), E (H, c, N), O (K, H, c, N), G (H, N) or (H, N, N). The real and the imaginary part of a
mode are neighbours. With ``both``, the kernels and O have 2K channels, the last K of which look ahead.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from statespan.ssm.structure import toeplitz


class Result(NamedTuple):
    """What the forward pass gives."""

    y: Tensor
    """(K, H, B, L)."""
    last: Tensor
    """(H, B, N): the state after all whole chunks."""
    states: Tensor
    """(H, B, I, N): the state before each chunk."""
    ahead: Tensor
    """The same of the recurrence from the right, which starts behind the last chunk; empty without one."""


class Gradients(NamedTuple):
    """Of everything the forward pass takes."""

    u: Tensor
    K: Tensor
    E: Tensor
    G: Tensor
    O: Tensor  # noqa: E741
    first: Tensor


def forward(
    u: Tensor, K: Tensor, E: Tensor, G: Tensor, O: Tensor, first: Tensor | None = None, *, both: bool = False  # noqa: E741
) -> Result:  # fmt: skip
    """Apply the operators of one chunk to all chunks of u."""
    H, B, L = u.shape
    c, N = E.shape[1:]
    U = _chunks(u, c)  # (H, B, I, c)
    added = _mm(U, E)
    start = torch.zeros(H, B, N, dtype=torch.float64, device=u.device) if first is None else first.double()
    before, end = recur(added, G, start)
    states = before.to(u.dtype)
    y = _mm(U, _matrix(K, both).mT) + _mm(states, (O.chunk(2)[0] if both else O).mT)
    ahead = u.new_zeros(0)
    if both:
        added = _mm(U, E.flip(-2))
        ahead = recur(added, G, torch.zeros_like(start), left=True)[0].to(u.dtype)
        y = y + _mm(ahead, O.chunk(2)[1].mT)
    last = end if L % c == 0 else before[:, :, -1]
    return Result(y.flatten(-2)[..., :L], last, states, ahead)


def backward(
    u: Tensor, dy: Tensor, dlast: Tensor | None, saved: Result, K: Tensor, E: Tensor, G: Tensor, O: Tensor,  # noqa: E741
    *, both: bool = False,
) -> Gradients:  # fmt: skip
    """The adjoint recurrence from the right, and the products that give each operator's gradient."""
    H, B, L = u.shape
    c, N = E.shape[1:]
    U, dY = _chunks(u, c), _chunks(dy, c)  # (H, B, I, c) and (K, H, B, I, c)
    behind_O, ahead_O = O.chunk(2) if both else (O, O)
    added = _mm(dY, behind_O).sum(0)  # (H, B, I, N)
    zeros = torch.zeros(H, B, N, dtype=torch.float64, device=u.device)
    dlast = zeros if dlast is None else dlast.double()
    if L % c == 0:
        lam, dfirst = recur(added, G, dlast, left=True, adjoint=True)
    else:  # the partial chunk comes first, then the boundary where the last state was read
        inject = zeros[:, :, None].repeat(1, 1, added.shape[2], 1)
        inject[:, :, -1] = dlast
        lam, dfirst = recur(added.double() + inject, G, zeros, left=True, adjoint=True)
    lam = lam.to(u.dtype)
    dU = _mm(dY, _matrix(K, both)).sum(0) + _mm(lam, E.mT)
    dT = _outer(dY, U)
    dE = _outer(U, lam)
    dO = _outer(dY, saved.states)
    dG = _power_gradient(lam, saved.states, G)
    if both:
        behind = recur(_mm(dY, ahead_O).sum(0), G, zeros, adjoint=True)[0].to(u.dtype)
        dU = dU + _mm(behind, E.flip(-2).mT)
        dE = dE + _outer(U, behind).flip(-2)
        dO = torch.cat([dO, _outer(dY, saved.ahead)])
        dG = dG + _power_gradient(behind, saved.ahead, G)
    return Gradients(dU.flatten(-2)[..., :L], _diagonals(dT, both), dE, dG, dO, dfirst)


def recur(
    added: Tensor, G: Tensor, start: Tensor, *, left: bool = False, adjoint: bool = False
) -> tuple[Tensor, Tensor]:
    """``s ← G s + added_i`` over the chunks i, in float64: the states carry everything that lasts.

    Args:
        added: (H, B, I, N).
        G: (H, N) for complex modes, or (H, N, N).
        start: (H, B, N).
        left: From the last chunk to the first.
        adjoint: With Gᵀ.

    Returns:
        The state before each chunk (H, B, I, N), and the one after all.
    """
    G = G.double()
    pieces = list(added.double().unbind(2))
    before = []
    if G.ndim == 2:
        power, x = _complex(G)[:, None], _complex(start)
        power = power.conj() if adjoint else power
        for piece in reversed(pieces) if left else pieces:
            before.append(x)
            x = power * x + _complex(piece)
        states = torch.stack(before[::-1] if left else before, 2)
        return torch.view_as_real(states).flatten(-2), torch.view_as_real(x).flatten(-2)
    power, x = (G if adjoint else G.mT), start
    for piece in reversed(pieces) if left else pieces:
        before.append(x)
        x = torch.baddbmm(piece, x, power)
    return torch.stack(before[::-1] if left else before, 2), x


def _complex(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.contiguous().unflatten(-1, (-1, 2)))


def _chunks(x: Tensor, c: int) -> Tensor:
    """(..., L) as (..., I, c), the last chunk filled with zeros."""
    return pad(x, (0, -x.shape[-1] % c)).unflatten(-1, (-1, c))


def _matrix(K: Tensor, both: bool) -> Tensor:
    """The chunk's own matrix T, with the kernel that looks ahead above the diagonal."""
    if not both:
        return toeplitz(K)
    behind, ahead = K.chunk(2)
    return toeplitz(behind) + toeplitz(pad(ahead[..., :-1], (1, 0))).mT


def _diagonals(dT: Tensor, both: bool) -> Tensor:
    """The sums of dT (K, H, c, c) along its diagonals: the gradient of the kernel that fills T."""
    c = dT.shape[-1]
    # with rows of 2c, the element (i, j) moves to column i - j + c - 1
    sheared = pad(dT.flip(-1), (0, c)).flatten(-2)[..., : c * (2 * c - 1)].unflatten(-1, (c, 2 * c - 1)).sum(-2)
    if not both:
        return sheared[..., c - 1 :]
    return torch.cat([sheared[..., c - 1 :], pad(sheared[..., : c - 1].flip(-1), (0, 1))])


def _mm(x: Tensor, matrix: Tensor) -> Tensor:
    """Rows x (..., H, B, I, n) times matrix (..., H, n, m)."""
    B, rows = x.shape[-3], x.shape[-2]
    return (x.flatten(-3, -2) @ matrix).unflatten(-2, (B, rows))


def _outer(x: Tensor, y: Tensor) -> Tensor:
    """``Σ x yᵀ`` over batch and chunks: (..., H, n, m)."""
    return x.flatten(-3, -2).mT @ y.flatten(-3, -2)


def _power_gradient(lam: Tensor, states: Tensor, G: Tensor) -> Tensor:
    if G.ndim == 3:
        return _outer(lam, states).to(G.dtype)
    product = _complex(lam) * _complex(states).conj()
    return torch.view_as_real(product.sum((1, 2), dtype=torch.complex128)).flatten(-2).to(G.dtype)
