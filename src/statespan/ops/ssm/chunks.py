"""The chunk engine in plain torch: slow loops only over chunks, everything else matrix products.

It runs on any device in float32 and float64, and tests compare the kernels of ``_triton/scan.py`` and
``_triton/states.py`` with it. The forward pass is differentiable; the backward pass is written out too, because it
needs less memory than autograd.

Shapes: H heads, B batch, L length, I chunks of c samples, N state size, K channels. Inputs are (H, B, L), states
(H, B, N); for the operators see :class:`statespan.ops.ssm.arguments.ChunkOperators`. The real and the imaginary part
of a mode are neighbours. With ``both`` the last K of 2K kernels are anti-causal.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from statespan.ops.ssm.arguments import ChunkOperators, OutputGradients
from statespan.ops.ssm.layout import lengthwise
from statespan.ops.ssm.state_scan import scan_chunks
from statespan.ssm.packed import view_complex, view_real
from statespan.ssm.structure import toeplitz


class Outputs(NamedTuple):
    """The results of the forward pass.

    Example:
        >>> E, G, O = torch.ones(4, 32, 8), torch.zeros(4, 8), torch.ones(1, 4, 32, 8)
        >>> outputs = forward(torch.ones(4, 2, 96), ChunkOperators(torch.ones(1, 4, 32), E, G, O))
        >>> outputs.y.shape, outputs.last.shape
        (torch.Size([1, 4, 2, 96]), torch.Size([4, 2, 8]))
    """

    y: Tensor
    """(K, H, B, L)."""
    last: Tensor
    """(H, B, N): the state after all whole chunks."""
    states: Tensor
    """(H, B·I, N): the state before each chunk of each sequence."""
    ahead: Tensor
    """The same of the anti-causal recurrence, which starts behind the last chunk; empty without one."""


class Gradients(NamedTuple):
    """The gradients of everything the forward pass takes.

    Example:
        >>> E, G, O = torch.ones(4, 32, 8), torch.zeros(4, 8), torch.ones(1, 4, 32, 8)
        >>> gradients = Gradients(torch.zeros(4, 2, 96), ChunkOperators(torch.ones(1, 4, 32), E, G, O), first=None)
        >>> gradients.operators.K.shape
        torch.Size([1, 4, 32])
    """

    u: Tensor
    operators: ChunkOperators
    first: Tensor | None


def forward(u: Tensor, operators: ChunkOperators, first: Tensor | None = None, *, both: bool = False) -> Outputs:
    """Apply the operators of one chunk to all chunks of u."""
    K, E, G, O, _ = operators  # noqa: E741
    H, B, L = u.shape
    c, N = E.shape[1:]
    U = chunk_rows(u, c)  # (H, B·I, c)
    start = torch.zeros(H, B, N, dtype=torch.float64, device=u.device) if first is None else first.double()
    states, last = scan_chunks((U @ E).unflatten(1, (B, -1)), G, start, whole=L // c)
    states = states.flatten(1, 2)
    T, causal, ahead = _matrix(K, both), O, u.new_zeros(0)
    if both:
        causal, anticausal = O.chunk(2)
        from_right = scan_chunks((U @ E.flip(-2)).unflatten(1, (B, -1)), G, torch.zeros_like(start), left=True)[0]
        ahead = from_right.flatten(1, 2)
    y = [_plus(U @ T[k].mT, states, causal[k].mT) for k in range(T.shape[0])]
    if both:
        y = [_plus(part, ahead, anticausal[k].mT) for k, part in enumerate(y)]
    return Outputs(_stack(y).reshape(-1, H, B, U.shape[1] // B * c)[..., :L], last, states, ahead)


def backward(
    u: Tensor, arriving: OutputGradients, saved: Outputs, operators: ChunkOperators, *,
    both: bool = False, in_place: bool = False,
) -> Gradients:  # fmt: skip
    """The adjoint recurrence from the right, and the products that give each operator's gradient.

    With ``in_place`` the gradient of u takes its place.
    """
    (dy, dlast), (K, E, G, O, _) = arriving, operators  # noqa: E741
    H, B, L = u.shape
    c, N = E.shape[1:]
    U, dY = chunk_rows(u, c), [chunk_rows(part, c) for part in dy.unbind(0)]  # (H, B·I, c), one dY for each channel
    causal_O, ahead_O = O.chunk(2) if both else (O, O)
    added = reduce(torch.add, [part @ causal_O[k] for k, part in enumerate(dY)]).unflatten(1, (B, -1))
    zeros = torch.zeros(H, B, N, dtype=torch.float64, device=u.device)
    start = zeros if dlast is None else dlast.double()
    if L % c:  # the partial chunk comes first, then the boundary where the last state was read
        start = start + added[:, :, -1]
        added[:, :, -1] = 0
        _, dfirst = scan_chunks(added[:, :, :-1], G, start, left=True, adjoint=True)
    else:
        _, dfirst = scan_chunks(added, G, start, left=True, adjoint=True)
    R = added.flatten(1, 2)
    T = _matrix(K, both)
    dT = _stack([part.mT @ U for part in dY])
    dE = U.mT @ R
    dO = _stack([part.mT @ saved.states for part in dY])
    dG = _power_gradient(R, saved.states, G)
    if both:
        added = reduce(torch.add, [part @ ahead_O[k] for k, part in enumerate(dY)]).unflatten(1, (B, -1))
        Z = scan_chunks(added, G, zeros, adjoint=True)[0].flatten(1, 2)
        dE = dE + (U.mT @ Z).flip(-2)
        dO = torch.cat([dO, _stack([part.mT @ saved.ahead for part in dY])])
        dG = dG + _power_gradient(Z, saved.ahead, G)
    dU = torch.bmm(dY[0], T[0], out=U) if in_place else dY[0] @ T[0]
    for k in range(1, len(dY)):
        dU = _plus(dU, dY[k], T[k])
    dU = _plus(dU, R, E.mT)
    if both:
        dU = _plus(dU, Z, E.flip(-2).mT)
    return Gradients(dU.reshape(H, B, -1)[..., :L], ChunkOperators(_diagonals(dT, both), dE, dG, dO), dfirst)


def chunk_rows(x: Tensor, c: int) -> Tensor:
    """Cut (H, B, L) into rows (H, B·I, c), one for each chunk of each sequence, the last chunks zero-padded."""
    if missing := -x.shape[-1] % c:
        x = pad(x, (0, missing))
    return lengthwise(x).view(x.shape[0], -1, c)


def _plus(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``x + a b``, in place if no gradient is recorded."""
    return torch.baddbmm(x, a, b) if torch.is_grad_enabled() else x.baddbmm_(a, b)


def _stack(parts: list[Tensor]) -> Tensor:
    """Stack the channels into one tensor; usually there is only one."""
    return parts[0][None] if len(parts) == 1 else torch.stack(parts)


def _matrix(K: Tensor, both: bool) -> Tensor:
    """The matrix T of a chunk, with the anti-causal kernel above the diagonal."""
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
    """The gradient of G from the adjoint states R after the chunks and the states before them, (H, B·I, N)."""
    if G.ndim == 3:
        return (R.mT @ states).to(G.dtype)
    product = view_complex(R) * view_complex(states).conj_physical()
    return view_real(product.sum(1, dtype=torch.complex128)).to(G.dtype)
