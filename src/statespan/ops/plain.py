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
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from statespan.ops.register import transformed
from statespan.ssm.structure import toeplitz

BLOCK = 512  # samples copied at a time
AT_ONCE = 8  # chunks of the recurrence copied at a time
FEWEST_PIECES = 6  # on a GPU; below, walking through the chunks one after the other is as fast
# Microseconds of a step of the recurrence on a CPU: of its calls, of reading a number of G, of reading and writing a
# number of the states, and of a multiplication; and how much faster two walks have to be than one.
CALL, READ, ROW, PRODUCT, WORTH = 15.0, 4e-4, 3e-3, 5e-5, 0.7


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
    states, last = recur((U @ E).unflatten(1, (B, -1)), G, start, whole=L // c)
    states = states.flatten(1, 2)
    T, behind, ahead = _matrix(K, both), O, u.new_zeros(0)
    if both:
        behind, in_front = O.chunk(2)
        from_right = recur((U @ E.flip(-2)).unflatten(1, (B, -1)), G, torch.zeros_like(start), left=True)[0]
        ahead = from_right.flatten(1, 2)
    y = [_plus(U @ T[k].mT, states, behind[k].mT) for k in range(T.shape[0])]
    if both:
        y = [_plus(part, ahead, in_front[k].mT) for k, part in enumerate(y)]
    return Result(_joined(y).reshape(-1, H, B, U.shape[1] // B * c)[..., :L], last, states, ahead)


def backward(
    u: Tensor, dy: Tensor, dlast: Tensor | None, saved: Result, K: Tensor, E: Tensor, G: Tensor, O: Tensor,  # noqa: E741
    *, both: bool = False, own: bool = False,
) -> Gradients:  # fmt: skip
    """The adjoint recurrence from the right, and the products that give each operator's gradient.

    With ``own`` the gradient of u takes its place.
    """
    H, B, L = u.shape
    c, N = E.shape[1:]
    U, dY = chunk_rows(u, c), [chunk_rows(part, c) for part in dy.unbind(0)]  # (H, B·I, c), one dY for each channel
    behind_O, ahead_O = O.chunk(2) if both else (O, O)
    added = _sum(part @ behind_O[k] for k, part in enumerate(dY)).unflatten(1, (B, -1))
    zeros = torch.zeros(H, B, N, dtype=torch.float64, device=u.device)
    start = zeros if dlast is None else dlast.double()
    if L % c:  # the partial chunk comes first, then the boundary where the last state was read
        start = start + added[:, :, -1]
        added[:, :, -1] = 0
        _, dfirst = recur(added[:, :, :-1], G, start, left=True, adjoint=True)
    else:
        _, dfirst = recur(added, G, start, left=True, adjoint=True)
    R = added.flatten(1, 2)
    T = _matrix(K, both)
    dT = _joined([part.mT @ U for part in dY])
    dE = U.mT @ R
    dO = _joined([part.mT @ saved.states for part in dY])
    dG = _power_gradient(R, saved.states, G)
    if both:
        added = _sum(part @ ahead_O[k] for k, part in enumerate(dY)).unflatten(1, (B, -1))
        Z = recur(added, G, zeros, adjoint=True)[0].flatten(1, 2)
        dE = dE + (U.mT @ Z).flip(-2)
        dO = torch.cat([dO, _joined([part.mT @ saved.ahead for part in dY])])
        dG = dG + _power_gradient(Z, saved.ahead, G)
    dU = torch.bmm(dY[0], T[0], out=U) if own else dY[0] @ T[0]
    for k in range(1, len(dY)):
        dU = _plus(dU, dY[k], T[k])
    dU = _plus(dU, R, E.mT)
    if both:
        dU = _plus(dU, Z, E.flip(-2).mT)
    return Gradients(dU.reshape(H, B, -1)[..., :L], _diagonals(dT, both), dE, dG, dO, dfirst)


def recur(
    added: Tensor, G: Tensor, start: Tensor, *, whole: int | None = None, left: bool = False, adjoint: bool = False
) -> tuple[Tensor, Tensor]:
    """``s ← G s + added_i`` over the chunks i, in float64: the states carry everything that lasts.

    Args:
        added: (H, B, I, N). Where no gradient is recorded the result takes its place: fresh memory costs more than the
            arithmetic.
        G: (H, N) for complex modes, or (H, N, N).
        start: (H, B, N), float64.
        whole: How many of the chunks to go through, from the left: I or I - 1; None for I.
        left: From the last chunk to the first.
        adjoint: With Gᵀ.

    Returns:
        The state before each chunk (H, B, I, N) in the dtype of ``added``, and the one after all in float64.
    """
    G, count = G.double(), added.shape[2]
    whole = count if whole is None else whole
    if torch.is_grad_enabled() and any(t.requires_grad for t in (added, G, start)):
        states, last = _recur_differentiably(added[:, :, :whole], G, start, left, adjoint)
        return states if whole == count else torch.cat([states, last[:, :, None].to(states.dtype)], 2), last
    power, (H, B, _, N) = _Power(G, adjoint).ready(), added.shape
    x, pieces = start.clone(), _pieces(added, whole, power.dense)
    if pieces > 1:
        # all pieces at once from zeros, then what each starts from, then all at once again
        each = whole // pieces
        used, rest = pieces * each, whole - pieces * each
        front = slice(rest, whole) if left else slice(0, used)
        inside = added[:, :, front].unflatten(2, (pieces, each))  # (H, B, pieces, each, N)
        ends = _walk(inside, power, start.new_zeros(H, B, pieces, N), left, keep=False)
        x = _walk(ends, power.to_the(each), x, left)
        _walk(inside, power, ends, left)
        x = _walk(added[:, :, :rest] if left else added[:, :, used:whole], power, x, left)
    else:
        x = _walk(added[:, :, :whole], power, x, left)
    if whole < count:
        added[:, :, whole] = x
    return added, x


def _pieces(added: Tensor, count: int, dense: bool) -> int:
    """Into how many pieces to cut sequences of ``count`` chunks, so that the pieces of all are walked through together.

    Two walks through pieces are twice the arithmetic of one walk through the whole, in far fewer steps. On a CPU a step
    costs as much as some rows of states, for a call takes its time and a dense G has to be read; on a GPU nothing else
    counts.
    """
    H, B, _, N = added.shape
    if not added.is_cpu:
        pieces = math.isqrt(count)
        return pieces if pieces >= FEWEST_PIECES else 1
    step = CALL + (READ * H * N * N if dense else 0.0)
    row = B * H * N * (ROW + (PRODUCT * N if dense else 0.0))
    pieces = math.isqrt(int(2 * count * step / (step + row)))
    two = 2 * count * (step / max(pieces, 1) + row) + pieces * (step + row)
    if dense and pieces > 1:
        two += (count // pieces).bit_length() * H * N**3 * PRODUCT
    return pieces if pieces > 1 and two < WORTH * count * (step + row) else 1


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

    def ready(self) -> _Power:
        """The same, in the order in which it is fastest to read."""
        other = copy.copy(self)
        other.G = self.G.contiguous()
        return other

    def add_to(self, new: Tensor, x: Tensor) -> None:
        """Add the power times x (H, …, N) to ``new``, in place."""
        new, x = new.flatten(1, -2), x.flatten(1, -2)
        if self.dense:
            new.baddbmm_(x, self.G)
        else:
            _complex(new).addcmul_(_complex(x), self.G)


def _walk(added: Tensor, power: _Power, x: Tensor, left: bool, *, keep: bool = True) -> Tensor:
    """Through the chunks of added (H, …, I, N) from x (H, …, N), which is overwritten; the state after all comes back.

    The one before each takes the place of what is added there. Copied back and forth are a few chunks at a time: one by
    one they would lie too far apart in memory.
    """
    blocks = added.split(AT_ONCE, -2) if added.shape[-2] else ()
    spare = x.new_empty(min(AT_ONCE, added.shape[-2]), *x.shape)
    for block in reversed(blocks) if left else blocks:
        steps = spare[: block.shape[-2]].copy_(block.movedim(-2, 0))
        before = x
        for step in reversed(steps.unbind()) if left else steps.unbind():
            power.add_to(step, before)
            before = step
        if keep:
            first, rest = (-1, slice(0, -1)) if left else (0, slice(1, None))
            block[..., first, :] = x
            block[..., rest, :] = (steps[1:] if left else steps[:-1]).movedim(0, -2)
        x.copy_(before)
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
    return lengthwise(x).view(x.shape[0], -1, c)


def lengthwise(x: Tensor) -> Tensor:
    """X (H, B, L) as a contiguous tensor."""
    if x.is_contiguous():
        return x
    tracked = torch.is_grad_enabled() and x.requires_grad
    if torch.compiler.is_compiling() or transformed() or not x.is_cpu or x.stride(0) != 1 or x.shape[2] <= 2 * BLOCK:
        return x.contiguous()
    return _Lengthwise.apply(x) if tracked else _copied(x)


class _Lengthwise(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return _copied(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> Tensor:
        return dx


def _copied(x: Tensor) -> Tensor:
    """By blocks that stay in a CPU's cache: with the features side by side in memory three times as fast."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    for at in range(0, x.shape[2], BLOCK):
        out[..., at : at + BLOCK] = x[..., at : at + BLOCK]
    return out


def _plus(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``x + a b``, in place where no gradient is recorded."""
    return torch.baddbmm(x, a, b) if torch.is_grad_enabled() else x.baddbmm_(a, b)


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
    """The sums of dT (K, H, c, c), which is overwritten, along its diagonals: the gradient of the kernel in T."""
    if not both:
        return _lower_diagonals(dT.tril_())
    above = _lower_diagonals(dT.triu(1).mT.contiguous())[..., 1:]
    return torch.cat([_lower_diagonals(dT.tril_()), pad(above, (0, 1))])


def _lower_diagonals(x: Tensor) -> Tensor:
    """The sums along the diagonals of lower triangular matrices (..., c, c), from the main one down."""
    c = x.shape[-1]
    if c == 1:
        return x[..., 0]
    # Going back from x[i, i], the last i of c entries of a row are the diagonals; what lies before them is the part of
    # the row above that is zero. The first row has nothing before it, and only one entry.
    sheared = x.flatten(-2)[..., 2:].unfold(-1, c, c + 1)  # (..., c-1, c)
    sums = sheared.sum(-2).flip(-1)
    sums[..., 0] += x[..., 0, 0]
    return sums


def _power_gradient(R: Tensor, states: Tensor, G: Tensor) -> Tensor:
    """Of G, from the gradients R of the states behind the chunks and the states before them, (H, B·I, N)."""
    if G.ndim == 3:
        return (R.mT @ states).to(G.dtype)
    product = _complex(R) * _complex(states).conj_physical()
    return torch.view_as_real(product.sum(1, dtype=torch.complex128)).flatten(-2).to(G.dtype)
