"""What torch.func.vmap maps over becomes more heads: operators against a loop, with kernels and without."""

import pytest
import torch
from torch.func import grad_and_value, vmap

from statespan.ops.cauchy.arguments import CauchyOptions
from statespan.ops.cauchy.operator import cauchy
from statespan.ops.ssm.arguments import BuildOptions, ModeTensors, RecurrenceOptions, Sequences
from statespan.ops.ssm.registered.layout import lengthwise
from statespan.ops.ssm.registered.modes import modes
from statespan.ops.ssm.registered.recurrence import recurrence
from statespan.ops.step.operator import StepOptions, System, fused_step

f64 = torch.float64


def same(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-11)


def loop(function, *columns):
    return torch.stack([function(*row) for row in zip(*columns)])


def assert_rows(total, inputs, count):
    """Mapped over rows, a sum and its gradients in the first inputs are what they are row by row."""
    slopes = grad_and_value(total, tuple(range(count)))
    got, value = vmap(slopes)(*inputs)
    for i in range(len(inputs[0])):
        wanted, alone = slopes(*(x[i] for x in inputs))
        same(value[i], alone)
        for one, other in zip(got, wanted, strict=True):
            same(one[i], other)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_operators_of_shared_modes(rank):
    """Two heads that share one set of modes, of which two are mapped over; the heads' C is the same for all."""
    H, M, c = 2, 1, 2
    dt, decay, freq = torch.randn(2, H, dtype=f64) - 2, torch.randn(2, 1, M, dtype=f64), torch.randn(2, 1, M, dtype=f64)
    B, P = torch.randn(2, 1, M, 2, dtype=f64), torch.randn(2, rank, 1, M, 2, dtype=f64)
    C, D = torch.randn(1, H, M, 2, dtype=f64), torch.randn(1, H, dtype=f64)

    def total(dt, decay, freq, B, P):
        parameters = ModeTensors(dt, decay, freq, B, C, D, P if rank else None)
        built = modes(parameters, BuildOptions(c, 0, "bilinear", "exp", True, True))
        return sum((part * torch.arange(1.0, part.numel() + 1).view_as(part)).sum() for part in built[:4])

    inputs = dt, decay, freq, B, P
    assert_rows(total, inputs, 5 if rank else 4)


@pytest.mark.parametrize("rank", [1, 2])
def test_recurrence_of_shared_modes(rank):
    """The same sample by sample, with both directions."""
    H, M, B, L = 2, 1, 1, 2

    def randn(*shape):
        return torch.randn(*shape, dtype=f64)

    C, D = randn(2, H, M, 2), randn(1, H)

    def total(u, dt, decay, freq, gain, P):
        parameters = ModeTensors(dt, decay, freq, gain, C, D, P)
        y, _ = recurrence(Sequences(u), parameters, RecurrenceOptions(1, "exp", True, False, f64))
        return (y * torch.arange(1.0, y.numel() + 1).view_as(y)).sum()

    inputs = (
        randn(2, H, B, L), randn(2, H) - 2, randn(2, 1, M), randn(2, 1, M), randn(2, 1, M, 2), randn(2, rank, 1, M, 2)
    )  # fmt: skip
    assert_rows(total, inputs, 6)


def test_cauchy_sums_of_shared_modes():
    """As above, for the operator of a whole kernel."""
    H, M = 2, 1
    dt, decay, freq = torch.randn(2, H, dtype=f64) - 2, torch.randn(2, 1, M, dtype=f64), torch.randn(2, 1, M, dtype=f64)
    B, P, C = (torch.randn(*shape, M, 2, dtype=f64) for shape in ((2, 1), (2, 1), (2, H)))

    def total(dt, decay, freq, B, P):
        kernel, *_ = cauchy(ModeTensors(dt, decay, freq, B, C, None, P), CauchyOptions(3, "exp", True, f64, True))
        return (kernel * torch.arange(1.0, kernel.numel() + 1).view_as(kernel)).sum()

    inputs = dt, decay, freq, B, P
    assert_rows(total, inputs, 5)


def test_order_and_step():
    u = torch.randn(3, 2, 1, 4, dtype=f64)
    same(vmap(lambda x: lengthwise(x, f64))(u), u)
    x, state, diagonal = (
        torch.randn(3, 1, 2, dtype=f64),
        torch.randn(3, 1, 2, 2, dtype=f64),
        torch.randn(2, 2, dtype=f64),
    )
    B, C = torch.randn(2, 2, dtype=f64), torch.randn(1, 2, 2, dtype=f64)

    def step(x, state):
        return fused_step(x, state, System(diagonal, None, None, None, B, C), StepOptions(False, f64))

    y, new = vmap(step)(x, state)
    same(y, loop(lambda *a: step(*a)[0], x, state))
    same(new, loop(lambda *a: step(*a)[1], x, state))
