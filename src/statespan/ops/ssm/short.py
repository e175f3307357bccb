"""Short sequences on a CPU: the kernel as a power series and one convolution, with the gradient of both written out.

Up to 64 samples the time is that of calling operations, not of arithmetic, so this path has the fewest. It runs
the SSMs that :mod:`statespan.ssm.series` knows, in eager code; all others go on to the chunks or the FFT.

Shapes: B batch, L length, H heads, S sets of modes, M modes, K causal channels, n points of the FFT.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from statespan.ops import dispatch
from statespan.ops.register import no_autocast
from statespan.ops.ssm.fftconv import fast_length, fftconv
from statespan.ops.ssm.source import Modal
from statespan.ssm import DPLR, Diagonal, series
from statespan.ssm.powers import CUTOFF
from statespan.ssm.series import SeriesOptions, SeriesTensors

if TYPE_CHECKING:
    from statespan.ops.ssm.apply import Request


class ShortOptions(NamedTuple):
    """How to apply the parameters.

    Example:
        >>> series = SeriesOptions(length=64, real_part="exp", log_dt=True, dt_scale=1.0)
        >>> options = ShortOptions(series, ahead=0, dtype=torch.float32)
        >>> options.series.length
        64
    """

    series: SeriesOptions
    ahead: int
    """How many of the channels, counted from the last, are anti-causal."""
    dtype: torch.dtype
    """What to convolve in."""


def apply_short(request: Request) -> Tensor | None:
    """The outputs (B, L, K, H) in the working dtype, without the activation; None if this path cannot run."""
    u, source = request.u, request.source
    modal = source.modal() if dispatch.runs_as_series(request.path, source, u) else None
    if modal is None or modal.rule != "bilinear":
        return None
    dt, decay, freq, B, C, _, P = modal.parameters
    if P is not None and P.shape[0] > 1:  # the series has one low-rank term
        return None
    x, D = SeriesTensors(dt, decay, freq, B, C, None if P is None else P[0]), request.D
    if not all(t is None or type(t) in (Tensor, nn.Parameter) for t in (*x, D)):
        return None
    options = _options(request, modal)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (u, D, *x)):
        y: Tensor = _Short.apply(options, u, D, *x)
        return y

    def make() -> Tensor:
        return _spectrum(_with_skip(series.kernel(x, options.series)[0], D), options)

    spectrum = make() if source.memo is None else source.memo.get(("short", *options), (*x, D), make)
    return _convolve(u, spectrum, options)


def _options(request: Request, modal: Modal) -> ShortOptions:
    series_options = SeriesOptions(request.u.shape[1], modal.real_part, modal.log_dt, modal.dt_scale)
    return ShortOptions(series_options, request.ahead(modal.parameters.C.shape[0]), request.working)


class _Short(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, options: ShortOptions, u: Tensor, D: Tensor | None, *parameters: Tensor | None) -> Tensor:
        kernel, saved = series.kernel(SeriesTensors(*parameters), options.series)  # type: ignore[arg-type]
        kernel = _with_skip(kernel, D)
        spectrum = _spectrum(kernel, options)
        ctx.options = options
        ctx.save_for_backward(u, D, *parameters, kernel, spectrum, *saved)
        return _convolve(u, spectrum, options)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        u, D, *rest = ctx.saved_tensors
        parameters, (kernel, spectrum, *saved) = SeriesTensors(*rest[:6]), rest[6:]
        options, wanted = ctx.options, ctx.needs_input_grad
        if torch.is_grad_enabled():  # a second derivative
            return _twin_gradients(dy, (u, D, *parameters), options, wanted[1:])
        L, n = options.series.length, _points(options.series.length)
        with no_autocast(u):
            arriving = torch.fft.rfft(dy.to(options.dtype).movedim(1, -1), n=n)  # (B, K, H, n/2 + 1)
            du = dD = None
            if wanted[1]:
                du = torch.fft.irfft(_sum(arriving * spectrum.conj_physical(), 1), n=n)[..., :L].mT.to(u.dtype)
            if not any(wanted[2:]):
                return None, du, *[None] * 7
            back = torch.fft.rfft(u.to(options.dtype).mT, n=n).conj_physical_()
            dkernel = torch.fft.irfft(_sum(arriving * back[:, None], 0), n=n)
            dkernel = _unwrapped(dkernel, options).double().masked_fill_(kernel.abs() > CUTOFF, 0.0)
            if D is not None:
                dD = dkernel[: D.shape[0], :, 0].to(D.dtype)
            slopes = series.gradients(parameters, options.series, tuple(saved), dkernel)
        return None, du, dD, *(None if p is None else g.to(p.dtype) for p, g in zip(parameters, slopes))  # type: ignore[union-attr]


def _with_skip(kernel: Tensor, D: Tensor | None) -> Tensor:
    """The kernel (channels, H, L) with the skip (K, H) of the causal channels in its first value."""
    if D is None:
        return kernel
    kernel = kernel.clone()  # the gradient of Δ needs the one without
    kernel[: D.shape[0], :, 0] += D.to(kernel.dtype)
    return kernel


def _spectrum(kernel: Tensor, options: ShortOptions) -> Tensor:
    """The spectrum (K, H, n/2 + 1) of the kernels, each with its anti-causal one."""
    n, L, ahead = _points(options.series.length), options.series.length, options.ahead
    kernel = kernel.clamp(-CUTOFF, CUTOFF).to(options.dtype)
    if not ahead:
        return torch.fft.rfft(kernel, n=n)
    wrapped = kernel.new_zeros(kernel.shape[0] - ahead, kernel.shape[1], n)
    wrapped[..., :L] = kernel[:-ahead]
    wrapped[..., n - L + 1 :] = kernel[-ahead:, :, : L - 1].flip(-1)  # lag -(1+j), stored at n-1-j
    return torch.fft.rfft(wrapped, n=n)


def _unwrapped(dkernel: Tensor, options: ShortOptions) -> Tensor:
    """The gradient of the kernels (channels, H, L) from that of n values; the last one ahead reaches no output."""
    n, L = dkernel.shape[-1], options.series.length
    behind = dkernel[..., :L]
    if not options.ahead:
        return behind
    ahead = torch.nn.functional.pad(dkernel[..., n - L + 1 :].flip(-1), (0, 1))
    return torch.cat([behind, ahead])


def _convolve(u: Tensor, spectrum: Tensor, options: ShortOptions) -> Tensor:
    n = _points(options.series.length)
    product = torch.fft.rfft(u.to(options.dtype).mT, n=n)[:, None] * spectrum
    return torch.fft.irfft(product, n=n)[..., : u.shape[1]].movedim(-1, 1)


@cache
def _points(length: int) -> int:
    return fast_length(2 * length - 1)


def _sum(x: Tensor, dim: int) -> Tensor:
    """The sum over an axis, of which there is usually one."""
    return x.select(dim, 0) if x.shape[dim] == 1 else x.sum(dim)


def _twin_gradients(
    dy: Tensor, inputs: tuple[Tensor | None, ...], options: ShortOptions, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients by the twin, which autograd can differentiate again."""
    chosen = [x for x, want in zip(inputs, wanted) if want and x is not None]
    found = torch.autograd.grad(twin(inputs, options), chosen, dy, create_graph=True, allow_unused=True)
    given = iter(found)
    return None, *(next(given) if want and x is not None else None for x, want in zip(inputs, wanted))


