"""A whole layer as one node of autograd against its steps in float64."""

import copy

import pytest
import torch

from statespan import S4, S4D
from statespan.ops import use_path
from statespan.ops.ssm.gated import apply_gated

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.float16  # the interpreter computes wrongly in bfloat16
BOUND = 8e-3  # of the peak: a few roundings of operators, states and outputs to 11 bits
LAYERS = {
    "S4D": (S4D, {}),
    "S4": (S4, {}),
    "legt": (S4, {"init": "legt"}),
    "bidirectional": (S4D, {"bidirectional": True}),
    "channels": (S4D, {"channels": 2}),
    "shared": (S4, {"n_ssm": 2}),
    "linear": (S4D, {"activation": None}),
}


def gated(layer, x, dtype=DTYPE):
    with use_path("triton"):
        return apply_gated(
            layer.ssm.source(), x, layer.D, layer.mix.linear(), bidirectional=layer.bidirectional,
            activation=layer.activation, dtype=dtype,
        )  # fmt: skip


def case(name, *, length=70):
    cls, options = LAYERS[name]
    torch.manual_seed(3)
    layer = cls(6, 8, dt_min=0.01, **options).to(DEVICE)
    exact = copy.deepcopy(layer).double()
    x = torch.randn(3, length, 6, device=DEVICE)
    return layer, exact, x.requires_grad_(), x.detach().double().requires_grad_()


def near(got, wanted):
    return (got.double() - wanted).abs().max() <= BOUND * wanted.abs().max()


@pytest.mark.parametrize("name", LAYERS)
def test_outputs_and_gradients(name):
    layer, exact, x, wide = case(name)
    y, wanted = gated(layer, x), exact(wide)
    assert y.dtype == DTYPE
    assert near(y, wanted)
    dy = torch.randn_like(wanted)
    gradients = torch.autograd.grad(wanted, [wide, *exact.parameters()], dy)
    found = torch.autograd.grad(y, [x, *layer.parameters()], dy.to(DTYPE))
    for (label, parameter), one, other in zip([("x", x), *layer.named_parameters()], found, gradients, strict=True):
        assert (one.dtype, one.shape) == (parameter.dtype, parameter.shape), label
        assert near(one, other), label


def test_the_graph_may_be_kept():
    """Then nothing that was saved is overwritten: the same gradients again."""
    layer, _, x, _ = case("S4D")
    y = gated(layer, x)
    inputs, dy = [x, *layer.parameters()], torch.randn_like(y)
    first = torch.autograd.grad(y, inputs, dy, retain_graph=True)
    again = torch.autograd.grad(y, inputs, dy)
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_second_derivatives_are_refused():
    layer, exact, x, wide = case("S4D")
    y = gated(layer, x)
    (dx,) = torch.autograd.grad(y.float().square().sum(), x, create_graph=True)
    (wanted,) = torch.autograd.grad(exact(wide).square().sum(), wide)
    assert near(dx.detach(), wanted)
    with pytest.raises(RuntimeError, match="second derivatives need use_path"):
        dx.sum().backward()


@pytest.mark.parametrize("frozen", ["mix", "ssm", "x"])
def test_what_is_frozen_has_no_gradient(frozen):
    layer, _, x, _ = case("S4D")
    y = gated(layer, x)
    wanted = torch.autograd.grad(y.float().square().sum(), [x, layer.mix[0].weight, layer.ssm.C])
    if frozen == "x":
        x = x.detach()
    else:
        getattr(layer, frozen).requires_grad_(False)
    gated(layer, x).float().square().sum().backward()
    for name, tensor, gradient in zip(("x", "mix", "ssm"), (x, layer.mix[0].weight, layer.ssm.C), wanted, strict=True):
        assert (tensor.grad is None) == (name == frozen)
        assert name == frozen or torch.equal(tensor.grad, gradient)


def test_where_it_does_not_run():
    """Without gradients, in full precision, for no samples, and where the operators are built in torch."""
    layer, _, x, _ = case("S4D")
    with torch.no_grad():
        assert gated(layer, x) is None
    assert gated(layer, x, torch.float32) is None
    assert gated(layer, x[:, :0]) is None
    held = S4D(6, 8, discretization="foh").to(DEVICE)
    assert gated(held, x) is None
    with use_path("chunks"):
        options = {"bidirectional": False, "activation": "gelu", "dtype": DTYPE}
        assert apply_gated(layer.ssm.source(), x, layer.D, layer.mix.linear(), **options) is None
