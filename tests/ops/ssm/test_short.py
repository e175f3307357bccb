"""Short sequences on a CPU: the series path against its twin in plain torch, and where it must not run."""

import warnings

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, vmap

from statespan import S4, S4D
from statespan.ops import apply, dispatch, use_path
from statespan.ops.ssm import short
from tests.ops.make import assert_near
from tests.ssm.make import make

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the path of a CPU")
f32, f64 = torch.float32, torch.float64
CASES = [(S4D, {}), (S4, {}), (S4, {"bidirectional": True, "channels": 2}), (S4D, {"bidirectional": True, "n_ssm": 2})]


@pytest.fixture
def runs(monkeypatch):
    """How often the path ran."""
    count = []
    original = short._convolve
    monkeypatch.setattr(short, "_convolve", lambda *a: count.append(1) or original(*a))
    return count


def given(cls, length, dtype=f64, **options):
    torch.manual_seed(5)
    layer = cls(4, 8, dtype=dtype, **options)
    return layer, torch.randn(3, length, 4, dtype=dtype, requires_grad=True)


def gradients(layer, x, dy=None):
    y = layer(x)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=f64).to(y.dtype) if dy is None else dy
    return [y, *torch.autograd.grad(y, [x, *layer.parameters()], dy)]


@pytest.mark.parametrize("length", [1, 2, 7, 64])
@pytest.mark.parametrize(("cls", "options"), CASES)
def test_against_the_convolution(cls, options, length, runs):
    """Forward and every gradient, in float64, and in float32 against float64."""
    for dtype, bound in ((f64, 1e-11), (f32, 2e-6)):
        layer, x = given(cls, length, dtype, **options)
        runs.clear()
        got = gradients(layer, x)
        assert len(runs) == 1
        wide, xw = layer.double(), x.detach().double().requires_grad_()
        with use_path("fft"):
            wanted = gradients(wide, xw)
        assert len(runs) == 1
        for one, other in zip(got, wanted, strict=True):
            assert_near(one, other, bound * (5 if other is not wanted[0] else 1))


@pytest.mark.parametrize(("cls", "options"), CASES)
def test_second_derivatives(cls, options):
    layer, x = given(cls, 5, **options)
    values = [x, *layer.parameters()]

    def curvature():
        first = torch.autograd.grad(layer(x).square().sum(), values, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), values, materialize_grads=True)

    got = curvature()
    with use_path("fft"):
        wanted = curvature()
    for one, other in zip(got, wanted, strict=True):
        assert_near(one, other, 1e-9)


def test_only_what_is_asked_for():
    """Frozen parameters, and an input without a gradient."""
    layer, x = given(S4, 9)
    wanted = gradients(layer, x)
    layer.ssm.requires_grad_(False)
    dx, dD = torch.autograd.grad(layer(x), [x, layer.D], torch.ones(3, 9, 4, dtype=f64))
    assert dx.shape == x.shape
    assert dD.shape == layer.D.shape
    layer.requires_grad_(True)
    dy = torch.randn(3, 9, 4, generator=torch.Generator().manual_seed(1), dtype=f64)
    found = torch.autograd.grad(layer(x.detach()), list(layer.parameters()), dy)
    for one, other in zip(found, wanted[2:], strict=True):
        assert_near(one, other, 1e-12)


def test_a_structure_alone_and_without_a_skip(runs):
    ssm = make("dplr-trained", 8, "bilinear", H=3, channels=2)
    u = torch.randn(2, 20, 3, dtype=f64)
    y = apply(ssm, u)
    assert len(runs) == 1
    with use_path("fft"):
        assert_near(y, apply(ssm, u), 1e-12)


def test_where_it_must_not_run(runs):
    """A forced path, long input, other rules, transforms and tangents."""
    layer, x = given(S4D, 10)
    zoh, _ = given(S4D, 10, discretization="zoh")
    cauchy, _ = given(S4, 10, kernel="cauchy")
    wanted = layer(x)
    assert runs
    runs.clear()
    with use_path("chunks"):
        layer(x)
    layer(torch.randn(1, dispatch.SHORT + 1, 4, dtype=f64))
    zoh(x)
    cauchy(x)
    layer(x[:, :0])
    assert_near(vmap(lambda one: layer(one[None])[0])(x), wanted, 1e-11)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, and torch's own tangents use it
        with forward_ad.dual_level(), torch.no_grad():
            dual = forward_ad.make_dual(x.detach(), torch.ones_like(x))
            assert forward_ad.unpack_dual(layer(dual)).tangent is not None
    assert not runs
    assert_near(functional_call(layer, dict(layer.named_parameters()), x), wanted, 1e-15)
    assert runs


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_reaches_no_earlier_output(value):
    layer, x = given(S4, 12)
    wanted = layer(x).detach()
    x = x.detach().clone()
    x[1, 7] = value
    y = layer(x).detach()
    assert_near(y[:, :7], wanted[:, :7], 1e-11)
    assert_near(y[[0, 2]], wanted[[0, 2]], 1e-11)
    assert torch.isnan(y[1, 7:]).all()
