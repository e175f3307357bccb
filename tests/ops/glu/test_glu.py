"""The gated linear unit as one step against torch's own two."""

import pytest
import torch
from torch.nn.functional import glu, linear

from statespan.ops import linear_glu, use_path
from tests.ops.make import assert_near, poison

pytest.importorskip("triton")

from statespan.ops.glu._triton import backward, forward

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BOUND = {torch.float32: 2e-6, torch.float16: 1e-3}  # of the peak; the latter is twice its rounding


@pytest.fixture(autouse=True)
def _poison(monkeypatch):
    poison(monkeypatch)


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize(("rows", "d"), [(1, 1), (17, 5), (300, 129)])
def test_kernels(rows, d, dtype):
    z, bias, dout = (torch.randn(*s, device=DEVICE).to(dtype) for s in ((rows, 2 * d), (2 * d,), (rows, d)))
    exact = [x.double().requires_grad_() for x in (z, bias)]
    wanted = glu(exact[0] + exact[1], -1)
    assert_near(forward(z, bias), wanted, BOUND[dtype], "y")
    gradients = torch.autograd.grad(wanted, exact, dout.double())
    for in_place in (False, True):  # its gradient may take the place of z
        got = backward(z, bias, dout, in_place=in_place)
        assert (got[0] is z) == in_place
        assert got[1].dtype == dtype
        for name, one, other in zip(("z", "bias"), got, gradients, strict=True):
            assert_near(one, other, BOUND[dtype], name)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_the_layer_of_two_steps(dtype):
    """Whatever runs here; the gradients too, twice from the same graph."""
    x, weight, bias = (torch.randn(*s, device=DEVICE).to(dtype) for s in ((40, 6), (10, 6), (10,)))
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    exact = [t.detach().double().requires_grad_() for t in leaves]
    got, wanted = linear_glu(*leaves), glu(linear(*exact), -1)
    bound = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 2e-2}[dtype]
    assert_near(got, wanted, bound)
    given = torch.randn_like(got)
    gradients = torch.autograd.grad(wanted, exact, given.double())
    for retain in (True, False):
        for one, other in zip(torch.autograd.grad(got, leaves, given, retain_graph=retain), gradients, strict=True):
            assert_near(one, other, bound)


@pytest.mark.parametrize("wide", [False, True])
def test_compiled(wide, monkeypatch):
    """Forward the compiler's kernels, backward ours; under autocast, and with a gradient wider than the output."""

    def gated(x, weight, bias):
        with torch.autocast(DEVICE, torch.bfloat16):
            y = linear_glu(x, weight, bias)
        return y.float() if wide else y

    shapes = ((40, 6), (10, 6), (10,))
    leaves = [torch.randn(*s, device=DEVICE).bfloat16().float().requires_grad_() for s in shapes]
    exact = [t.detach().double().requires_grad_() for t in leaves]
    calls = []
    monkeypatch.setattr("statespan.ops.glu._triton.backward", lambda *x: calls.append(1) or backward(*x))
    with use_path("triton"):
        got = torch.compile(gated, backend="aot_eager", fullgraph=True)(*leaves)
        given = torch.randn_like(got)
        found = torch.autograd.grad(got, leaves, given)
    assert calls == [1]
    wanted = glu(linear(*exact), -1)
    assert_near(got, wanted, 1e-2)
    for one, other in zip(found, torch.autograd.grad(wanted, exact, given.double()), strict=True):
        assert one.dtype == torch.float32
        assert_near(one, other, 1e-2)
