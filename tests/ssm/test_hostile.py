"""Finite in, finite out: parameters far outside what training visits."""

import math

import pytest
import torch

from statespan.ssm import DPLR, Diagonal
from tests.ssm.make import RULES, krylov

HEADS = 4000


def draw(dtype=torch.float64, sign=-1.0):
    """log Δ in -30 … 10, log|Re A| in -110 … 90, |Im A| up to 1e6, each end well visited."""
    generator = torch.Generator().manual_seed(0)

    def uniform(low, high, *shape):
        return low + (high - low) * torch.rand(*shape, dtype=torch.float64, generator=generator)

    log_dt, log_real = uniform(-30, 10, HEADS), uniform(-110, 90, HEADS, 2)
    imag = 10 ** uniform(-6, 6, HEADS, 2) * (uniform(0, 1, HEADS, 2) > 0.2)
    imag[:50], log_real[50:100], log_dt[100:150], log_dt[150:200] = 1e6, 90.0, 10.0, -30.0
    log_real[200:250] = -110.0
    leaves = [x.requires_grad_() for x in (log_dt, log_real, imag)]
    A = torch.complex(sign * log_real.exp(), imag)
    B, P = (torch.randn(*s, HEADS, 2, dtype=torch.complex128, generator=generator) for s in ((), (1,)))
    C = torch.randn(1, HEADS, 2, dtype=torch.complex128, generator=generator)
    C = C.to(torch.complex64 if dtype == torch.float32 else torch.complex128).requires_grad_()
    return A, P, B, C, log_dt.exp(), [*leaves, C]


def check(outputs, leaves):
    for output in outputs:
        assert torch.isfinite(output).all()
    gradients = torch.autograd.grad(sum(output.double().sum() for output in outputs), leaves, retain_graph=True)
    for gradient in gradients:
        assert torch.isfinite(gradient).all()
    assert all((gradient != 0).any() for gradient in gradients)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", RULES)
def test_diagonal(rule, dtype, sign):
    A, _, B, C, dt, leaves = draw(dtype, sign)
    ssm = Diagonal(A, B, C, dt, discretization=rule)
    check([ssm.kernel(70)], leaves)
    check(ssm.scan(torch.ones(1, 3, HEADS, dtype=dtype)), leaves)
    check(ssm.operators(8), leaves)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_softmax(dtype, sign):
    A, _, B, C, dt, leaves = draw(dtype, sign)
    check([Diagonal(A, B, C, dt, discretization="zoh", softmax_length=70).kernel(70)], leaves)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dplr(dtype):
    A, P, B, C, dt, leaves = draw(dtype)
    ssm = DPLR(A, P, B, C, dt=dt)
    check([ssm.kernel(70)], leaves)
    check([krylov(ssm).kernel(70)], leaves)
    check(ssm.scan(torch.ones(1, 3, HEADS, dtype=dtype)), leaves)


def test_dplr_matches_krylov_for_hostile_parameters():
    A, P, B, C, dt, _ = draw()
    with torch.no_grad():
        ssm = DPLR(A, P, B, C, dt=dt)
        cauchy, wanted = ssm.kernel(70), krylov(ssm).kernel(70)
        error = (cauchy - wanted).abs().amax(-1) / wanted.abs().amax(-1)
    assert error.max().item() <= 1e-10


@pytest.mark.parametrize("rule", RULES)
def test_vanishing_a_integrates(rule):
    """As A → 0 the system adds up its input: each kernel value is 2 Δ Re(C B), not 0 (by foh the first is half)."""
    A = torch.full((1, 1), -math.exp(-110.0), dtype=torch.complex128)
    one = torch.ones(1, 1, 1, dtype=torch.complex64)
    kernel = Diagonal(A, one[0], one, torch.tensor([0.01]), discretization=rule).kernel(100)
    wanted = torch.full((1, 1, 100), 0.02)
    wanted[..., 0] *= 0.5 if rule == "foh" else 1.0
    torch.testing.assert_close(kernel, wanted)


def test_huge_inputs_stay_finite():
    ssm = Diagonal(
        torch.tensor([[-0.5 + 3j]]),
        torch.ones(1, 1) + 0j,
        torch.ones(1, 1, 1) + 0j,
        torch.tensor([0.01]),
        discretization="zoh",
    )
    for size in (1e-30, 1e30):
        y, _ = ssm.scan(torch.full((1, 200, 1), size))
        unit, _ = ssm.scan(torch.ones(1, 200, 1))
        assert torch.isfinite(y).all()
        torch.testing.assert_close(y / size, unit, rtol=1e-6, atol=1e-7)
