"""Plots how the error of a discretization falls with its step size.

Shapes: H heads, L samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from statespan import _plotting as _look
from statespan.ops import fftconv
from statespan.plot.source import Part, evenly_spaced
from statespan.ssm import Diagonal
from statespan.ssm.discretize import RULES

SPAN, FREQUENCY = 4.0, 2.0
"""Length and frequency of the input, in units of the system: a few radians."""
HALVINGS = 7
FINE = 16  # steps of the exact output for each of the smallest step shown


def accuracy(parts: Sequence[Part], *, head: int = 0) -> Any:
    """The error of every discretization on a slow sine wave, over the step size.

    Args:
        parts: The layers, with diagonal state matrices.
        head: Which head's modes.

    Example:
        >>> from statespan.plot import fresh
        >>> len(accuracy(fresh("s4d", {"init": "lin"})).axes[0].lines)
        5
    """
    shown = evenly_spaced(parts, 4)
    figure, axes = _look.panels(len(shown), 2, height=3.2)
    for panel, part in zip(axes, shown):
        steps, errors = discretization_errors(part, head)
        for color, (rule, values) in zip(_look.colors(), errors.items()):
            panel.loglog(steps, values, "o-", color=color, markersize=3, linewidth=1.0, label=rule)
        largest = max(float(values[0]) for values in errors.values())
        for order, label in ((1, "halved with Δ"), (2, "quartered")):
            line = largest * (steps / steps[0]) ** order
            panel.loglog(
                steps, line, color=_look.GREY, linestyle=":" if order == 1 else "--", linewidth=0.8, label=label
            )
        _look.tidy(panel, "step size Δ", "largest error / largest output", part.name, legend=True)
    _look.title(figure, "Accuracy of the discretizations")
    return figure


@torch.no_grad()
def discretization_errors(part: Part, head: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    """Step sizes, and by rule the largest errors of the outputs relative to the largest output.

    The exact output is that of a first-order hold with a far smaller step.

    Args:
        part: A layer with a diagonal state matrix and no softmax.
        head: Which head's modes.
    """
    ssm = part.layer.structure()
    if not isinstance(ssm, Diagonal) or ssm.softmax_length is not None:
        raise ValueError(
            f"accuracy needs layers with a diagonal state matrix and no softmax, such as S4D, got {part.name}"
        )
    A, B, C = (x[..., head : head + 1, :].to(torch.complex128) for x in (ssm.A, ssm.B, ssm.C[:1]))

    def output(rule: str, samples: int) -> Tensor:
        dt = torch.full((1,), SPAN / samples, dtype=torch.float64, device=ssm.dt.device)
        u = torch.sin(FREQUENCY * dt * torch.arange(samples, device=dt.device))[None, :, None]
        return fftconv(u, Diagonal(A, B, C, dt, discretization=rule).kernel(samples))[0, :, 0, 0].cpu()

    counts = [20 << n for n in range(HALVINGS)]
    exact = output("foh", FINE * counts[-1])
    largest = exact.abs().max()
    errors = {
        rule: torch.stack([(output(rule, n) - exact[:: len(exact) // n]).abs().max() / largest for n in counts])
        for rule in RULES
    }
    return torch.tensor([SPAN / n for n in counts]), errors
