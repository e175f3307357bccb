"""Layer normalization of a sum against torch's own."""

import pytest
import torch
from torch.nn.functional import layer_norm

from statespan.nn import S4D, ResidualBlock
from statespan.ops import use_path
from statespan.ops.norm.after import ResidualSum, after_fits, norm_after, sum_norm
from statespan.ops.norm.before import Affine
from tests.ops.make import assert_near, poison

pytest.importorskip("triton")

from statespan.ops.norm._triton import after as kernels

pytestmark = pytest.mark.share(5)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BOUND = {torch.float32: 4e-6, torch.float16: 1.5e-3}  # of the peak
EPS = 1e-5


@pytest.fixture(autouse=True)
def _poison(monkeypatch):
    poison(monkeypatch)


def _leaves(shape, first, second, wide=torch.float32):
    """x, z, weight, bias."""
    x, z = (mean + torch.randn(shape, device=DEVICE) * 2.0 for mean in (3.0, -1.0))
    weight, bias = (torch.randn(shape[2], device=DEVICE) for _ in range(2))
    return [t.to(d).requires_grad_() for t, d in zip((x, z, weight, bias), (first, second, wide, wide), strict=True)]


def _scale(shape, dtype=torch.float32):
    """Some features are dropped, and each sequence's are its own."""
    return ((torch.rand(shape[0], shape[2], device=DEVICE) > 0.3) * torch.rand(shape[0], shape[2], device=DEVICE)).to(
        dtype
    )


def _wanted(leaves, scale):
    exact = [t.detach().double().requires_grad_() for t in leaves]
    x, z, weight, bias = exact
    z = z if scale is None else z * scale.double()[:, None]
    return exact, layer_norm(x + z, x.shape[2:], weight, bias, EPS)


@pytest.mark.parametrize("scaled", [False, True], ids=["whole", "scaled"])
@pytest.mark.parametrize(
    ("first", "second"),
    [(torch.float32, torch.float32), (torch.float32, torch.float16), (torch.float16, torch.float16)],
    ids=["32", "mixed", "16"],
)
@pytest.mark.parametrize("shape", [(1, 1, 3), (2, 17, 5), (3, 130, 64), (1, 300, 129), (2, 33, 1000)], ids=str)
def test_both_ways(shape, first, second, scaled):
    leaves = _leaves(shape, first, second)
    scale = _scale(shape, second) if scaled else None
    y = norm_after(ResidualSum(*leaves[:2], scale), Affine(*leaves[2:], EPS))
    exact, wanted = _wanted(leaves, scale)
    assert y.dtype == first
    assert y.is_contiguous()
    assert_near(y, wanted, BOUND[first], "y")
    dy = torch.randn(shape, device=DEVICE).to(first)
    found = torch.autograd.grad(y, leaves, dy)
    gradients = torch.autograd.grad(wanted, exact, dy.double())
    for name, leaf, one, other in zip(("x", "z", "weight", "bias"), leaves, found, gradients, strict=True):
        assert one.dtype == leaf.dtype
        assert_near(one, other, 2 * BOUND[leaf.dtype], name)


def test_wide_under_autocast():
    """As torch's own: what goes on past the next layer keeps its digits."""
    leaves = _leaves((2, 40, 24), torch.float16, torch.float16)
    with torch.autocast(DEVICE, torch.float16):
        y = norm_after(ResidualSum(*leaves[:2], None), Affine(*leaves[2:], EPS))
    assert y.dtype == torch.float32
    assert_near(y, _wanted(leaves, None)[1], 2e-6)


def test_a_far_mean_costs_no_digits():
    """The variance is that of what is left when the mean is gone."""
    x, z, weight, bias = (t.detach() for t in _leaves((2, 20, 32), torch.float32, torch.float32))
    y = norm_after(ResidualSum(x + 1e4, z, None), Affine(weight, bias, EPS))
    assert_near(y, layer_norm((x + 1e4).double() + z, (32,), weight.double(), bias.double(), EPS), 1e-3)


def test_any_order_of_the_inputs():
    x, z, weight, bias = (t.detach() for t in _leaves((2, 50, 12), torch.float32, torch.float32))
    scale = _scale((2, 50, 12))
    turned = [t.permute(2, 0, 1).contiguous().permute(1, 2, 0) for t in (x, z)]
    turned_scale = scale.t().contiguous().t()
    for one, same in zip(
        sum_norm(ResidualSum(*turned, turned_scale), Affine(weight, bias, EPS), x.dtype),
        sum_norm(ResidualSum(x, z, scale), Affine(weight, bias, EPS), x.dtype),
        strict=True,
    ):
        assert torch.equal(one, same)


