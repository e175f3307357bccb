"""Initializations by value: a pair (A, B), a function from d_state to a pair, or a registered function.

Shapes: N state size (N/2 complex modes are kept), S number of independent SSMs, R rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Arrays: TypeAlias = tuple[Any, Any]  # A and B, each a tensor or a numpy array
Init: TypeAlias = str | Arrays | Callable[[int], Arrays]
"""An initialization: a name, several joined by "/", a pair (A, B), or a function from d_state to a pair."""

SAVED = ("saved", "saved-rank-2")
"""Names in a saved config that mean: the values are in the model's weights. The second is for a P of rank 2."""
LARGEST_RANK = 2  # of the low-rank term of a DPLR matrix


def check_init(init: Any, known: tuple[str, ...]) -> None:
    """Reject what is neither a pair of arrays nor a function; the caller has dealt with names."""
    is_pair = isinstance(init, tuple) and len(init) == 2 and all(isinstance(x, (Tensor, np.ndarray)) for x in init)
    if not (is_pair or (callable(init) and not isinstance(init, type))):
        raise TypeError(
            f"init must be one of {known} or several joined by '/', a pair (A, B) of tensors or arrays, or a function "
            f"from d_state to one, got {type(init).__name__} {_shown(init)}"
        )


def diagonal(init: Any, n_ssm: int, N: int) -> tuple[Tensor, Tensor]:
    """A and B (S, N/2), complex128: one mode of each conjugate pair."""
    if init in SAVED:
        return _absent(n_ssm, N // 2), _absent(n_ssm, N // 2)
    pairs = [_checked(pair, (N // 2,), torch.complex128) for pair in _pairs(init, n_ssm, N)]
    return _stacked(pairs)


def dense(init: Any, n_ssm: int, N: int) -> tuple[Tensor, Tensor]:
    """A (S, N, N) and B (S, N), float64."""
    if init in SAVED:
        return _absent(n_ssm, N, N).real, _absent(n_ssm, N).real
    return _stacked([_checked(pair, (N, N), torch.float64) for pair in _pairs(init, n_ssm, N)])


def dplr(init: Any, n_ssm: int, N: int) -> tuple[Tensor, Tensor, Tensor]:
    """Λ (S, N/2), P (R, S, N/2) and B (S, N/2), complex128, from a dense A; see :func:`dplr_of`."""
    if init in SAVED:
        M = N // 2
        return _absent(n_ssm, M), _absent(1 + SAVED.index(init), n_ssm, M), _absent(n_ssm, M)
    made: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
    systems = []
    for pair in _pairs(init, n_ssm, N):  # one given pair is the same object for all SSMs
        if id(pair) not in made:
            made[id(pair)] = dplr_of(*_checked(pair, (N, N), torch.float64), rounding=_rounding(pair))
        systems.append(made[id(pair)])
    rank = max(P.shape[0] for _, P, _ in systems)
    padded = [torch.nn.functional.pad(P, (0, 0, 0, rank - P.shape[0])) for _, P, _ in systems]
    device = torch.get_default_device()
    Lambda, B = (torch.stack([system[i] for system in systems]) for i in (0, 2))
    return Lambda.to(device), torch.stack(padded, 1).to(device), B.to(device)


def dplr_of(A: Tensor, B: Tensor, *, rounding: float = 1e-12) -> tuple[Tensor, Tensor, Tensor]:
    """A real system in diagonal plus low-rank form, with the conventions of :func:`statespan.ssm.hippo.dplr`.

    ``A = c I + K - Σ_r P_r P_rᵀ`` with K skew-symmetric, so the symmetric part of A must be c I minus a term of rank at
    most 2, as for the HiPPO matrices. Then Λ = c + iω with the frequencies ω of K.

    Args:
        A: (N, N), float64, N even.
        B: (N,), float64.
        rounding: Relative error of the entries of A.

    Returns:
        Λ (N/2,), P (R, N/2) and B (N/2,), complex128.

    Example:
        >>> from statespan.ssm import hippo
        >>> Lambda, P, B = dplr_of(*hippo.legs(8))
        >>> bool((Lambda - hippo.dplr("legs", 8)[0]).abs().max() < 1e-12), tuple(P.shape)
        (True, (1, 4))
    """
    N, tolerance = A.shape[0], _tolerance(A, rounding)
    rest, real = _low_rank(A, tolerance)
    frequency, V = torch.linalg.eigh(-0.5j * (A - A.T).to(torch.complex128))
    keep = torch.arange(N - 1, N // 2 - 1, -1)  # eigenvalues come in pairs ±; the upper half, largest first
    frequency, V = frequency[keep].clamp(min=0.0), V[:, keep]
    still = frequency <= tolerance
    if still.any():  # the two real states of frequency 0 become one pair
        frequency[still] = 0.0
        V[:, still] = _real_pairs(A, N - 2 * int((~still).sum()))
    b = V.mH @ B.to(torch.complex128)
    phase = torch.where(b.abs() > 0, b / b.abs().clamp(min=torch.finfo(torch.float64).tiny), torch.ones_like(b))
    Lambda = torch.complex(torch.full_like(frequency, real), frequency)
    return Lambda, rest.to(V.dtype) @ (V * phase).conj(), phase.conj() * b


def saved_name(init: Any, N: int) -> str:
    """The initialization in the config of a saved model: its name, or one of :data:`SAVED`."""
    if isinstance(init, str):
        return init
    (pair,) = _pairs(init, 1, N)
    A = _tensor(pair[0])
    if A.ndim != 2:
        return SAVED[0]
    rank = int((_deviations(A.double())[0] > _tolerance(A, _rounding(pair))).sum())
    return SAVED[rank == LARGEST_RANK]


def _low_rank(A: Tensor, tolerance: float) -> tuple[Tensor, float]:
    """P (R, N) and c of a matrix whose symmetric part is ``c I - Σ_r P_r P_rᵀ``."""
    size, vectors, real = _deviations(A)
    rank = int((size > tolerance).sum())
    if rank > LARGEST_RANK:
        raise ValueError(
            "init must have an A whose symmetric part is a multiple of the identity minus a term of rank 1 or 2, "
            f"as S4 needs, got one of rank {rank}; LSSL takes any real A, and S4D a diagonal one"
        )
    if real > tolerance:
        raise ValueError(f"init must have a stable A, got one whose symmetric part has an eigenvalue {real:.3g} > 0")
    rank = max(rank, 1)
    return size[:rank, None].sqrt() * vectors[:, :rank].T, min(real, 0.0)


def _deviations(A: Tensor) -> tuple[Tensor, Tensor, float]:
    """The largest eigenvalue c of A's symmetric part, how far the others lie below it, and their eigenvectors."""
    values, vectors = torch.linalg.eigh((A + A.T) / 2)  # ascending
    return (values[-1] - values).clamp(min=0.0), vectors, float(values[-1])


def _tolerance(A: Tensor, rounding: float) -> float:
    """The threshold below which an eigenvalue of A's parts counts as 0."""
    return A.shape[0] * rounding * max(float(A.abs().max()), torch.finfo(torch.float64).tiny)


def _real_pairs(A: Tensor, count: int) -> Tensor:
    """``(q_1 + i q_2)/√2`` of an orthonormal real basis of the ``count`` states with frequency 0, as columns."""
    q = torch.linalg.svd((A - A.T) / 2)[2][A.shape[0] - count :].T  # (N, count), of the smallest singular values
    return torch.complex(q[:, ::2], q[:, 1::2]) / math.sqrt(2)


def _pairs(init: Any, n_ssm: int, N: int) -> list[Arrays]:
    """One pair per SSM; a function is called for each, so it may draw random numbers."""
    if isinstance(init, tuple):
        return [init] * n_ssm
    with torch.device("cpu"):  # even if the model is built on the meta device, where values cannot be checked
        pairs = [init(N) for _ in range(n_ssm)]
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise TypeError(f"init must return a pair (A, B), got {type(pair).__name__} {_shown(pair)}")
    return pairs


def _checked(pair: Arrays, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A of this shape and B of the shape of its last axis, both finite and on the CPU."""
    checked = []
    for name, value, wanted in (("A", pair[0], shape), ("B", pair[1], shape[-1:])):
        tensor = _tensor(value)
        if tuple(tensor.shape) != wanted:
            form = "one mode of each conjugate pair" if len(shape) == 1 else "a dense matrix"
            raise ValueError(f"init must have {name} of shape {wanted} ({form}), got {tuple(tensor.shape)}")
        if tensor.is_complex() and not dtype.is_complex:
            raise TypeError(f"init must have a real {name}, got {tensor.dtype}")
        tensor = tensor.to(dtype)
        if not bool(torch.isfinite(torch.view_as_real(tensor) if dtype.is_complex else tensor).all()):
            raise ValueError(f"init must have a finite {name}, got NaN or infinity")
        checked.append(tensor)
    return checked[0], checked[1]


def _tensor(value: Any) -> Tensor:
    """A copy of the value on the CPU, without a gradient."""
    if not isinstance(value, (Tensor, np.ndarray)):
        raise TypeError(f"init must have tensors or numpy arrays for A and B, got {type(value).__name__}")
    if isinstance(value, np.ndarray) and value.dtype.kind not in "fciu":
        raise TypeError(f"init must have numbers in A and B, got an array of {value.dtype}")
    tensor = torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value.detach()
    return tensor.to("cpu", copy=True)


def _rounding(pair: Arrays) -> float:
    """The relative error of A's entries: a few units in the last place of its dtype."""
    dtype = _tensor(pair[0]).dtype
    return 64 * torch.finfo(dtype if dtype.is_floating_point else torch.float64).eps


def _stacked(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    device = torch.get_default_device()  # meta while a model is built to be loaded
    return torch.stack([A for A, _ in pairs]).to(device), torch.stack([B for _, B in pairs]).to(device)


def _absent(*shape: int) -> Tensor:
    """A tensor without values, for a model that is being loaded."""
    if torch.get_default_device().type != "meta":
        raise ValueError(
            "init='saved' stands for values that are in the weights of a saved model: load it with from_pretrained; "
            "a new layer needs a name, a pair (A, B) or a function"
        )
    return torch.empty(shape, dtype=torch.complex128)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
