"""The kernel of a bilinear SSM as a power series, with explicit gradients: the fewest operations for a short kernel.

With σ = (1-z)/(1+z) the kernel's generating function is that of the S4 paper, ``Σ_l K_l z^l = C R B Δ`` for a diagonal
Λ, with ``R(z) = ((1-z) - (1+z) ΔΛ/2)⁻¹``. Its series needs no nodes and no FFT of the kernel's length: with h = ΔΛ/2,

    R(z) = Σ_l r d^l z^l,   r = 1/(1-h),   d = (1+h)/(1-h).

A low-rank term -P Pᴴ turns it into a quotient of four such series (Woodbury),

    K = Δ (p - (Δ/2) (1+z) q w),   (1 + (Δ/2) (1+z) s) w = v,   p = C R B, q = C R P, v = Pᴴ R B, s = Pᴴ R P,

which is a product of series and the solution of a triangular Toeplitz system. With Re Λ ≤ 0 the real part of what is
divided by is at least 1 for all |z| ≤ 1, so the inverse of the system is at most 1 in norm, however large Δ is.

The lists ``Σ_m W_m d_m^l`` are products of two tables: with l = i·b + j, ``d^l = (d^b)^i d^j``.

Shapes: H heads, S sets of modes that the heads share in turn, M kept modes, K channels, L length, Q lists of a head.
Everything is float64; conjugation is never lazy: below a dispatch mode it would be lost.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from statespan.ssm.discretize import MAX_GROWTH
from statespan.ssm.modal import power_table
from statespan.ssm.powers import block_length
from statespan.ssm.structure import toeplitz


class SeriesTensors(NamedTuple):
    """The parameters of a bilinear SSM, or their gradients; complex numbers have a last axis of 2.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> pair = torch.tensor([[[1.0, 0.0]]], dtype=torch.float64)
        >>> x = SeriesTensors(dt=one[0], decay=-one, freq=one, B=pair, C=pair[None], P=None)
        >>> K, saved = kernel(x, SeriesOptions(length=4, real_part="none", log_dt=False, dt_scale=1.0))
        >>> K.shape
        torch.Size([1, 1, 4])
    """

    dt: Tensor
    """(H,): log Δ or Δ."""
    decay: Tensor
    """(S, M): Re A, or the parameter behind it."""
    freq: Tensor
    """(S, M): Im A."""
    B: Tensor
    """(S, M, 2)."""
    C: Tensor
    """(K, H, M, 2)."""
    P: Tensor | None
    """(S, M, 2), or None for a diagonal SSM."""


class SeriesOptions(NamedTuple):
    """How to read the parameters.

    Example:
        >>> half = SeriesOptions(length=4, real_part="none", log_dt=False, dt_scale=2.0)
        >>> full = half._replace(length=8, dt_scale=1.0)  # the same time, sampled twice as often
        >>> full.length * full.dt_scale == half.length * half.dt_scale
        True
    """

    length: int
    real_part: str
    """How ``decay`` becomes Re A."""
    log_dt: bool
    dt_scale: float


class _Modes(NamedTuple):
    """The modes of each head."""

    dt: Tensor  # (H, 1)
    A: Tensor  # (S, M), complex, before Δ
    r: Tensor  # (H, M), complex
    d: Tensor  # (H, M), complex
    right: Tensor  # (H, 1, M) complex 2 r B, or (H, 2, M) with 2 r P
    left: Tensor  # (H, K, M) complex C, or (H, K+1, M) with conj(P)


class _Lists(NamedTuple):
    """The lists of each head (H, Q, L), and the tables they were made of."""

    values: Tensor  # (H, Q, L)
    columns: Tensor  # (H, b, M) complex: conj(d)^j
    steps: Tensor  # (H, a, M) complex: d^(b·i)


class _Quotient(NamedTuple):
    """What the gradient of a quotient of series needs."""

    summed: Tensor  # (H, K+1, L): (1+z) q and (1+z) s
    spectra: Tensor  # (H, K+1, F) complex: of (Δ/2) (1+z) q, and of w


def kernel(x: SeriesTensors, options: SeriesOptions) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The kernel (K, H, L), and the tensors that :func:`gradients` needs."""
    modes = _modes(x, options)
    lists = _lists(modes, options.length)
    if x.P is None:
        K = modes.dt[:, :, None] * lists.values
        return K.transpose(0, 1), (K, *modes, *lists)
    K, quotient = _divided(lists.values, modes.dt[:, :, None])
    return K.transpose(0, 1), (K, *modes, *lists, *quotient)


def gradients(x: SeriesTensors, options: SeriesOptions, saved: tuple[Tensor, ...], dK: Tensor) -> SeriesTensors:
    """The gradients of the parameters from that of the kernel (K, H, L), in float64."""
    K, modes, lists = saved[0], _Modes(*saved[1:7]), _Lists(*saved[7:10])
    dK, dt = dK.transpose(0, 1), modes.dt[:, :, None]  # (H, K, L)
    of_dt = (dK * K).sum((1, 2))[:, None] / modes.dt
    dvalues = dt * dK
    if x.P is not None:
        dvalues, of_half = _divided_backward(dvalues, lists.values, _Quotient(*saved[10:]), dt)
        of_dt = of_dt + of_half / 2
    return _modes_backward(x, options, modes, _lists_backward(dvalues, lists, modes), of_dt=of_dt)


