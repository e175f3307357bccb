"""The chunk operators of ``Ā = d + f bᵀ``, diagonal plus rank one, with explicit gradients.

A step costs O(N), so the first few columns ``Ā^l B̄`` and rows ``C Ā^l`` are stepped through, and with them the two
lists whose product is a dense power,

    Ā^m = d^m + Σ_j F_j J_jᵀ,   F_j = d^(m-1-j) f,   J_j = bᵀ Ā^j.

From there the lists double: the second half is the first half times the power, which is squared. Autograd would do the
same with many times as many operations, and most of them on matrices.

Shapes: H heads, M kept modes, N = 2M packed state size, c chunk, K channels, m steps, Q = K + 3 lists. A packed vector
stands for M complex numbers (see :mod:`statespan.ssm.packed`); ``a·b`` is the product of two of them as they are. All
in float64. Nothing saturates: a step grows by at most 3 (see :mod:`statespan.ssm.discretize`), so 256 stay finite.
Conjugation is never lazy: below a dispatch mode it would be lost.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from statespan.ssm.packed import interleave, pack, unpack, view_complex

LARGEST = 1e30  # of operators of an SSM that grows


class RankOneFactors(NamedTuple):
    """A discrete diagonal plus rank-one SSM on packed vectors.

    Example:
        >>> x = torch.ones(1, 2, dtype=torch.float64)
        >>> factors = RankOneFactors(d=x / 2, f=x / 4, b=-x, B=x, C=x[None])
        >>> forward(factors, 4, 0, torch.float64).E.shape
        torch.Size([1, 4, 2])
    """

    d: Tensor
    """(H, N)."""
    f: Tensor
    """(H, N)."""
    b: Tensor
    """(H, N)."""
    B: Tensor
    """B̄, (H, N)."""
    C: Tensor
    """(K, H, N)."""


class RankOneOperators(NamedTuple):
    """The operators, and what their backward pass also needs.

    Example:
        >>> x = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        >>> operators = forward(RankOneFactors(d=x / 2, f=x / 4, b=-x, B=x, C=x[None]), 4, 0, torch.float64)
        >>> operators.K  # (1/2 - 1/4)^l
        tensor([[[1.0000, 0.2500, 0.0625, 0.0156]]], dtype=torch.float64)
    """

    K: Tensor
    """(K, H, c)."""
    E: Tensor
    """(H, c, N)."""
    G: Tensor
    """(H, N, N), float64."""
    O: Tensor  # noqa: E741
    """(K, H, c, N)."""
    lists: Tensor
    """(m+1, Q, H, N), float64: the steps B̄ …, f …, b … and C …, real and imaginary parts side by side."""
    powers: Tensor
    """(n, H, N, N): Ā^m, Ā^2m, … Ā^(c/2)."""


class OperatorGradients(NamedTuple):
    """The incoming gradients of the operators.

    Example:
        >>> x = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        >>> factors = RankOneFactors(d=x / 2, f=x / 4, b=-x, B=x, C=x[None])
        >>> built = forward(factors, 4, 0, torch.float64)
        >>> arriving = OperatorGradients(torch.ones_like(built.K), *(torch.zeros_like(each) for each in built[1:4]))
        >>> backward(factors, built, arriving, 0).C  # that of the kernel's sum
        tensor([[[1.3281, 0.0000]]], dtype=torch.float64)
    """

    K: Tensor
    E: Tensor
    G: Tensor
    O: Tensor  # noqa: E741


def forward(factors: RankOneFactors, chunk: int, ahead: int, dtype: torch.dtype) -> RankOneOperators:
    """The operators of :class:`statespan.ssm.structure.Operators`, with E as rows, for a chunk of 1 … 256.

    Powers of two are fastest. The last ``ahead`` channels look ahead. Everything is computed in float64; all results
    but G have this dtype.
    """
    C = factors.C
    channels, (H, N) = C.shape[0], factors.f.shape
    size, doublings = plan(chunk, N)
    lists = _stepped(factors, size)
    columns, F, J, rows = _separate(lists, channels - ahead)
    G = _add_diagonal(F.mT @ J, _power(unpack(factors.d), size))

    half = max(size, chunk // 2)  # a list's first half makes the second
    E, O = C.new_empty(H, chunk, N, dtype=dtype), C.new_empty(channels, H, chunk, N, dtype=dtype)  # noqa: E741
    K, powers = C.new_empty(H, chunk, channels), C.new_empty(doublings, H, N, N, dtype=dtype)
    X, Y, spare = C.new_empty(H, half, N), C.new_empty(channels, H, half, N), C.new_empty(H * half * N)
    square = torch.empty_like(G)
    E[:, chunk - size :] = X[:, half - size :] = columns
    O[..., :size, :] = Y[..., :size, :] = rows
    K[:, chunk - size :] = columns @ C.permute(1, 2, 0)
    for i in range(doublings):
        powers[i] = G
        more, old, new = spare[: H * size * N].view(H, size, N), chunk - size, chunk - 2 * size
        torch.bmm(X[:, half - size :], G.mT, out=more)
        E[:, new:old], K[:, new:old] = more, more @ C.permute(1, 2, 0)
        X[:, half - 2 * size : half - size] = more[:, : half - size]  # nothing the last time
        for k in range(channels):
            torch.bmm(Y[k, :, :size], G, out=more)
            O[k, :, size : 2 * size] = more
            Y[k, :, size : 2 * size] = more[:, : half - size]
        torch.bmm(G, G, out=square)
        G, square, size = square, G, 2 * size
    if ahead:
        O[channels - ahead :] = O[channels - ahead :].flip(-2)
    K = K.permute(2, 0, 1).flip(-1).to(dtype).contiguous()
    limit(G, K, E, O)
    return RankOneOperators(K, E, G, O, lists, powers)


def backward(
    factors: RankOneFactors, built: RankOneOperators, arriving: OperatorGradients, ahead: int
) -> RankOneFactors:
    """The gradients of the factors from those of the operators, to the accuracy of their dtype."""
    C, (dK, dE, dG, dO) = factors.C, arriving
    chunk, dtype = built.E.shape[1], built.E.dtype
    channels, (steps, doublings) = C.shape[0], plan(chunk, C.shape[2])
    behind = channels - ahead
    E, O = built.E, built.O  # noqa: E741
    if ahead:
        O, dO = (torch.cat([x[:behind], x[behind:].flip(-2)]) for x in (O, dO))  # noqa: E741
    dK = dK.permute(1, 2, 0).flip(1)  # (H, c, K)
    dC = (dK.mT @ E).transpose(0, 1).double()
    dE = torch.baddbmm(dE, dK, C.transpose(0, 1).to(dtype))
    slope = dG.mT.to(dtype, memory_format=torch.contiguous_format)  # transposed, its products need no other transpose
    for i in reversed(range(doublings)):
        G, size = built.powers[i], steps << i
        early, late = dE[:, size:], dE[:, :size]
        near, far = dO[..., :size, :], dO[..., size:, :]
        slope = torch.baddbmm(G @ slope, slope, G).baddbmm_(E[:, chunk - size :].mT, late)
        for k in range(channels):
            slope.baddbmm_(far[k].mT, O[k, :, :size])
        dE = torch.baddbmm(early, late, G)
        dO = torch.stack([torch.baddbmm(near[k], far[k], G.mT) for k in range(channels)])
    F, J = _separate(built.lists, behind)[1:3]
    dE, dG, dO = (x.double() for x in (dE, slope.mT, dO))
    slopes = _join((dE, J @ dG.mT, F @ dG, dO), behind)
    gradients = _unstepped(factors, built.lists, slopes, dG)
    return gradients._replace(C=gradients.C + dC)


def limit(G: Tensor, *lists: Tensor) -> None:
    """Keep the lists of a diverging SSM finite in float32, in place; G shows whether it diverges."""
    if max(G.amax(), -G.amin()) > LARGEST:
        for x in lists:
            x.clamp_(-LARGEST, LARGEST)


def plan(chunk: int, N: int) -> tuple[int, int]:
    """The number of steps before matrix products become faster, and how often to double their list."""
    steps, doublings = chunk, 0
    while steps > max(8, N // 8) and steps % 2 == 0:
        steps, doublings = steps // 2, doublings + 1
    return steps, doublings


def _system(factors: RankOneFactors) -> tuple[Tensor, Tensor, Tensor]:
    """D (Q, H, M), f and b (Q, H, N) of ``x ↦ d x + f (b·x)`` for each list; d is complex, and f and b are interleaved.

    Columns go with Ā and rows with its transpose, that is with conj(d) and with b and f exchanged; F goes with d alone.
    """
    d, f, b = unpack(factors.d), interleave(factors.f), interleave(factors.b)
    count = 1 + factors.C.shape[0]
    return (
        torch.stack([d, d, *[d.conj_physical()] * count]), torch.stack([f, f, *[b] * count]),
        torch.stack([b, torch.zeros_like(b), *[f] * count]),
    )  # fmt: skip


def _stepped(factors: RankOneFactors, steps: int) -> Tensor:
    d, f, b = _system(factors)
    lists = f.new_empty(steps + 1, *f.shape)
    lists[0] = interleave(torch.cat([torch.stack([factors.B, factors.f, factors.b]), factors.C]))
    values = view_complex(lists)
    for now, now_complex, then, then_complex in zip(lists, values, lists[1:], values[1:]):
        torch.mul(now_complex, d, out=then_complex)
        then.addcmul_((now * b).sum(-1, keepdim=True), f)
    return lists


def _unstepped(factors: RankOneFactors, lists: Tensor, slopes: Tensor, dG: Tensor) -> RankOneFactors:
    """The gradients of the factors from those of all steps (m+1, Q, H, N) and of the power made from them."""
    steps = lists.shape[0] - 1
    d, f, b = _system(factors)
    values, complex_slopes, back = view_complex(lists), view_complex(slopes), d.conj_physical()
    products = lists.new_empty(steps, *f.shape[:2], 1)
    for i in reversed(range(steps)):
        torch.sum(slopes[i + 1] * f, -1, keepdim=True, out=products[i])
        complex_slopes[i].addcmul_(complex_slopes[i + 1], back)
        slopes[i].addcmul_(products[i], b)
    later = slopes[1:]
    of_d = (values[:-1].conj_physical() * complex_slopes[1:]).sum(0)
    of_f = ((lists[:-1] * b).sum(-1, keepdim=True) * later).sum(0)
    of_b = (products * lists[:-1]).sum(0)
    of_power = (steps * _power(unpack(factors.d), steps - 1)).conj_physical() * _diagonal_of(dG)
    dd = of_d[:2].sum(0) + of_d[2:].sum(0).conj_physical() + of_power
    first = slopes[0]
    df = of_f[0] + first[1] + of_b[2:].sum(0)
    db = of_b[0] + first[2] + of_f[2:].sum(0)
    df, db, dB, dC = (pack(view_complex(x)) for x in (df, db, first[0], first[3:]))
    return RankOneFactors(pack(dd), df, db, dB, dC)


def _separate(lists: Tensor, behind: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The columns, latest first, F likewise, J and the rows, packed (…, H, m, N); causal rows start one step later."""
    x = lists.unflatten(-1, (-1, 2)).permute(1, 2, 0, 4, 3).flatten(-2)  # (Q, H, m+1, N)
    rows = torch.cat([x[3 : 3 + behind, :, 1:], x[3 + behind :, :, :-1]])
    return x[0, :, :-1].flip(1), x[1, :, :-1].flip(1), x[2, :, :-1], rows