def twin(inputs: tuple[Tensor | None, ...], options: ShortOptions) -> Tensor:
    """The same outputs from u, D and the parameters, by a structure's own kernel, in operations of torch alone."""
    u, D, dt, decay, freq, B, C, P = inputs
    assert u is not None
    assert dt is not None
    assert decay is not None
    assert freq is not None
    length, kind, log_dt, dt_scale = options.series
    copies = dt.shape[0] // decay.shape[0]
    A = torch.complex(series.real_part(kind, decay.double()), freq.double()).repeat(copies, 1)
    wide = [torch.complex(*x.double().unbind(-1)) for x in (B, C, P) if x is not None]
    step = dt.double().exp() if log_dt else dt.double()
    heads = [wide[0].repeat(copies, 1), wide[1]]
    ssm: Diagonal | DPLR
    if P is None:
        ssm = Diagonal(A, heads[0], heads[1], step)
    else:
        ssm = DPLR(A, wide[2].repeat(copies, 1)[None], heads[0], heads[1], dt=step, algorithm="krylov")
    kernels = ssm.with_dt_scale(dt_scale).kernel(length).to(options.dtype)
    x = u.to(options.dtype)
    y = fftconv(x, kernels[: -options.ahead], kernels[-options.ahead :]) if options.ahead else fftconv(x, kernels)
    return y if D is None else y + D.to(x.dtype) * x[:, :, None]
