"""Gradients against finite differences in float64, for every structure, view and parameter."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from statespan.ops import chunked, fftconv
from statespan.ssm import DPLR, Dense, Diagonal
from tests.ssm.make import KINDS, RULES, make

pytestmark = pytest.mark.share(5)

TOLERANCE = {"atol": 1e-7, "rtol": 1e-6}


def rebuild(ssm):
    """The structure as a function of its parameters, and those parameters as leaves."""
    names = ["A", *["P"] * isinstance(ssm, DPLR), "B", "C", "dt", *["Q"] * (getattr(ssm, "Q", None) is not None)]
    leaves = [getattr(ssm, name).detach().clone().requires_grad_() for name in names]

    def build(*values):
        if isinstance(ssm, Diagonal):
            return Diagonal(*values, discretization=ssm.discretization, softmax_length=ssm.softmax_length)
        return type(ssm)(**dict(zip(names, values)), discretization=ssm.discretization)

    return build, leaves


VIEWS = {
    "kernel": lambda ssm, u, state: ssm.kernel(6),
    "fftconv": lambda ssm, u, state: fftconv(u, ssm.kernel(u.shape[1])),
    "chunked": lambda ssm, u, state: chunked(ssm, u, state, chunk=3),
    "step": lambda ssm, u, state: ssm.step(u[:, 0], state),
    "scan": lambda ssm, u, state: ssm.scan(u, state),
    "states": lambda ssm, u, state: ssm.states(u, state),
    "operators": lambda ssm, u, state: tuple(ssm.operators(4)),
}


# The kernel of everything by every rule. Every other view of every kind of structure (initializations differ in their
# numbers only) by one of them, in turn, so that each view and each kind meets all.
GENERAL = ["diagonal-real", "diagonal-trained", "dplr-trained", "dplr-trained2", "dplr-apart", "dense-trained"]
EACH = [(kind, rule, "kernel") for kind in KINDS for rule in RULES]
EACH += [(kind, RULES[(i + j) % 3], view) for i, kind in enumerate(GENERAL) for j, view in enumerate([*VIEWS][1:])]


@pytest.mark.parametrize(("kind", "rule", "view"), EACH)
def test_first_derivatives(kind, rule, view):
    build, leaves = rebuild(make(kind, 4, rule, dt_min=0.01, dt_max=0.1))
    u = torch.randn(1, 5, 2, dtype=torch.float64, requires_grad=True)
    state = torch.randn(1, 2, 4, dtype=torch.float64, requires_grad=True)

    def function(u, state, *values):
        return VIEWS[view](build(*values), u, state)

    assert gradcheck(function, (u, state, *leaves), **TOLERANCE)


@pytest.mark.parametrize("growing", [False, True])
def test_softmax(growing):
    ssm = make("diagonal-trained", 4, "zoh", dt_min=0.05, dt_max=0.1)
    if growing:
        ssm.A = torch.complex(ssm.A.real * torch.tensor([1.0, -0.1], dtype=torch.float64), ssm.A.imag)
    ssm = Diagonal(ssm.A, ssm.B, ssm.C, ssm.dt, discretization="zoh", softmax_length=8)
    build, leaves = rebuild(ssm)
    u, state = torch.randn(2, 5, 2, dtype=torch.float64), torch.randn(2, 2, 4, dtype=torch.float64)
    assert gradcheck(lambda *values: build(*values).kernel(6), leaves, **TOLERANCE)
    assert gradcheck(lambda *values: build(*values).scan(u, state), leaves, **TOLERANCE)


@pytest.mark.parametrize("kind", ["diagonal-legs", "dplr-legs", "dplr-legt"])
def test_second_derivatives(kind):
    build, leaves = rebuild(make(kind, 4, "bilinear", H=1, channels=1, dt_min=0.05, dt_max=0.1))
    assert gradgradcheck(lambda *values: build(*values).kernel(3), leaves, atol=1e-6, rtol=1e-5)


def test_half_and_full_conjugate_sets_have_the_same_gradient():
    """2 Re over the kept half and the plain sum over both halves are one function, so their gradients are equal."""
    ssm = make("diagonal-trained", 6, "zoh", H=1, channels=1)
    A = ssm.A.detach().clone().requires_grad_()
    half = Diagonal(A, ssm.B, ssm.C, ssm.dt, discretization="zoh").kernel(7)[0, 0]
    full_A = torch.cat([A, A.conj()], -1)[0]
    B, C = (torch.cat([x, x.conj()], -1).flatten() for x in (ssm.B, ssm.C[0]))
    z = ssm.dt[0] * full_A
    full = torch.stack([(C * B * (z.exp() - 1) / full_A * (t * z).exp()).sum() for t in range(7)]).real
    weights = torch.randn(7, dtype=torch.float64)
    gradients = [torch.autograd.grad((k * weights).sum(), A, retain_graph=True)[0] for k in (half, full)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


def test_float32_gradients_are_close_to_float64():
    """Every gradient within 2e-5 of its peak at 16,384 samples, lightly damped."""
    results = []
    for dtype in (torch.float32, torch.float64):
        ssm = make("diagonal-trained", 64, "zoh", dtype=torch.float32)
        A = torch.complex(torch.full_like(ssm.A.real, -1 / (0.05 * 16384)), ssm.A.imag)
        C = ssm.C.to(torch.complex64 if dtype == torch.float32 else torch.complex128)
        leaves = [x.detach().clone().requires_grad_() for x in (A, ssm.B, C, ssm.dt)]
        u = torch.randn(2, 16384, 2, dtype=torch.float32, generator=torch.Generator().manual_seed(0)).to(dtype)
        y = fftconv(u, Diagonal(*leaves, discretization="zoh").kernel(16384))
        results.append([y, *torch.autograd.grad(y.square().mean(), leaves)])
    for single, double in zip(*results, strict=True):
        error = (single.to(double.dtype) - double).abs().max() / double.abs().max()
        assert error.item() <= 2e-5


def test_dense_gradient_reaches_every_entry():
    ssm = make("dense-trained", 4, "zoh")
    A = ssm.A.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(Dense(A, ssm.B, ssm.C, ssm.dt, discretization="zoh").kernel(6).square().sum(), A)
    assert (gradient != 0).all()