def _join(separated: tuple[Tensor, Tensor, Tensor, Tensor], behind: int) -> Tensor:
    """The adjoint of :func:`_separate`."""
    dE, dF, dJ, dO = separated
    m, N = dE.shape[-2:]
    x = dE.new_zeros(3 + dO.shape[0], dE.shape[0], m + 1, N)
    x[0, :, :-1], x[1, :, :-1], x[2, :, :-1] = dE.flip(1), dF.flip(1), dJ
    x[3 : 3 + behind, :, 1:], x[3 + behind :, :, :-1] = dO[:behind], dO[behind:]
    return x.unflatten(-1, (2, -1)).permute(2, 0, 1, 4, 3).flatten(-2)


def _add_diagonal(G: Tensor, power: Tensor) -> Tensor:
    """Add multiplication by complex numbers (H, M) to G (H, N, N), in place."""
    M = power.shape[-1]
    for rows, columns, part in (0, 0, power.real), (M, M, power.real), (M, 0, power.imag), (0, M, -power.imag):
        G[:, rows : rows + M, columns : columns + M].diagonal(dim1=1, dim2=2).add_(part)
    return G


def _diagonal_of(dG: Tensor) -> Tensor:
    """The adjoint of :func:`_add_diagonal`."""
    M = dG.shape[-1] // 2
    parts = [[dG[:, i : i + M, j : j + M].diagonal(dim1=1, dim2=2) for j in (0, M)] for i in (0, M)]
    return torch.complex(parts[0][0] + parts[1][1], parts[1][0] - parts[0][1])


def _power(x: Tensor, exponent: int) -> Tensor:
    """Raise to a power by repeated squaring."""
    result = torch.ones_like(x)
    while exponent:
        result = result * x if exponent & 1 else result
        x, exponent = x * x, exponent >> 1
    return result
