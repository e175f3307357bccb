"""GELU and the linear map behind it against torch's own, and that nothing is overwritten that is still needed."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional

from statespan.ops.glu import activation
from tests.ops.make import assert_near

ORDERS = {"positions last": lambda P, F: torch.randn(F, P).t(), "features last": torch.randn}
orders = pytest.mark.parametrize("order", ORDERS)


def plain(y, weight, bias):
    return functional.linear(functional.gelu(y), weight, bias)


def make(order, dtype=torch.float64, P=37, F=5, D=3):
    values = ORDERS[order](P, F), torch.randn(D, F), torch.randn(D)
    return [x.to(dtype).requires_grad_() for x in values]


@orders
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_like_torch(order, dtype):
    """Forward and every gradient, once with the graph kept and once with it given up."""
    values = make(order, dtype)
    bound = 1e-14 if dtype == torch.float64 else 1e-6
    wanted = plain(*values)
    dz = torch.randn_like(wanted)
    slopes = torch.autograd.grad(wanted, values, dz)
    y = values[0].clone()
    got = activation.gelu_linear(y, *values[1:])
    assert_near(got, wanted, bound)
    before = y.detach().clone()
    for keep in (True, False):
        for one, other in zip(torch.autograd.grad(got, values, dz, retain_graph=keep), slopes, strict=True):
            assert_near(one, other, bound)
        assert torch.equal(y.detach(), before) is keep
    y = values[0].clone()
    single, expected = activation.gelu(y), functional.gelu(values[0])
    assert torch.equal(single, expected)
    dz = torch.randn_like(y)
    slope = torch.autograd.grad(expected, values[0], dz)[0]
    for keep in (True, False):
        assert torch.equal(torch.autograd.grad(single, values[0], dz, retain_graph=keep)[0], slope)


@orders
def test_derivatives(order):
    values = make(order, P=4, F=3, D=2)

    def function(y, weight, bias):
        return activation.gelu_linear(y.clone(), weight, bias)  # the checks hold on to what they hand over

    assert gradcheck(function, values)
    assert gradgradcheck(function, values)
    assert gradgradcheck(lambda y: activation.gelu(y.clone()), values[:1])


def test_without_a_gradient_or_in_other_precisions():
    y, weight, bias = make("positions last", torch.float32)
    with torch.no_grad():
        assert torch.equal(activation.gelu_linear(y, weight, bias), plain(y, weight, bias))
    with torch.autocast("cpu", torch.bfloat16):
        assert activation.gelu_linear(y, weight, bias).dtype == torch.bfloat16
    with pytest.raises(RuntimeError, match="dtype"):
        activation.gelu_linear(y.double(), weight, bias)
