"""The chunk operators of a diagonal SSM with explicit gradients.

Every operator is a list ``x d^l``, l < c: the columns of E with x = B̄, the rows of O with x = 2 conj(C) and conj(d) in
place of d. One table of powers serves all. Backward, a list's gradients g give those of x and d by one product and two
sums,

    p_l = conj(d^(l-1)) g_l,   dx = g_0 + conj(d) Σ p_l,   dd = conj(x) Σ l p_l.

Shapes: H heads, M kept modes, N = 2M, c chunk, K channels. Complex numbers have a last axis of 2, and states the real
and the imaginary part of a mode side by side. Nothing saturates: a step grows by at most 3 (see
:mod:`statespan.ssm.discretize`), so 256 stay finite. Conjugation is never lazy: below a dispatch mode it would be lost.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from statespan.ssm.packed import view_complex, view_real
from statespan.ssm.rank_one import OperatorGradients, limit


class DiagonalFactors(NamedTuple):
    """A discrete diagonal SSM, float64.

    Example:
        >>> x = torch.ones(1, 1, 2, dtype=torch.float64)
        >>> factors = DiagonalFactors(d=x / 2, B=x, C=x[None])
        >>> forward(factors, 4, 0, torch.float64).K.shape
        torch.Size([1, 1, 4])
    """

    d: Tensor
    """Ā, (H, M, 2)."""
    B: Tensor
    """B̄, (H, M, 2)."""
    C: Tensor
    """(K, H, M, 2)."""


class DiagonalOperators(NamedTuple):
    """The operators, and what their backward pass also needs.

    Example:
        >>> one = torch.tensor([[[1.0, 0.0]]], dtype=torch.float64)
        >>> operators = forward(DiagonalFactors(d=one / 2, B=one, C=one[None] / 2), 4, 0, torch.float64)
        >>> operators.K
        tensor([[[1.0000, 0.5000, 0.2500, 0.1250]]], dtype=torch.float64)
    """

    K: Tensor
    """(K, H, c)."""
    E: Tensor
    """(H, c, N)."""
    G: Tensor
    """(H, N), float64."""
    O: Tensor  # noqa: E741
    """(K, H, c, N)."""
    table: Tensor
    """(H, c, M, 2): d^0 … d^(c-1)."""


def forward(factors: DiagonalFactors, chunk: int, ahead: int, dtype: torch.dtype) -> DiagonalOperators:
    """The operators of :class:`statespan.ssm.structure.Operators`, with E as rows, for a chunk of 1 … 256.

    The last ``ahead`` channels look ahead. Everything is computed in float64; all but G are returned in ``dtype``.
    """
    d, B, C = (torch.view_as_complex(x.contiguous()) for x in factors)
    channels, H, M = C.shape
    table = power_table(d, chunk)
    E, O = (factors.d.new_empty(*shape, H, chunk, 2 * M, dtype=dtype) for shape in ((), (channels,)))  # noqa: E741
    spare = torch.mul(table, B[:, None])
    E.copy_(view_real(spare).flip(1))
    K = view_real((2 * C).conj_physical()).transpose(0, 1) @ view_real(spare).mT  # (H, K, c)
    for k in range(channels):
        causal = k < channels - ahead
        first = 2 * C[k] * d if causal else 2 * C[k]
        row = view_real(torch.mul(table, first[:, None], out=spare).conj_physical_())
        O[k] = row if causal else row.flip(1)
    K, G = K.transpose(0, 1).to(dtype).contiguous(), view_real(table[:, -1] * d)
    table = torch.view_as_real(table).to(dtype)
    limit(G, K, E, O, table)
    return DiagonalOperators(K, E, G, O, table)


def backward(
    factors: DiagonalFactors, built: DiagonalOperators, arriving: OperatorGradients, ahead: int
) -> DiagonalFactors:
    """The gradients of the factors from those of the operators, to the accuracy of their dtype."""
    d, B, C = (torch.view_as_complex(x.contiguous()) for x in factors)
    dK, dE, dG, dO = arriving
    table, chunk = torch.view_as_complex(built.table), dE.shape[1]
    dG, dO = dG.double().contiguous(), dO.contiguous()  # to be read as complex numbers
    rows = view_real((2 * C).conj_physical()).to(dE.dtype).transpose(0, 1)  # (H, K, N)
    of_K = view_complex((dK.transpose(0, 1) @ view_real(table)).double()).transpose(0, 1)  # Σ dK_l d^l, (K, H, M)
    dB, slope = _of_list(torch.baddbmm(dE.flip(1), dK.permute(1, 2, 0), rows), table.conj_physical(), d.conj_physical())
    dd = B.conj_physical() * slope + (chunk * table[:, -1]).conj_physical() * view_complex(dG)
    dC = []
    for k in range(C.shape[0]):
        causal = k < C.shape[0] - ahead
        first, slope = _of_list(dO[k] if causal else dO[k].flip(1), table, d)
        first = 2 * first.conj_physical()  # of C, or of C d
        dd = dd + 2 * ((C[k] * d if causal else C[k]) * slope).conj_physical()
        dd = dd + C[k].conj_physical() * first if causal else dd
        dC.append((d.conj_physical() * first if causal else first) + 2 * (B * of_K[k]).conj_physical())
    return DiagonalFactors(*(torch.view_as_real(x) for x in (dd, dB, torch.stack(dC))))


def power_table(d: Tensor, count: int) -> Tensor:
    """d^0 … d^(count-1), (H, count, M), each half from the one before."""
    table = d.new_empty(d.shape[0], count, d.shape[1])
    table[:, 0], done, power = 1, 1, d
    while done < count:
        more = min(done, count - done)
        torch.mul(table[:, :more], power[:, None], out=table[:, done : done + more])
        done, power = 2 * done, power * power
    return table


def _of_list(g: Tensor, powers: Tensor, base: Tensor) -> tuple[Tensor, Tensor]:
    """``Σ q^l g_l`` and ``Σ l q^(l-1) g_l`` of g (H, c, N), with the powers q^l (H, c, M) of q = ``base`` (H, M)."""
    products = view_real(powers[:, :-1] * view_complex(g[:, 1:]))
    weights = torch.arange(1, g.shape[1], dtype=g.dtype, device=g.device)
    sums = view_complex((torch.stack([torch.ones_like(weights), weights]) @ products).double())  # (H, 2, M)
    return view_complex(g[:, 0].double()) + base * sums[:, 0], sums[:, 1]
