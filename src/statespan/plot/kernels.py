"""Plots kernels as lines, as images and over time scales, and the basis functions they combine.

Shapes: K kernels per head, H heads, N state size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from statespan import _plotting as _look
from statespan._check import check_int
from statespan.plot.source import Part, evenly_spaced, kernel_of, spread_heads, step_sizes
from statespan.ssm import DPLR, Diagonal
from statespan.ssm.structure import Structure


def kernels(parts: Sequence[Part], *, length: int = 1000, heads: int = 4) -> Any:
    """The convolution kernels of some heads of each layer, from the smallest Δ to the largest.

    Args:
        parts: The layers.
        length: Samples.
        heads: Lines in each panel.

    Example:
        >>> from statespan.plot import fresh
        >>> len(kernels(fresh("s4d", {"init": "lin"})).axes)
        1
    """
    check_int("length", length, minimum=2)
    shown = evenly_spaced(parts, 6)
    figure, axes = _look.panels(len(shown), height=2.6 if len(shown) > 1 else 3.2)
    for panel, part in zip(axes, shown):
        values, sizes = kernel_of(part, length), step_sizes(part)
        chosen = spread_heads(part, check_int("heads", heads, minimum=1))
        for color, head in zip(_look.shades(len(chosen)), chosen):
            curve = values[0, head] / values[0, head].abs().max().clamp(min=1e-30)
            panel.plot(curve, color=color, linewidth=0.9, label=f"Δ = {sizes[head]:.2g}")
        _look.tidy(panel, "sample", "kernel / its peak", part.name, legend=True)
    _look.title(figure, "Convolution kernels")
    return figure


def basis(parts: Sequence[Part], *, functions: int = 5, span: float = 4.0, head: int = 0) -> Any:
    """The basis functions of a kernel: the real parts of ``exp(tA) B``, state by state.

    Args:
        parts: The layers.
        functions: How many.
        span: The times are 0 … span, in units of the system (t = Δ · sample).
        head: Which head's.
    """
    shown = evenly_spaced(parts, 4)
    figure, axes = _look.panels(len(shown), 2, height=3.0)
    for panel, part in zip(axes, shown):
        t, values, envelope = basis_functions(part.layer.structure(), span, functions, head)
        for color, curve, n in zip(_look.colors(), values, range(functions)):
            panel.plot(t, curve, color=color, linewidth=1.0, label=f"n = {n}")
        if envelope is not None:
            for sign, label in ((1, "envelope"), (-1, None)):
                panel.plot(t, sign * envelope, color=_look.GREY, linestyle="--", linewidth=0.8, label=label)
        _look.tidy(panel, "time t", "Re (exp(tA) B)", part.name, legend=True)
    _look.title(figure, "Basis functions")
    return figure


@torch.no_grad()
def basis_functions(
    structure: Structure, span: float, count: int, head: int = 0
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Times (T,), the real parts of ``count`` rows of ``exp(tA) B`` (count, T), and a bound on them (T,) if known."""
    t = torch.linspace(0.0, span, 1200, dtype=torch.float64)
    B = structure.B[head]
    if isinstance(structure, Diagonal):
        # the slowest modes come first in some initializations and last in others
        order = torch.argsort(structure.A[head].imag.abs())[:count]
        A = structure.A[head][order].to(torch.complex128)
        waves = B[order, None].to(torch.complex128) * torch.exp(A[:, None] * t)
        return t, waves.real, waves.abs().amax(0)
    if isinstance(structure, DPLR):
        vectors = (structure.P, structure.P if structure.Q is None else structure.Q)
        Lambda = structure.A[head].to(torch.complex128)
        P, Q = (torch.cat([x[:, head], x[:, head].conj()], -1).to(torch.complex128) for x in vectors)
        A = torch.diag(torch.cat([Lambda, Lambda.conj()])) - P.mT @ Q.conj()
        B = torch.cat([B, B.conj()]).to(torch.complex128)
        order = torch.argsort(Lambda.imag)[:count]
    else:
        A, order = structure.A[head].double(), torch.arange(count)
        B = B.double()
    step = torch.linalg.matrix_exp(A * (t[1] - t[0]))
    state, rows = B, []
    for _ in t:
        rows.append(state[order].real)
        state = step @ state
    return t, torch.stack(rows, 1), None


def impulse(parts: Sequence[Part], *, length: int = 4096) -> Any:
    """The impulse response of every head over the logarithm of time, heads ordered by Δ: a layer's time scales.

    Args:
        parts: The layers.
        length: Samples.
    """
    shown = evenly_spaced(parts, 6)
    figure, axes = _look.panels(len(shown), height=2.9)
    places = torch.unique(torch.logspace(0, math.log10(check_int("length", length, minimum=2)), 240).long()) - 1
    for panel, part in zip(axes, shown):
        values = kernel_of(part, length)[0][torch.argsort(step_sizes(part))]  # (H, length)
        values = values / values.abs().amax(1, keepdim=True).clamp(min=1e-30)
        drawn = panel.pcolormesh(
            (places + 1).numpy(), range(1, len(values) + 1), values[:, places].numpy(), cmap=_look.SIGNED, vmin=-1,
            vmax=1, shading="nearest", rasterized=True,
        )  # fmt: skip
        panel.set_xscale("log")
        _look.tidy(panel, "sample (log)", "head, smallest Δ first", part.name, grid=False)
        bar = figure.colorbar(drawn, ax=panel)
        bar.set_label("response / its peak", fontsize=8)
        bar.ax.tick_params(labelsize=7)
    _look.title(figure, "Impulse responses over time scales")
    return figure


def filters(parts: Sequence[Part], *, side: int, heads: int = 6, picture: Tensor | None = None) -> Any:
    """Kernels of the first and the last layer as images: sample l is the pixel in row l // side, column l mod side.

    Args:
        parts: The layers.
        side: Pixels in a row of the images that the model reads row by row.
        heads: Images of each layer.
        picture: One of those images (side, side), to be shown beside them.
    """
    check_int("side", side, minimum=2)
    rows = [parts[0], parts[-1]] if len(parts) > 1 else [parts[0]]
    extra = int(picture is not None)
    figure = _look.figure(1.25 * (heads + extra) + 0.6, 1.5 * len(rows) + 0.6)
    grid = figure.subplots(len(rows), heads + extra, squeeze=False)
    for line, part in zip(grid, rows):
        values = kernel_of(part, side * side)
        for panel, head in zip(line[extra:], spread_heads(part, heads)):
            _look.image(panel, values[0, head].reshape(side, side).numpy())
            panel.set_title(f"Δ = {step_sizes(part)[head]:.2g}", fontsize=7)
        for panel in line[extra + min(heads, values.shape[1]) :]:
            panel.set_visible(False)
        line[extra].set_ylabel(part.name, fontsize=8)
    if picture is not None:
        for number, panel in enumerate(grid[:, 0]):
            panel.set_visible(number == 0)
        grid[0, 0].imshow(picture.numpy(), cmap="gray", interpolation="nearest")
        grid[0, 0].set_title("an input", fontsize=7)
        grid[0, 0].set_xticks([])
        grid[0, 0].set_yticks([])
    _look.title(figure, "Kernels as images", f"{side} x {side}; purple and orange are the two signs, white is 0")
    return figure
