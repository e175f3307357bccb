"""Figures 1 to 5 of the S4D paper: plots and their numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from statespan import _plotting as _look
from statespan.papers.bench.scaling import exponent
from statespan.papers.tables import theory
from statespan.papers.tables.definitions import sections
from statespan.ssm import Diagonal, inits

SIZES = (16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class ReproducedFigure:
    """A reproduced figure.

    Example:
        >>> drawn = ReproducedFigure(figure=None, paragraphs=("The kernels agree.",), numbers={"error": 1e-7})
        >>> drawn.numbers["error"]
        1e-07
    """

    figure: Any
    paragraphs: tuple[str, ...]  # what it shows and how that compares with the paper
    numbers: dict[str, Any] = field(default_factory=dict)  # the numbers behind it


def _described(name: str, figure: Any, numbers: dict[str, Any], **fields: Any) -> ReproducedFigure:
    """A figure with its paragraphs of figures.yaml, in which these fields are filled in."""
    paragraphs = tuple(paragraph.format(**fields) for paragraph in sections("figures.yaml")[name])
    return ReproducedFigure(figure, paragraphs, numbers)


def figure1() -> ReproducedFigure:
    """S4D as a set of one-dimensional SSMs, and its kernel as a sum of damped waves (S4D-Lin)."""
    N, dt, length = 64, 0.005, 800
    A, B = inits.diagonal("lin", N)
    C = torch.randn(N // 2, dtype=torch.complex128, generator=torch.Generator().manual_seed(3))
    t = dt * torch.arange(length, dtype=torch.float64)
    figure, (left, right) = _look.panels(2, width=9.5, height=2.8)
    for color, n in zip(_look.colors(), (0, 1, 2, 4)):
        left.plot(t, (torch.exp(A[n] * t) * B[n]).real, color=color, label=f"n = {n}")
    for sign in (1, -1):
        left.plot(
            t, sign * torch.exp(-t / 2), "--", color=_look.GREY, linewidth=0.9, label="exp(-t/2)" if sign == 1 else None
        )
    _look.tidy(left, "time t", "Re exp(tA) B", "one-dimensional SSMs: the basis of S4D-Lin", legend=True)

    # the whole kernel in two lines, zero-order hold
    weights = C * B * (torch.exp(A * dt) - 1) / A.where(A != 0, torch.ones_like(A))
    kernel = 2 * (weights @ torch.exp(A[:, None] * t)).real

    ours = Diagonal(
        A[None], B[None], C[None, None], torch.tensor([dt], dtype=torch.float64), discretization="zoh"
    ).kernel(length)[0, 0]
    error = float((kernel - ours).abs().max() / ours.abs().max())
    for color, count in zip((_look.COLORS[5], _look.COLORS[4]), (2, 6)):
        parts = 2 * (weights[:count] @ torch.exp(A[:count, None] * t)).real
        right.plot(t, parts, color=color, linewidth=0.9, label=f"first {count} modes")
    right.plot(t, kernel, color=_look.COLORS[0], linewidth=1.1, label=f"all {N // 2} modes")
    _look.tidy(right, "time t", "kernel", "the kernel: their combination by C", legend=True)
    _look.title(figure, "S4D-Lin as a convolution")
    return _described("s4d-figure1", figure, {"error": error}, error=error)


def figure2() -> ReproducedFigure:
    """Theorem 3: without its low-rank term HiPPO-LegS keeps its basis as N grows; ZOH against bilinear."""
    F, dt, length = 4, 0.01, 400
    t = dt * (torch.arange(length, dtype=torch.float64) + 0.5)
    shown = (
        ("(a) S4-LegS, closed form", theory.legs_functions(t, F)),
        ("(b) S4D-LegS, N = 64, ZOH", theory.normal_samples(64, "zoh", dt=dt, length=length, F=F)),
        ("(c) S4D-LegS, N = 1024, ZOH", theory.normal_samples(1024, "zoh", dt=dt, length=length, F=F)),
        ("(d) S4D-LegS, N = 1024, bilinear", theory.normal_samples(1024, "bilinear", dt=dt, length=length, F=F)),
    )
    figure, panels = _look.panels(6, 3, height=2.5)
    for panel, (name, values) in zip(panels, shown):
        for color, curve, n in zip(_look.colors(), values, range(F)):
            panel.plot(t, curve, color=color, linewidth=0.9, label=f"n = {n}")
        panel.set_ylim(-2.2, 3.2)
        _look.tidy(panel, "time t", "basis function", name, legend=panel is panels[0])
    errors = {}
    for panel, step in zip(panels[4:], (0.01, 0.001)):
        for color, rule in zip(_look.COLORS, ("zoh", "bilinear")):
            by_size = theory.theorem3_errors(SIZES, rule, dt=step, length=round(4 / step))
            errors[f"{rule}, {step:g}"] = by_size.tolist()
            panel.loglog(SIZES, by_size, "o-", color=color, markersize=3, label="ZOH" if rule == "zoh" else rule)
        panel.loglog(
            SIZES, [errors[f"zoh, {step:g}"][-1] * SIZES[-1] / N for N in SIZES], ":", color=_look.GREY, label="1/N"
        )
        panel.set_ylim(bottom=2e-6 if step == 0.01 else 0.03)
        _look.tidy(panel, "state size N", "relative error", f"difference from S4-LegS, Δ = {step:g}", legend=True)
    _look.title(figure, "Theorem 3: the basis of S4-LegS without its low-rank term")
    power = exponent(SIZES[2:], errors["zoh, 0.01"][2:])
    still = {N: theory.continuous_error(N) for N in (64, 512)}
    numbers = {
        "sizes": list(SIZES), "errors": errors, "zoh_power": power,
        "continuous": {str(N): value for N, value in still.items()},
    }  # fmt: skip
    return _described("s4d-figure2", figure, numbers, power=power, bilinear=errors["bilinear, 0.01"], still=still)


def figure3() -> ReproducedFigure:
    """The imaginary parts of the S4D initializations, and the constant of Conjecture 5."""
    N = 64
    laws = theory.laws(N)
    names = {"legs": "S4D-LegS", "inv": "S4D-Inv", "inv2": "S4D-Inv2", "quad": "S4D-Quad", "lin": "S4D-Lin"}
    order = (_look.COLORS[0], _look.COLORS[1], _look.COLORS[3], _look.COLORS[4], _look.COLORS[2])
    figure, (left, right) = _look.panels(2, width=9.5, height=3.0)
    for color, marker, (name, values) in zip(order, "os^vD", laws.items()):
        style: dict[str, Any] = {"marker": marker, "color": color, "markersize": 3, "linewidth": 0.9}
        shown = values[values > 1e-9]  # a logarithmic axis has no 0
        last = "" if len(shown) == len(values) else " (the last is 0)"
        left.semilogy(range(len(shown)), shown, label=names[name] + last, **style)
    _look.tidy(left, "n, largest first", "Im A", f"all have Re A = -1/2 (N = {N})", legend=True)
    constants = {size: theory.largest_eigenvalue(size) for size in SIZES}
    right.semilogx(list(constants), list(constants.values()), "o-", color=_look.COLORS[0], label="Im A - N²/π, largest")
    right.axhline(-math.pi / 6, linestyle=":", color=_look.GREY, label="-π/6 = -0.5236")
    _look.tidy(right, "state size N", "difference", "the constant of Conjecture 5", legend=True)
    _look.title(figure, "Eigenvalues of S4D")
    near = ((laws["inv"] - laws["legs"]).abs() / laws["legs"])[:4].max()
    power = exponent(range(1, 16, 2), laws["legs"][:8].tolist())
    numbers = {"constants": {str(N): constant for N, constant in constants.items()}, "power": power}
    return _described("s4d-figure3", figure, numbers, power=power, near=100 * near, constant=-constants[1024])


def figure4() -> ReproducedFigure:
    """Random rank-one perturbations of HiPPO-LegS change its basis beyond recognition."""
    N, F = 64, 4
    t = torch.linspace(0, 4, 401, dtype=torch.float64)
    wanted = theory.legs_functions(t, F)
    figure, panels = _look.panels(4, 4, width=10.0, height=2.4)
    errors = {}
    for panel, sigma in zip(panels, (0.0, 0.1, 0.3, 0.4)):
        values = theory.perturbed(N, sigma, t, F)
        errors[sigma] = float((values - wanted).norm() / wanted.norm())
        for color, curve, n in zip(_look.colors(), values, range(F)):
            panel.plot(t, curve, color=color, linewidth=0.9, label=f"n = {n}")
        _look.tidy(panel, "time t", "basis function" if sigma == 0 else "", f"σ = {sigma:g}", legend=sigma == 0)
    _look.title(figure, "HiPPO-LegS plus a random P Pᵀ with entries of deviation σ")
    listed = ", ".join(f"{value:.2g} at σ = {sigma:g}" for sigma, value in errors.items() if sigma)
    numbers = {"errors": {str(sigma): value for sigma, value in errors.items()}}
    return _described("s4d-figure4", figure, numbers, size=math.sqrt(N - 0.5), N=N, errors=listed)


def figure5() -> ReproducedFigure:
    """S4-FouT with and without its low-rank term."""
    N, F = 256, 4
    t = torch.linspace(0, 4, 801, dtype=torch.float64)
    figure, panels = _look.panels(2, 2, height=3.0)
    beyond = {}
    for panel, kept in zip(panels, (True, False)):
        values = theory.fout_functions(N, t, F, low_rank=kept)
        beyond[kept] = float(values[:, t > 2.1].norm() / values[:, t <= 2].norm())
        for color, curve, k in zip(_look.colors(), values, range(F)):
            panel.plot(t, curve, color=color, linewidth=0.9, label=f"k = {k}")
        name = "(a) S4-FouT: waves on a window" if kept else "(b) without the low-rank term: for ever"
        _look.tidy(panel, "time t", "basis function", name, legend=kept)
    _look.title(figure, f"S4-FouT, N = {N}")
    numbers = {"with": beyond[True], "without": beyond[False]}
    percent = {name: 100 * number for name, number in numbers.items()}
    return _described("s4d-figure5", figure, {"beyond": numbers}, percent=percent)


FIGURES: dict[str, Callable[[], ReproducedFigure]] = {
    f"s4d-{figure.__name__}": figure for figure in (figure1, figure2, figure3, figure4, figure5)
}