def test_registered():
    x, z, weight, bias = (t.detach() for t in _leaves((2, 20, 6), torch.float32, torch.float16))
    scale = _scale((2, 20, 6))
    torch.library.opcheck(torch.ops.statespan.sum_norm.default, (x, z, scale, weight, bias, EPS, torch.float32))
    torch.library.opcheck(torch.ops.statespan.sum_norm.default, (x, z, None, weight, bias, EPS, torch.float16))
    y, mean, rstd = sum_norm(ResidualSum(x, z, scale), Affine(weight, bias, EPS), torch.float32)
    torch.library.opcheck(
        torch.ops.statespan.sum_norm_backward.default, (x, z, scale, weight, mean, rstd, torch.randn_like(y))
    )


def test_what_does_not_fit():
    x = torch.randn(2, 3, 4, device=DEVICE)
    with use_path("triton"):
        assert after_fits(x, x.half())
        assert not after_fits(x.double(), x)
        assert not after_fits(x, x.double())
        assert not after_fits(x[:0], x[:0])
        assert not after_fits(x, x[:, :1])
        assert not after_fits(*[x.new_zeros(1, 1, 1025)] * 2)
    with use_path("chunks"):
        assert not after_fits(x, x.half())


@pytest.mark.parametrize("dropout", [{}, {"dropout": 0.4}, {"dropout": 0.4, "tie_dropout": False}], ids=str)
@pytest.mark.parametrize("lengths", [None, [40, 17]], ids=["whole", "padded"])
def test_a_block(lengths, dropout, monkeypatch):
    """On the kernels' path a block normalizes with them, and equals one on the plain path with the same chance."""
    block = ResidualBlock(S4D(3, 8, bidirectional=True, mix="linear"), norm="layer", prenorm=False, **dropout).to(
        DEVICE
    )
    torch.nn.init.normal_(block.norm.weight)
    x = torch.randn(2, 40, 3, device=DEVICE)
    given = torch.randn(2, 40, 3, device=DEVICE)
    if lengths is not None:
        lengths = torch.tensor(lengths, device=DEVICE)
        given.masked_fill_(torch.arange(40, device=DEVICE)[:, None] >= lengths[:, None, None], 0.0)

    def run(path):
        inputs = [x.clone().requires_grad_(), *block.parameters()]
        torch.manual_seed(5)
        with use_path(path):
            y = block(inputs[0], lengths=lengths)
        return [y.detach().masked_fill(given == 0.0, 0.0), *torch.autograd.grad(y, inputs, given)]

    calls, backward = [], kernels.backward
    monkeypatch.setattr(kernels, "backward", lambda *x: calls.append(x[0].scale is not None) or backward(*x))
    got = run("triton")
    assert calls == [dropout == {"dropout": 0.4}]
    wanted = run("chunks")
    assert len(calls) == 1
    for one, other in zip(got, wanted, strict=True):
        assert_near(one, other, 2e-5)


@pytest.mark.parametrize("part", ["norm", "dropout"])
def test_a_part_with_a_hook_is_called(part):
    """Whoever looks at the norm or the dropout sees what it makes: the kernels would go past it."""
    block, seen = ResidualBlock(S4D(6, 8, mix="linear"), prenorm=False, dropout=0.5).to(DEVICE), []
    getattr(block, part).register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    with use_path("triton"):
        y = block(torch.randn(2, 9, 6, device=DEVICE))
    assert len(seen) == 1
    assert seen[0].shape == y.shape


def test_a_compiler_has_its_own(monkeypatch):
    """There the sum and the norm become one kernel with what is around them."""
    block = ResidualBlock(S4D(6, 8, mix="linear"), prenorm=False).to(DEVICE)
    monkeypatch.setattr(kernels, "forward", lambda *_: pytest.fail("the kernel was called"))
    x = torch.randn(2, 9, 6, device=DEVICE)
    with use_path("triton"):
        compiled = torch.compile(block, backend="aot_eager", fullgraph=True)(x)
    with use_path("chunks"):
        assert_near(compiled, block(x), 2e-5)


def test_no_second_derivative():
    leaves = _leaves((1, 4, 3), torch.float32, torch.float32)
    y = norm_after(ResidualSum(*leaves[:2], None), Affine(*leaves[2:], EPS))
    (dx,) = torch.autograd.grad(y.square().sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match=r"second derivatives need use_path\('fft'\)"):
        dx.sum().backward()
