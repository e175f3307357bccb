"""Draw the pictures of docs/tutorial.md, "S4 in ten pictures".

python examples/tutorial.py --out docs/tutorial

This takes seconds on a CPU.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from statespan import _plotting as look
from statespan.papers.tables import theory
from statespan.plot import fresh, impulse, save
from statespan.ssm import Dense, Diagonal, hippo, inits

DOUBLE = torch.float64


def signal(length: int) -> Tensor:
    """A smooth synthetic input (length,)."""
    t = torch.linspace(0, 1, length, dtype=DOUBLE)
    return torch.sin(2 * math.pi * 3 * t) * torch.exp(-4 * (t - 0.45) ** 2 * 4) + 0.4 * torch.sin(2 * math.pi * 11 * t)


def oscillator(dt: float, rule: str = "zoh") -> Dense:
    """A damped oscillator with two states, position and velocity."""
    A = torch.tensor([[[0.0, 1.0], [-9.0, -0.6]]], dtype=DOUBLE)
    B, C = torch.tensor([[0.0, 9.0]], dtype=DOUBLE), torch.tensor([[[1.0, 0.0]]], dtype=DOUBLE)
    return Dense(A, B, C, torch.tensor([dt], dtype=DOUBLE), discretization=rule)


def ode() -> Any:
    """1: an input, the state it drives, and the output."""
    dt, length = 0.02, 600
    u = (torch.arange(length) < 150).to(DOUBLE)
    states = oscillator(dt).states(u[None, :, None])[0, :, 0]
    figure, axes = look.panels(2, 2, height=2.6)
    t = dt * torch.arange(length)
    axes[0].plot(t, u, color=look.GREY, label="input u")
    axes[0].plot(t, states[:, 0], color=look.COLORS[0], label="output y = position")
    axes[0].plot(t, states[:, 1] / 3, color=look.COLORS[1], linewidth=0.9, label="velocity / 3")
    look.tidy(axes[0], "time t", "", "x' = A x + B u, y = C x", legend=True)
    axes[1].plot(states[:, 0], states[:, 1], color=look.COLORS[2])
    look.tidy(axes[1], "position", "velocity", "the state's path")
    return figure


def memory() -> Any:
    """2: the past of a signal, reconstructed from the state of HiPPO-LegS."""
    dt, length = 0.002, 2000
    u = signal(length)
    figure, axes = look.panels(1, 1, width=8.5, height=3.0)
    ago = dt * torch.arange(length)  # time before the present
    axes[0].plot(ago, u.flip(0), color="black", linewidth=1.2, label="the past itself")
    for color, N in zip(look.COLORS, (8, 32, 64)):
        A, B = hippo.legs(N)
        step = torch.tensor([dt], dtype=DOUBLE)
        state = Dense(A[None], B[None], torch.zeros(1, 1, N, dtype=DOUBLE), step).scan(u[None, :, None])[1][0, 0]
        axes[0].plot(
            ago, state @ (theory.legs_functions(ago, N) * torch.exp(ago)), color=color, label=f"from {N} numbers"
        )
    axes[0].set(ylim=(-1.8, 1.8), xlim=(4, 0))
    look.tidy(axes[0], "time before the present", "signal", "HiPPO-LegS: what the state remembers", legend=True)
    return figure


def steps() -> Any:
    """3: the same system discretized by two rules."""
    figure, axes = look.panels(2, 2, height=2.6)
    fine = oscillator(0.005).kernel(1200)[0, 0] / 0.005
    for one, rule in zip(axes, ("zoh", "bilinear")):
        one.plot(0.005 * torch.arange(1200), fine, color=look.GREY, label="continuous")
        for color, dt in zip(look.COLORS, (0.1, 0.3)):
            kernel = oscillator(dt, rule).kernel(round(6 / dt))[0, 0] / dt
            one.plot(dt * (torch.arange(len(kernel)) + 0.5), kernel, "o", color=color, markersize=3, label=f"Δ = {dt}")
        look.tidy(one, "time t", "kernel / Δ", "zero-order hold" if rule == "zoh" else "bilinear", legend=True)
    return figure


def convolution() -> Any:
    """4: the recurrence is a convolution."""
    length, dt = 300, 0.04
    system, u = oscillator(dt), signal(300)
    kernel = system.kernel(length)[0, 0]
    stepped = system.scan(u[None, :, None])[0][0, :, 0, 0]
    summed = torch.fft.irfft(torch.fft.rfft(kernel, 2 * length) * torch.fft.rfft(u, 2 * length), 2 * length)[:length]
    figure, axes = look.panels(2, 2, height=2.6)
    axes[0].plot(kernel, color=look.COLORS[0])
    look.tidy(axes[0], "sample l", "C Āˡ B̄", "the kernel")
    axes[1].plot(u, color=look.GREY, linewidth=0.9, label="input")
    axes[1].plot(stepped, color=look.COLORS[1], linewidth=2.4, alpha=0.6, label="step by step")
    axes[1].plot(summed, "--", color="black", linewidth=0.9, label="by FFT")
    look.tidy(axes[1], "sample", "", "two ways, one output", legend=True)
    return figure


def waves() -> Any:
    """5: a diagonal system is a sum of damped waves."""
    A, B = inits.diagonal("lin", 16)
    C = torch.randn(8, dtype=torch.complex128, generator=torch.Generator().manual_seed(1))
    dt, length = 0.01, 400
    t = dt * torch.arange(length, dtype=DOUBLE)
    figure, axes = look.panels(2, 2, height=2.8)
    for color, n in zip(look.shades(8), range(8)):
        axes[0].plot(t, 6 * n + 2 * (C[n] * B[n] * torch.exp(A[n] * t)).real, color=color, linewidth=0.9)
    axes[0].set_yticks([6 * n for n in range(8)], [str(n) for n in range(8)])
    look.tidy(axes[0], "time t", "mode n", "2 Re C e^(tA) B, mode by mode")
    system = Diagonal(A[None], B[None], C[None, None], torch.tensor([dt], dtype=DOUBLE))
    axes[1].plot(t, system.kernel(length)[0, 0] / dt, color=look.COLORS[0])
    look.tidy(axes[1], "time t", "kernel / Δ", "their sum")
    return figure


def matrices() -> Any:
    """6: HiPPO-LegS is a normal matrix minus a rank-one matrix."""
    N = 24
    A, normal, P = hippo.legs(N)[0], hippo.legs_normal(N), hippo.low_rank("legs", N)
    figure = look.figure(9, 3.0)
    grid = figure.subplots(1, 4)
    parts = (A, normal, P.T @ P, torch.linalg.eigvals(normal))
    for axes, values, name in zip(grid, parts, ("A of HiPPO-LegS", "= normal part", "- rank one, P Pᵀ")):
        look.image(axes, values.real.numpy(), 40.0)
        axes.set_title(name, fontsize=9, loc="left")
    grid[3].plot(parts[3].real, parts[3].imag, "o", color=look.COLORS[0], markersize=3)
    grid[3].set_xlim(-1, 0)
    look.tidy(grid[3], "Re", "Im", "eigenvalues, normal part")
    return figure


def theorem() -> Any:
    """7: for large N the basis stays without the rank-one term."""
    dt, length = 0.01, 300
    t = dt * (torch.arange(length, dtype=DOUBLE) + 0.5)
    figure, axes = look.panels(3, 3, height=2.5)
    for one, N in zip(axes, (16, 64, 512)):
        exact, samples = theory.legs_functions(t, 3), theory.normal_samples(N, "zoh", dt=dt, length=length, F=3)
        for n, (color, curve, wanted) in enumerate(zip(look.colors(), samples, exact)):
            one.plot(t, curve, color=color, linewidth=0.9, label=f"n = {n}")
            one.plot(t, wanted, "--", color="black", linewidth=0.9)
        one.set_ylim(-2, 3)
        look.tidy(one, "time t", "basis function", f"S4D-LegS, N = {N}; dashed: S4-LegS", legend=N == 512)
    return figure


def scales() -> Any:
    """8: heads with step sizes from 0.001 to 0.1 look back a hundred to thousands of samples."""
    return impulse(fresh("s4d", {"init": "lin", "d_state": 16}), length=4096)


def operators() -> Any:
    """9: the four matrices of a chunk."""
    A, B = inits.diagonal("lin", 16)
    C = torch.randn(1, 1, 8, dtype=torch.complex128, generator=torch.Generator().manual_seed(1))
    chunk = Diagonal(A[None], B[None], C, torch.tensor([0.05], dtype=DOUBLE)).operators(32)
    G = torch.zeros(16, 16, dtype=DOUBLE)
    real, imag = chunk.G[0].chunk(2)  # a complex number as a real matrix
    index = torch.arange(8)
    G[index, index], G[index + 8, index + 8] = real, real
    G[index, index + 8], G[index + 8, index] = -imag, imag
    figure = look.figure(8, 3.4)
    grid = figure.subplots(2, 2, width_ratios=(2, 1), height_ratios=(2, 1)).ravel()
    values = (chunk.T[0, 0], chunk.O[0, 0], chunk.E[0], G)
    names = ("T: inputs to outputs", "O: state to outputs", "E: inputs to state", "G: state to state")
    for axes, matrix, name in zip(grid, values, names):
        look.image(axes, matrix.numpy())
        axes.set_aspect("auto")
        axes.set_title(name, fontsize=9, loc="left")
    return figure


def chunks() -> Any:
    """10: a sequence chunk by chunk, with the state carried over."""
    A, B = inits.diagonal("lin", 16)
    C = torch.randn(1, 1, 8, dtype=torch.complex128, generator=torch.Generator().manual_seed(1))
    system = Diagonal(A[None], B[None], C, torch.tensor([0.02], dtype=DOUBLE))
    length, c = 256, 64
    u = signal(length)
    chunk = system.operators(c)
    whole = system.scan(u[None, :, None])[0][0, :, 0, 0]
    figure, axes = look.panels(1, 1, width=8.5, height=2.8)
    state = torch.zeros(1, 1, 16, dtype=DOUBLE)
    for number, piece in enumerate(u.split(c)):
        y = chunk.T[0, 0] @ piece + chunk.O[0, 0] @ state[0, 0]
        _, state = system.scan(piece[None, :, None], state)
        place = torch.arange(number * c, (number + 1) * c)
        axes[0].plot(place, y, color=look.COLORS[number], linewidth=3, alpha=0.6, label=f"chunk {number + 1}")
        alone = chunk.T[0, 0] @ piece
        axes[0].plot(place, alone, ":", color=look.COLORS[number], linewidth=0.9)
    axes[0].plot(whole, color="black", linewidth=0.8, label="all at once")
    look.tidy(axes[0], "sample", "output", "y = T u + O s; dotted: without the state, T u alone", legend=True)
    return figure


PICTURES: tuple[Callable[[], Any], ...] = (
    ode, memory, steps, convolution, waves, matrices, theorem, scales, operators, chunks,
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/tutorial"), help="folder (default: docs/tutorial)")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for number, draw in enumerate(PICTURES, 1):
        (path,) = save(draw(), args.out / f"{number:02d}-{draw.__name__}.png")
        print(path)


if __name__ == "__main__":
    main()
