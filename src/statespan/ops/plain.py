"""The chunk engine in plain torch: slow loops only over chunks, everything else matrix products.

It runs on any device, in float32 and float64, and is what the kernels are measured against. The forward pass is made of
differentiable operations; the backward pass is written out too, because it needs less memory than replaying it.

Shapes: H heads, B batch, L length, I chunks of c samples, N state size, K channels. Inputs are (H, B, L), states
(H, B, N), kernels (K, H, c), E (H, c, N), O (K, H, c, N), G (H, N) or (H, N, N). The real and the imaginary part of a
mode are neighbours. With ``both``, the kernels and O have 2K channels, the last K of which look ahead.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from statespan.ssm.structure import toeplitz

FEWEST_PIECES = 6  # below, walking through the chunks one after the other is as fast
BLOCK = 512  # samples copied at a time


class Result(NamedTuple):
    """What the forward pass gives."""

    y: Tensor
    """(K, H, B, L)."""
    last: Tensor
    """(H, B, N): the state after all whole chunks."""
    states: Tensor
    """(H, B·I, N): the state before each chunk of each sequence."""
    ahead: Tensor
    """The same of the recurrence from the right, which starts behind the last chunk; empty without one."""


class Gradients(NamedTuple):
    """Of everything the forward pass takes."""

    u: Tensor
    K: Tensor
    E: Tensor
    G: Tensor
    O: Tensor  # noqa: E741
    first: Tensor | None


def forward(
    u: Tensor, K: Tensor, E: Tensor, G: Tensor, O: Tensor, first: Tensor | None = None, *, both: bool = False  # noqa: E741
) -> Result:  # fmt: skip
    """Apply the operators of one chunk to all chunks of u."""
    H, B, L = u.shape
    c, N = E.shape[1:]
    U = chunk_rows(u, c)  # (H, B·I, c)
    start = torch.zeros(H, B, N, dtype=torch.float64, device=u.device) if first is None else first.double()
    added, whole = (U @ E).unflatten(1, (B, -1)), L // c
    before, last = recur(added[:, :, :whole], G, start)
    if L % c:
        before = torch.cat([before, last[:, :, None].to(before.dtype)], 2)
    states = before.flatten(1, 2)
    T, behind, ahead = _matrix(K, both), O, u.new_zeros(0)
    if both:
        behind, in_front = O.chunk(2)
        from_right = recur((U @ E.flip(-2)).unflatten(1, (B, -1)), G, torch.zeros_like(start), left=True)[0]
        ahead = from_right.flatten(1, 2)
    y = [torch.baddbmm(U @ T[k].mT, states, behind[k].mT) for k in range(T.shape[0])]
    if both:
        y = [torch.baddbmm(part, ahead, in_front[k].mT) for k, part in enumerate(y)]
    return Result(_joined(y).reshape(-1, H, B, U.shape[1] // B * c)[..., :L], last, states, ahead)


def backward(
    u: Tensor, dy: Tensor, dlast: Tensor | None, saved: Result, K: Tensor, E: Tensor, G: Tensor, O: Tensor,  # noqa: E741
    *, both: bool = False,
) -> Gradients:  # fmt: skip
    """The adjoint recurrence from the right, and the products that give each operator's gradient."""
    H, B, L = u.shape
    c, N = E.shape[1:]
    U, dY = chunk_rows(u, c), [chunk_rows(part, c) for part in dy.unbind(0)]  # (H, B·I, c), one dY for each channel
    behind_O, ahead_O = O.chunk(2) if both else (O, O)
    added = _sum(part @ behind_O[k] for k, part in enumerate(dY)).unflatten(1, (B, -1))
    zeros = torch.zeros(H, B, N, dtype=torch.float64, device=u.device)
    start = zeros if dlast is None else dlast.double()
    if L % c:  # the partial chunk comes first, then the boundary where the last state was read
        added, start = added.double(), zeros
        if dlast is not None:
            added[:, :, -1] += dlast
    adjoint, dfirst = recur(added, G, start, left=True, adjoint=True)
    R = adjoint.to(u.dtype).flatten(1, 2)
    T = _matrix(K, both)
    dU = torch.baddbmm(_sum(part @ T[k] for k, part in enumerate(dY)), R, E.mT)
    dT = _joined([part.mT @ U for part in dY])
    dE = U.mT @ R
    dO = _joined([part.mT @ saved.states for part in dY])
    dG = _power_gradient(R, saved.states, G)
    if both:
        added = _sum(part @ ahead_O[k] for k, part in enumerate(dY)).unflatten(1, (B, -1))
        Z = recur(added, G, zeros, adjoint=True)[0].flatten(1, 2)
        dU = torch.baddbmm(dU, Z, E.flip(-2).mT)
        dE = dE + (U.mT @ Z).flip(-2)
        dO = torch.cat([dO, _joined([part.mT @ saved.ahead for part in dY])])
        dG = dG + _power_gradient(Z, saved.ahead, G)
    return Gradients(dU.reshape(H, B, -1)[..., :L], _diagonals(dT, both), dE, dG, dO, dfirst)


