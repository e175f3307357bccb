"""Plots eigenvalues, frequency responses and step sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from statespan import _plotting as _look
from statespan._check import check_int
from statespan.nn.mimo import MIMOParameters
from statespan.plot.source import Part, evenly_spaced, kernel_of, spread_heads, step_sizes


def eigenvalues(parts: Sequence[Part], *, head: int = 0) -> Any:
    """The eigenvalues of A: in the complex plane, and their imaginary parts in order.

    For S4 those of the diagonal part Λ of ``Λ − P P*``, whose own eigenvalues are too ill-conditioned to compute.

    Args:
        parts: The layers.
        head: Which head's.
    """
    shown = evenly_spaced(parts, 6)
    figure = _look.figure(8.5, 3.4)
    plane, law = figure.subplots(1, 2)
    for color, part in zip(_look.colors(), shown):
        values = eigenvalues_of(part, head)
        plane.plot(values.real, values.imag, "o", color=color, markersize=3, alpha=0.8, label=part.name)
        imag = values.imag[values.imag > 0].sort(descending=True).values
        law.plot(range(1, len(imag) + 1), imag, "o-", color=color, markersize=2.5, linewidth=0.8, label=part.name)
    _look.tidy(plane, "Re A", "Im A", "eigenvalues, one of each conjugate pair", legend=True)
    if any((eigenvalues_of(part, head).imag > 0).any() for part in shown):
        law.set_yscale("log")
    _look.tidy(law, "n, largest first", "Im A", "imaginary parts in order", legend=True)
    _look.title(figure, "Eigenvalues")
    return figure


def eigenvalues_of(part: Part, head: int = 0) -> Tensor:
    """The eigenvalues of A in one head, one of each conjugate pair (M,), complex128; all modes of S5 and LRU."""
    A = part.layer.structure().A.detach()
    A = A[:, 0] if isinstance(part.layer.ssm, MIMOParameters) else A[head]  # a mode is a head there
    if A.is_complex():
        return A.to(torch.complex128).cpu()
    values = torch.linalg.eigvals(A.double().cpu())
    return values[values.imag >= 0]


def response(parts: Sequence[Part], *, length: int = 4096, heads: int = 4) -> Any:
    """The frequency response: the magnitude of the kernels' Fourier transform, in decibels relative to its peak.

    Args:
        parts: The layers.
        length: Samples of the kernel that count.
        heads: Lines in each panel.
    """
    check_int("length", length, minimum=2)
    shown = evenly_spaced(parts, 6)
    figure, axes = _look.panels(len(shown), height=2.6 if len(shown) > 1 else 3.2)
    for panel, part in zip(axes, shown):
        chosen = spread_heads(part, check_int("heads", heads, minimum=1))
        sizes, values = step_sizes(part), kernel_of(part, length)
        frequency, spectrum = response_of(values[0, chosen])
        for color, curve, head in zip(_look.shades(len(chosen)), spectrum, chosen):
            panel.plot(frequency[1:], curve[1:], color=color, linewidth=0.9, label=f"Δ = {sizes[head]:.2g}")
        panel.set_xscale("log")
        panel.set_ylim(-62, 3)
        _look.tidy(panel, "cycles per sample", "dB relative to the peak", part.name, legend=True)
    _look.title(figure, "Frequency responses")
    return figure


def response_of(kernels: Tensor) -> tuple[Tensor, Tensor]:
    """The frequency response of kernels (H, length): frequencies (F,) in cycles per sample, and decibels (H, F).

    Decibels are relative to the peak of each kernel's response, and at least -120.
    """
    length = kernels.shape[-1]
    spectrum = torch.fft.rfft(kernels, 2 * length).abs()
    spectrum = 20 * torch.log10((spectrum / spectrum.amax(1, keepdim=True).clamp(min=1e-30)).clamp(min=1e-6))
    return torch.arange(spectrum.shape[1]) / (2 * length), spectrum


def steps(parts: Sequence[Part]) -> Any:
    """The step sizes Δ of all heads in order, layer by layer, and the range they were drawn from.

    Args:
        parts: The layers.
    """
    shown = evenly_spaced(parts, 8)
    figure = _look.figure(6.5, 3.6)
    axes = figure.subplots()
    for color, part in zip(_look.shades(len(shown)), shown):
        sizes = step_sizes(part).sort().values
        axes.plot([100 * (n + 0.5) / len(sizes) for n in range(len(sizes))], sizes, color=color, label=part.name)
    options = shown[0].layer.ssm.options
    axes.axhspan(options.dt_min, options.dt_max, color=_look.GREY, alpha=0.12, label="drawn from")
    axes.set_yscale("log")
    _look.tidy(axes, "heads in order, %", "step size Δ", legend=True)
    _look.title(figure, "Step sizes")
    return figure
