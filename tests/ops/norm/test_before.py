"""Layer normalization in the engine's order against torch's own."""

import pytest
import torch
from torch.nn.functional import layer_norm

from statespan.nn import S4D, ResidualBlock
from statespan.ops import use_path
from statespan.ops.norm.before import Affine, norm, norm_before
from tests.ops.make import assert_near, poison

pytest.importorskip("triton")

from statespan.ops.norm._triton import before as kernels

pytestmark = pytest.mark.share(3)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BOUND = {torch.float32: 4e-6, torch.float16: 1.5e-3}  # of the peak
EPS = 1e-5


@pytest.fixture(autouse=True)
def _poison(monkeypatch):
    poison(monkeypatch)


def _leaves(shape, dtype):
    B, L, D = shape
    x = 3.0 + 2.0 * torch.randn(B, L, D, device=DEVICE)
    return [t.to(dtype).requires_grad_() for t in (x, torch.randn(D, device=DEVICE), torch.randn(D, device=DEVICE))]


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 3), (2, 17, 5), (3, 130, 64), (1, 300, 129), (2, 33, 1000)], ids=str)
def test_both_ways(shape, dtype):
    """y, its order in memory, x that goes on beside it, and every gradient."""
    leaves = _leaves(shape, dtype)
    exact = [t.detach().double().requires_grad_() for t in leaves]
    same, y = norm_before(leaves[0], Affine(*leaves[1:], EPS), dtype)
    wanted = layer_norm(exact[0], shape[2:], *exact[1:], EPS)
    assert torch.equal(same, leaves[0])
    assert y.shape == shape
    assert y.dtype == dtype
    assert y.permute(2, 0, 1).is_contiguous()
    assert_near(y, wanted, BOUND[dtype], "y")
    dy, beside = (torch.randn(shape, device=DEVICE).to(dtype) for _ in range(2))
    found = torch.autograd.grad((y, same), leaves, (dy, beside))
    gradients = torch.autograd.grad((wanted, exact[0] * 1.0), exact, (dy.double(), beside.double()))
    for name, one, other in zip(("x", "weight", "bias"), found, gradients, strict=True):
        assert one.dtype == dtype
        assert_near(one, other, 2 * BOUND[dtype], name)


def test_one_feature():
    """Nothing is left of it but the bias, and nothing of its gradient but the residual's."""
    leaves = _leaves((2, 9, 1), torch.float32)
    same, y = norm_before(leaves[0], Affine(*leaves[1:], EPS), torch.float32)
    assert torch.equal(y, leaves[2].expand_as(y))
    dy, beside = torch.rand_like(y), torch.randn_like(same)
    dx, dweight, dbias = torch.autograd.grad((y, same), leaves, (dy, beside))
    assert_near(dx, beside, 2e-5)  # dy less its mean is a rounding of dy, and 1 / sqrt(EPS) larger here
    assert dweight == 0
    assert_near(dbias, dy.double().sum()[None], 1e-6)


def test_wider_than_the_result():
    """A float32 residual in front of a 16-bit engine: rounded once, at the end."""
    leaves = _leaves((2, 40, 24), torch.float32)
    same, y = norm_before(leaves[0], Affine(*leaves[1:], EPS), torch.float16)
    exact = [t.detach().double().requires_grad_() for t in leaves]
    wanted = layer_norm(exact[0], (24,), *exact[1:], EPS)
    assert (y.dtype, same.dtype) == (torch.float16, torch.float32)
    assert_near(y, wanted, BOUND[torch.float16])
    dy = torch.randn_like(y)
    found = torch.autograd.grad(y, leaves, dy)
    for one, other in zip(found, torch.autograd.grad(wanted, exact, dy.double()), strict=True):
        assert one.dtype == torch.float32
        assert_near(one, other, 2e-6)


def test_a_far_mean_costs_no_digits():
    """The variance is that of what is left when the mean is gone."""
    x = (1e4 + torch.randn(2, 20, 32, device=DEVICE)).requires_grad_()
    weight, bias = torch.ones(32, device=DEVICE), torch.zeros(32, device=DEVICE)
    _, y = norm_before(x, Affine(weight, bias, EPS), torch.float32)
    assert_near(y, layer_norm(x.double(), (32,), eps=EPS), 1e-3)  # the mean itself has as many digits


def test_any_order_of_the_input():
    x, weight, bias = (t.detach() for t in _leaves((2, 50, 12), torch.float32))
    other = x.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    affine = Affine(weight, bias, EPS)
    for one, same in zip(norm(other, affine, x.dtype), norm(x, affine, x.dtype), strict=True):
        assert torch.equal(one, same)


def test_registered():
    x, weight, bias = (t.detach() for t in _leaves((2, 20, 6), torch.float32))
    torch.library.opcheck(torch.ops.statespan.norm.default, (x, weight, bias, EPS, torch.float32))
    y, mean, rstd = norm(x, Affine(weight, bias, EPS), torch.float32)
    torch.library.opcheck(torch.ops.statespan.norm_backward.default, (x, weight, mean, rstd, torch.randn_like(y), x))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("lengths", [None, [40, 17]], ids=["whole", "padded"])
def test_a_block(lengths, compiled, monkeypatch):
    """On the kernels' path a block normalizes with them, and equals one on the plain path."""
    block = ResidualBlock(S4D(3, 8, bidirectional=True, mix="linear"), norm="layer").to(DEVICE)
    torch.nn.init.normal_(block.norm.weight)
    x = torch.randn(2, 40, 3, device=DEVICE).half().float()
    given = torch.randn(2, 40, 3, device=DEVICE)
    if lengths is not None:
        lengths = torch.tensor(lengths, device=DEVICE)
        given.masked_fill_(torch.arange(40, device=DEVICE)[:, None] >= lengths[:, None, None], 0.0)

    def run(path, forward):
        inputs = [x.clone().requires_grad_(), *block.parameters()]
        with use_path(path), torch.autocast(DEVICE, torch.float16):
            y = forward(inputs[0], lengths=lengths).float()
        return [y.detach().masked_fill(given == 0.0, 0.0), *torch.autograd.grad(y, inputs, given)]

    calls, backward = [], kernels.backward
    monkeypatch.setattr(block.layer, "working_dtype", lambda x: torch.float16)  # as on a GPU
    monkeypatch.setattr(kernels, "backward", lambda *x: calls.append(1) or backward(*x))
    got = run("triton", torch.compile(block, backend="aot_eager", fullgraph=True) if compiled else block)
    assert calls == [1]
    wanted = run("chunks", block)
    assert calls == [1]
    for one, other in zip(got, wanted, strict=True):
        assert_near(one, other, 1e-2)


def test_a_norm_with_a_hook_is_called():
    """Whoever looks at a norm sees its result: the kernels would go past it."""
    block, seen = ResidualBlock(S4D(6, 8, mix="linear"), norm="layer").to(DEVICE), []
    block.norm.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    with use_path("triton"):
        x, u = block.norm.before(torch.randn(2, 9, 6, device=DEVICE), None, torch.float16)
    assert seen[0] is u
    assert_near(u, layer_norm(x.double(), (6,), eps=EPS), 4e-6)