def recur(
    added: Tensor, G: Tensor, start: Tensor, *, left: bool = False, adjoint: bool = False
) -> tuple[Tensor, Tensor]:
    """``s ← G s + added_i`` over the chunks i, in float64: the states carry everything that lasts.

    Args:
        added: (H, B, I, N).
        G: (H, N) for complex modes, or (H, N, N).
        start: (H, B, N), float64.
        left: From the last chunk to the first.
        adjoint: With Gᵀ.

    Returns:
        The state before each chunk (H, B, I, N) in the dtype of ``added``, and the one after all in float64.
    """
    G, start = G.double(), start.contiguous()
    if torch.is_grad_enabled() and any(t.requires_grad for t in (added, G, start)):
        return _recur_differentiably(added, G, start, left, adjoint)
    power = _Power(G, adjoint)
    H, B, I, N = added.shape  # noqa: E741
    states = torch.empty_like(added)
    pieces = math.isqrt(I)  # as many as chunks in each, so that all steps together are fewest
    if pieces < FEWEST_PIECES:
        return states, _walk(added, power, start, left, states)
    each = I // pieces
    whole = pieces * each
    front = slice(I - whole, I) if left else slice(0, whole)
    rest = slice(0, I - whole) if left else slice(whole, I)

    inside, kept = (x[:, :, front].unflatten(2, (pieces, each)) for x in (added, states))  # (H, B, pieces, each, N)
    # all pieces at once from zeros, then what each starts from, then all at once again
    ends = _walk(inside, power, start.new_zeros(H, B, pieces, N), left, None)
    starts = torch.empty_like(ends)
    end = _walk(ends, power.to_the(each), start, left, starts)
    _walk(inside, power, starts, left, kept)
    return states, _walk(added[:, :, rest], power, end, left, states[:, :, rest])


class _Power:
    """A power of Ā as it is applied to rows of states."""

    def __init__(self, G: Tensor, adjoint: bool) -> None:
        self.dense = G.ndim == 3
        if self.dense:
            self.G = G if adjoint else G.mT
        else:
            self.G = _complex(G)[:, None]
            self.G = self.G.conj_physical() if adjoint else self.G  # a lazy one is lost below a dispatch mode

    def to_the(self, exponent: int) -> _Power:
        """The power of the power."""
        other = copy.copy(self)
        other.G = torch.linalg.matrix_power(self.G, exponent) if self.dense else self.G**exponent
        return other

    def add_to(self, new: Tensor, x: Tensor) -> None:
        """Add the power times x (H, …, N) to ``new``, in place."""
        new, x = new.flatten(1, -2), x.flatten(1, -2)
        if self.dense:
            new.baddbmm_(x, self.G)
        else:
            _complex(new).addcmul_(_complex(x), self.G)


def _walk(added: Tensor, power: _Power, start: Tensor, left: bool, states: Tensor | None) -> Tensor:
    """Through the chunks of added (H, …, I, N) from start (H, …, N); the state after all comes back.

    The one before each goes into ``states``.
    """
    x, new, order = start.clone(), torch.empty_like(start), range(added.shape[-2])
    for i in reversed(order) if left else order:
        if states is not None:
            states[..., i, :] = x
        new.copy_(added[..., i, :])
        power.add_to(new, x)
        x, new = new, x  # in memory that is there already: fresh memory costs more than the arithmetic
    return x


def _recur_differentiably(added: Tensor, G: Tensor, start: Tensor, left: bool, adjoint: bool) -> tuple[Tensor, Tensor]:
    """The same with nothing in place."""
    if not added.shape[2]:
        return added, start
    power, x, added_, before = _Power(G, adjoint).G, start, added.double(), []
    for i in reversed(range(added.shape[2])) if left else range(added.shape[2]):
        before.append(x)
        x = x @ power if G.ndim == 3 else torch.view_as_real(_complex(x) * power).flatten(-2)
        x = x + added_[:, :, i]
    return torch.stack(before[::-1] if left else before, 2).to(added.dtype), x


def _complex(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))


def chunk_rows(x: Tensor, c: int) -> Tensor:
    """(H, B, L) as rows (H, B·I, c), one for each chunk of each sequence, the last chunks filled with zeros."""
    if missing := -x.shape[-1] % c:
        x = pad(x, (0, missing))
    return _contiguous(x).view(x.shape[0], -1, c)


def _contiguous(x: Tensor) -> Tensor:
    """On a CPU by blocks that stay in its cache: with the features side by side in memory three times as fast."""
    plain_copy = x.stride(0) != 1 or x.device.type != "cpu" or x.shape[2] <= 2 * BLOCK
    if plain_copy or torch.compiler.is_compiling() or (torch.is_grad_enabled() and x.requires_grad):
        return x.contiguous()
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    for at in range(0, x.shape[2], BLOCK):
        out[..., at : at + BLOCK] = x[..., at : at + BLOCK]
    return out


def _joined(parts: list[Tensor]) -> Tensor:
    """One tensor for all channels, of which there is mostly one."""
    return parts[0][None] if len(parts) == 1 else torch.stack(parts)


def _sum(parts: Iterable[Tensor]) -> Tensor:
    """One for each channel; there is mostly one."""
    total, *rest = parts
    for part in rest:
        total = total + part
    return total


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
        return sheared[..., c - 1 :].contiguous()
    return torch.cat([sheared[..., c - 1 :], pad(sheared[..., : c - 1].flip(-1), (0, 1))])


def _power_gradient(R: Tensor, states: Tensor, G: Tensor) -> Tensor:
    """Of G, from the gradients R of the states behind the chunks and the states before them, (H, B·I, N)."""
    if G.ndim == 3:
        return (R.mT @ states).to(G.dtype)
    product = _complex(R) * _complex(states).conj_physical()
    return torch.view_as_real(product.sum(1, dtype=torch.complex128)).flatten(-2).to(G.dtype)
