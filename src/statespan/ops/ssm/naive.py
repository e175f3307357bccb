"""The recurrence, sample by sample in float64: slow, and correct by inspection. Tests compare every path with it.

Shapes: B batch, L length, H heads, N state size, K channels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from statespan.ssm.structure import Structure


def naive(ssm: Structure, u: Tensor, D: Tensor | None = None, *, bidirectional: bool = False) -> Tensor:
    """``x_t = Ā x_{t-1} + B̄ u_t``, ``y_t = C x_t + D u_t``; anti-causal channels run from the right, one sample later.

    With a first-order hold, the causal channels have ``y_t = C x_{t-1} + (F + D) u_t``.

    Args:
        ssm: The SSM.
        u: (B, L, H).
        D: A skip (K, H), or None.
        bidirectional: The last half of the channels is anti-causal.

    Returns:
        y (B, L, K, H), float64.

    Example:
        >>> from statespan import S4D
        >>> from statespan.ops import apply
        >>> ssm, u = S4D(2, 4, dtype=torch.float64).structure(), torch.randn(1, 9, 2, dtype=torch.float64)
        >>> torch.allclose(apply(ssm, u), naive(ssm, u))
        True
    """
    transition, Bbar, C, F = ssm.recurrence()
    Abar, u = transition.matrix(), u.double()
    causal, anticausal = C.chunk(2) if bidirectional else (C, C[:0])
    if F is None:
        y = _run(Abar, Bbar, causal, u)
    else:
        earlier = pad(u[:, :-1], (0, 0, 1, 0))  # a state that is read before its sample ends with the one before
        y = _run(Abar, Bbar, causal, earlier) + F[: causal.shape[0]] * u[:, :, None]
    if bidirectional:
        later = pad(u[:, 1:], (0, 0, 0, 1))  # what an anti-causal output at t sees starts at t + 1
        y = y + _run(Abar, Bbar, anticausal, later.flip(1)).flip(1)
    return y if D is None else y + D.double() * u[:, :, None]


def _run(Abar: Tensor, Bbar: Tensor, C: Tensor, u: Tensor) -> Tensor:
    x, y = u.new_zeros(*u.shape[::2], Bbar.shape[-1]), []  # (B, H, N)
    for t in range(u.shape[1]):
        x = torch.einsum("hnm,bhm->bhn", Abar, x) + Bbar * u[:, t, :, None]
        y.append(torch.einsum("khn,bhn->bkh", C, x))
    return torch.stack(y, 1)