def _modes(x: SeriesTensors, options: SeriesOptions) -> _Modes:
    dt = x.dt.double()
    dt = (dt.exp() if options.log_dt else dt)[:, None]
    dt = dt * options.dt_scale if options.dt_scale != 1.0 else dt
    copies = x.dt.shape[0] // x.decay.shape[0]
    A = torch.complex(real_part(options.real_part, x.decay.double()), x.freq.double())
    h = _per_head(A, copies) * (dt / 2)
    if options.real_part == "none":
        h = torch.complex(h.real.clamp(max=MAX_GROWTH / 2), h.imag)
    r = (1 - h).reciprocal_()
    d = (2 * r).sub_(1)
    B, C = _per_head(_complex(x.B), copies), _complex(x.C).transpose(0, 1)
    if x.P is None:
        return _Modes(dt, A, r, d, (2 * r * B)[:, None], C)
    P = _per_head(_complex(x.P), copies)
    right = 2 * r[:, None] * torch.stack([B, P], 1)
    return _Modes(dt, A, r, d, right, torch.cat([C, P.conj_physical()[:, None]], 1))


def _lists(modes: _Modes, length: int) -> _Lists:
    weights = (modes.left[:, :, None] * modes.right[:, None]).flatten(1, 2)  # (H, Q, M)
    b = block_length(length * weights.shape[1])  # as many columns as rows
    columns = power_table(modes.d, b)  # (H, b, M)
    steps = power_table(columns[:, -1] * modes.d, -(-length // b))  # (H, a, M)
    rows = weights[:, :, None] * steps[:, None]  # (H, Q, a, M)
    columns = columns.conj_physical()
    values = _pairs(rows.flatten(1, 2)) @ _pairs(columns).mT  # (H, Q·a, b)
    return _Lists(values.view(rows.shape[0], rows.shape[1], -1)[..., :length], columns, steps)


def _lists_backward(dvalues: Tensor, lists: _Lists, modes: _Modes) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of d, of ``left`` and of ``right`` from those of the lists (H, Q, L)."""
    _, columns, steps = lists
    (H, _, L), b = dvalues.shape, columns.shape[1]
    if missing := -L % b:
        dvalues = torch.nn.functional.pad(dvalues, (0, missing))
    left, right = modes.left, modes.right
    weights = (left[:, :, None] * right[:, None]).flatten(1, 2)
    rows = weights[:, :, None] * steps[:, None]
    slopes = dvalues.reshape(H, -1, b)  # (H, Q·a, b)
    drows = _complex(slopes @ _pairs(columns), rows.shape)
    # the gradient of d^j, not of its conjugate; its product with conj(d^(j-1)) is what is summed
    dcolumns = _complex(slopes.mT @ _pairs(rows.flatten(1, 2)), columns.shape).conj_physical()
    powers = steps.conj_physical()
    dweights = (drows * powers[:, None]).sum(2).view(H, left.shape[1], -1, left.shape[2])
    dsteps = (drows * weights.conj_physical()[:, :, None]).sum(1)  # (H, a, M)
    dd = _of_base(dcolumns, columns)
    if steps.shape[1] > 1:
        dd += (b * _of_base(dsteps, powers)) * columns[:, -1]
    dleft = (dweights * right.conj_physical()[:, None]).sum(2)
    dright = (dweights * left.conj_physical()[:, :, None]).sum(1)
    return dd, dleft, dright


def _of_base(dpowers: Tensor, conjugates: Tensor) -> Tensor:
    """The gradient of x from those of its powers x^0 … (H, n, M), given conj(x)^0 …: ``Σ_j j conj(x)^(j-1) g_j``."""
    count = dpowers.shape[1]
    weights = torch.arange(1, count, dtype=torch.float64)[:, None]
    return (dpowers[:, 1:] * (conjugates[:, :-1] * weights)).sum(1)


def _modes_backward(
    x: SeriesTensors,
    options: SeriesOptions,
    modes: _Modes,
    slopes: tuple[Tensor, Tensor, Tensor],
    *,
    of_dt: Tensor,
) -> SeriesTensors:
    (dd, dleft, dright), (dt, A, r, *_) = slopes, modes
    copies, K = r.shape[0] // A.shape[0], x.C.shape[0]
    back = (2 * r).conj_physical()
    inputs = dright * back[:, None]  # the gradients of B, and of P
    B = _per_head(_complex(x.B), copies)[:, None]
    P = None if x.P is None else _per_head(_complex(x.P), copies)[:, None]
    dr = 2 * dd + 2 * (dright * (B if P is None else torch.cat([B, P], 1)).conj_physical()).sum(1)
    dh = dr * (r * r).conj_physical()
    if options.real_part == "none":
        free = dt * _per_head(A, copies).real <= MAX_GROWTH
        dh = torch.complex(dh.real * free, dh.imag)
    heads = torch.view_as_real(_per_head(A, copies))
    dz = torch.view_as_real(dh)
    of_dt = of_dt + (dz * heads).sum((1, 2))[:, None] / 2
    dA = _per_set(dz * (dt[..., None] / 2), A.shape[0])
    ddt = (of_dt * dt if options.log_dt else of_dt * options.dt_scale)[:, 0]
    dP = None
    if x.P is not None:
        dP = torch.view_as_real(_per_set(inputs[:, 1] + dleft[:, K].conj_physical(), A.shape[0]))
    ddecay = dA[..., 0] * _slope(options.real_part, x.decay.double(), A.real)
    dB = torch.view_as_real(_per_set(inputs[:, 0], A.shape[0]))
    return SeriesTensors(ddt, ddecay, dA[..., 1], dB, torch.view_as_real(dleft[:, :K].transpose(0, 1)), dP)


def _divided(values: Tensor, dt: Tensor) -> tuple[Tensor, _Quotient]:
    """The kernel (H, K, L) from p, q, v and s, in this order (H, (K+1)·2, L); dt is (H, 1, 1)."""
    H, _, L = values.shape
    pairs = values.view(H, -1, 2, L)
    summed = _times_one_plus_z(pairs[:, :, 1])  # (H, K+1, L)
    series = summed * (dt / 2)
    w = torch.linalg.solve_triangular(_system(series[:, -1]), pairs[:, -1, 0, :, None], upper=False)[..., 0]
    spectra = torch.fft.rfft(torch.cat([series[:, :-1], w[:, None]], 1), n=2 * L)
    product = torch.fft.irfft(spectra[:, :-1] * spectra[:, -1:], n=2 * L)[..., :L]
    return dt * (pairs[:, :-1, 0] - product), _Quotient(summed, spectra)


def _divided_backward(dp: Tensor, values: Tensor, saved: _Quotient, dt: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the lists (H, (K+1)·2, L) and of Δ/2 (H, 1) from that of p (H, K, L)."""
    H, K, L = dp.shape
    summed, spectra = saved
    n = 2 * L
    back = spectra.conj_physical()
    arriving = torch.fft.rfft(dp, n=n)
    crossed = torch.cat([arriving * back[:, -1:], (arriving * back[:, :-1]).sum(1, keepdim=True)], 1)
    crossed = torch.fft.irfft(crossed, n=n)[..., :L].neg_()  # of (Δ/2) (1+z) q, and of w
    system = _system(summed[:, -1] * (dt[:, 0] / 2))
    dv = torch.linalg.solve_triangular(system.mT, crossed[:, -1, :, None], upper=True)[..., 0]
    of_s = torch.fft.irfft(torch.fft.rfft(dv, n=n) * back[:, -1], n=n)[..., :L]
    crossed[:, -1] = of_s.neg_()
    of_half = (crossed * summed).sum((1, 2))[:, None]
    dsummed = crossed * (dt / 2)
    dvalues = dp.new_empty(H, K + 1, 2, L)
    dvalues[:, :-1, 0], dvalues[:, -1, 0], dvalues[:, :, 1] = dp, dv, dsummed
    dvalues[:, :, 1, :-1] += dsummed[..., 1:]
    return dvalues.flatten(1, 2), of_half


def _system(series: Tensor) -> Tensor:
    """The triangular Toeplitz matrix (H, L, L) of 1 + this series (H, L)."""
    first = series.clone()
    first[:, 0] += 1
    return toeplitz(first)


def _times_one_plus_z(series: Tensor) -> Tensor:
    product = series.clone()
    product[..., 1:] += series[..., :-1]
    return product


def real_part(kind: str, decay: Tensor) -> Tensor:
    """Re A; see :mod:`statespan.nn.real_part`."""
    if kind == "exp":
        return -decay.exp()
    if kind == "softplus":
        return -torch.logaddexp(decay, torch.zeros_like(decay))
    return -torch.relu(decay) if kind == "relu" else decay


def _slope(kind: str, decay: Tensor, real: Tensor) -> Tensor | float:
    """The derivative of Re A."""
    if kind == "exp":
        return real
    if kind == "softplus":
        return -torch.sigmoid(decay)
    return -(decay > 0).double() if kind == "relu" else 1.0


def _per_head(x: Tensor, copies: int) -> Tensor:
    """Expand one row per set of modes to one per head."""
    return x if copies == 1 else x.repeat(copies, *[1] * (x.ndim - 1))


def _per_set(x: Tensor, sets: int) -> Tensor:
    """The adjoint of :func:`_per_head`."""
    return x if x.shape[0] == sets else x.unflatten(0, (-1, sets)).sum(0)


def _complex(pairs: Tensor, shape: torch.Size | None = None) -> Tensor:
    """Complex numbers from a last axis of pairs, or from a last axis of real and imaginary parts side by side."""
    if shape is not None:
        return torch.view_as_complex(pairs.reshape(*shape, 2))
    return torch.view_as_complex(pairs.double().contiguous())


def _pairs(x: Tensor) -> Tensor:
    """Complex (..., M) as real (..., 2M), without a copy."""
    return torch.view_as_real(x).flatten(-2)
