"""Linear maps of float32 features by float16 products against float64, forward and in every gradient."""

import pytest
import torch
from torch.nn.functional import glu, linear

from statespan.ops import fusion, linear_glu, use_path
from statespan.ops.glu import float32, operator
from statespan.ops.glu.float32 import LinearOptions, float32_linear, float32_linear_fits, linear_of_halves
from tests.ops.make import assert_near, poison

pytest.importorskip("triton")

from statespan.ops._triton.halves import BLOCK, split
from statespan.ops.glu import _triton_float32 as kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BOUND = 1e-6  # of the peak; float32 promises 2e-6
SHAPES = [(1, 1, 1, True), (200, 150, 70, True), (129, 64, 65, False), (1100, 130, 40, True)]
"""Positions, features, outputs, gated: less than a block and more, and a weight's gradient in two shares."""


@pytest.fixture(autouse=True)
def _poison(monkeypatch):
    poison(monkeypatch)


def drawn(positions, features, outputs, gated):
    """x in the engine's order, the weight, the bias, and the output's gradient."""
    rows = 2 * outputs if gated else outputs
    shapes = ((features, positions), (rows, features), (rows,), (positions, outputs))
    y, weight, bias, dout = (torch.randn(*s, device=DEVICE) for s in shapes)
    return y.t(), weight / features**0.5, bias, dout


def plain(x, weight, bias, gated):
    z = linear(x, weight, bias)
    return glu(z, -1) if gated else z


def with_gradients(function, x, weight, bias, *, dout, gated):
    leaves = [t.detach().requires_grad_() for t in (x, weight, bias)]
    y = function(*leaves, gated=gated)
    return [y, *torch.autograd.grad(y, leaves, dout)]


def assert_exact(got, x, weight, bias, *, dout, gated):
    """Within the bound of float64."""
    exact = [t.double() for t in (x, weight, bias)]
    wanted = with_gradients(plain, *exact, dout=dout.double(), gated=gated)
    for name, one, other in zip(("y", "x", "weight", "bias"), got, wanted, strict=True):
        assert one.dtype == torch.float32
        assert_near(one, other, BOUND, name)


@pytest.mark.parametrize(("positions", "features", "outputs", "gated"), SHAPES)
def test_every_gradient(positions, features, outputs, gated):
    *inputs, dout = drawn(positions, features, outputs, gated)
    got = with_gradients(float32_linear, *inputs, dout=dout, gated=gated)
    assert got[0].is_contiguous()
    assert got[1].t().is_contiguous()
    assert_exact(got, *inputs, dout=dout, gated=gated)
    with torch.no_grad():
        assert torch.equal(float32_linear(*inputs, gated=gated), got[0])


def test_any_order_in_memory():
    x, weight, bias, dout = drawn(150, 30, 20, True)
    x, weight = x.contiguous(), weight.t().contiguous().t()
    dout = dout[:, :1].expand_as(dout)
    got = with_gradients(float32_linear, x, weight, bias, dout=dout, gated=True)
    assert_exact(got, x, weight, bias, dout=dout, gated=True)


@pytest.mark.parametrize(("size", "weight_size", "gradient_size"), [(1e20, 1e-20, 1e-5), (1e-25, 1e25, 1e-8)])
def test_sizes_that_float16_does_not_have(size, weight_size, gradient_size):
    x, weight, bias, dout = drawn(200, 150, 70, True)
    inputs, dout = (x * size, weight * weight_size, bias), dout * gradient_size
    assert_exact(with_gradients(float32_linear, *inputs, dout=dout, gated=True), *inputs, dout=dout, gated=True)


def test_positions_of_very_different_size():
    """A block has one scale: what is 1e-5 of its peak is as exact, relative to its own peak."""
    x, weight, bias, _ = drawn(128, 150, 40, False)
    small = torch.arange(128, device=DEVICE) % 3 == 0
    x = torch.where(small[:, None], x * 1e-5, x)
    got = float32_linear(x, weight, bias * 0, gated=False)
    wanted = x.double() @ weight.double().t()
    for rows in (small, ~small):
        assert_near(got[rows], wanted[rows], BOUND)


def test_split_numbers():
    """22 bits down to 2^-18 of a block's peak, and 2^-40 of the peak below."""
    sizes = torch.logspace(-60, 0, 200, base=2, device=DEVICE)[:, None]
    x = torch.randn(200, 300, device=DEVICE) * sizes
    planes, inverse = split(x)
    assert planes.shape == (2, 256, 384)
    assert inverse.shape == (2, 3)
    assert not planes[:, 200:].any()
    assert not planes[:, :, 300:].any()
    whole = planes.double().sum(0) * inverse.double().repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    peak = torch.nn.functional.max_pool2d(torch.nn.functional.pad(x.abs(), (0, 84, 0, 56))[None], BLOCK)[0]
    peak = peak.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:200, :300].double()
    assert ((whole[:200, :300] - x).abs() <= torch.maximum(x.abs().double() * 2**-22, peak * 2**-39)).all()
    first_half_and_second = split(torch.arange(6.0, device=DEVICE)[:, None], gated=True)
    assert (first_half_and_second.planes[0, :6, 0] * first_half_and_second.inverse[0, 0]).tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.filterwarnings("ignore:invalid value")  # of the interpreter: an infinite number less itself
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_a_number_that_is_not_finite_spoils_its_position_alone(bad):
    x, weight, bias, dout = drawn(140, 20, 10, True)
    x = x.clone()
    x[7, 3] = bad
    got = with_gradients(float32_linear, x, weight, bias, dout=dout, gated=True)
    rest = torch.arange(140, device=DEVICE) != 7
    assert got[0][7].isnan().all()
    wanted = with_gradients(plain, *(t.double() for t in (x, weight, bias)), dout=dout.double(), gated=True)
    for one, other in zip(got[:2], wanted[:2], strict=True):
        assert_near(one[rest], other[rest], BOUND)


def test_twice_from_one_graph_and_second_derivatives():
    *inputs, dout = drawn(30, 6, 5, True)
    leaves = [t.requires_grad_() for t in inputs]
    exact = [t.detach().double().requires_grad_() for t in leaves]
    y, wanted = float32_linear(*leaves, gated=True), plain(*exact, True)
    first = torch.autograd.grad(y, leaves, dout, retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(y, leaves, dout, retain_graph=True)))
    got = torch.autograd.grad(y, leaves, dout, create_graph=True)
    slopes = torch.autograd.grad(wanted, exact, dout.double(), create_graph=True)
    for one, other in zip(got, slopes, strict=True):
        assert_near(one, other, BOUND)
    got = torch.autograd.grad([t.square().sum() for t in got], leaves)
    for one, other in zip(got, torch.autograd.grad([t.square().sum() for t in slopes], exact), strict=True):
        assert_near(one, other, 2e-6)


def test_compiled():
    *inputs, dout = drawn(140, 6, 5, True)
    compiled = torch.compile(float32_linear, backend="aot_eager", fullgraph=True)
    assert_exact(with_gradients(compiled, *inputs, dout=dout, gated=True), *inputs, dout=dout, gated=True)


def test_registered_as_torch_demands():
    x, weight, bias, _ = drawn(20, 6, 5, True)
    for gated in (True, False):
        out, z = torch.ops.statespan.float32_linear(x, weight, bias, gated, True)
        assert z.shape == ((20, 10) if gated else (0,))
        torch.library.opcheck(
            torch.ops.statespan.float32_linear, (x, weight, bias, gated, True),
            test_utils=("test_schema", "test_faketensor"),
        )  # fmt: skip
        torch.library.opcheck(
            torch.ops.statespan.float32_linear_backward, (x, weight, z, torch.randn_like(out), gated),
            test_utils=("test_schema", "test_faketensor"),
        )  # fmt: skip
    out, z = linear_of_halves(x, weight, bias, LinearOptions(True, False))
    assert (out.shape, z.shape) == ((20, 5), (0,))


def test_layers_take_it(monkeypatch):
    """The gate's layer, and a plain one behind the engine."""
    calls = []

    def counted(*inputs, gated):
        calls.append(gated)
        return float32_linear(*inputs, gated=gated)

    for module in (operator, fusion):
        monkeypatch.setattr(module, "float32_linear_fits", lambda *_: True)
        monkeypatch.setattr(module, "float32_linear", counted)
    x, weight, bias, dout = drawn(40, 6, 5, True)
    with use_path("triton"):
        got = with_gradients(lambda *inputs, gated: linear_glu(*inputs), x, weight, bias, dout=dout, gated=True)
    assert_exact(got, x, weight, bias, dout=dout, gated=True)
    y = x.t().reshape(3, 2, 4, 10).permute(2, 3, 0, 1)
    mix = torch.nn.Linear(6, 5, device=DEVICE)
    got = fusion.mix_features(y, torch.nn.Identity(), mix)
    assert calls == [True, False]
    assert_near(got, linear(y.flatten(2).double(), mix.weight.double(), mix.bias.double()), BOUND)


@pytest.mark.parametrize(("precision", "full"), [("highest", True), ("high", False), ("medium", False)])
def test_users_choose_the_precision(precision, full):
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        assert float32._is_full_precision() is full
    finally:
        torch.set_float32_matmul_precision(before)


class Sized:
    """The shape, dtype and device of a tensor that is not there."""

    dtype, device, is_cuda = torch.float32, torch.device("cuda"), True

    def __init__(self, *shape):
        self.shape = shape


@pytest.mark.parametrize(
    ("positions", "features", "outputs", "fits"),
    [(65536, 512, 1024, True), (16384, 512, 1024, True), (16383, 512, 1024, False), (1 << 20, 127, 1024, False),
     (1 << 20, 1024, 127, False), (1 << 23, 128, 128, True), (1 << 24, 128, 128, False)],
)  # fmt: skip
def test_large_maps_in_float32_alone(positions, features, outputs, fits, monkeypatch):
    """A quarter of the size is large in compiled code, where a launch costs less."""
    monkeypatch.setattr(float32, "_is_capable", lambda _: True)
    monkeypatch.setattr(float32, "kernels_run", lambda _: True)
    x, weight, bias = Sized(positions, features), Sized(outputs, features), Sized(outputs)
    assert float32_linear_fits(x, weight, bias) is fits
    with monkeypatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        patch.setattr(float32, "exporting", lambda: False)
        assert float32_linear_fits(Sized(positions // 4 + 1, features), weight, bias) is (min(features, outputs) > 127)
        patch.setattr(float32, "exporting", lambda: True)
        assert not float32_linear_fits(x, weight, bias)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "is_autocast_enabled", lambda kind: kind == "cuda")
        assert not float32_linear_fits(x, weight, bias)
    weight.dtype = torch.bfloat16
    assert not float32_linear_fits(x, weight, bias)


def test_shares_fill_the_gpu():
    """A whole number of times, as nearly as 16 shares can."""
    assert kernels._positions_per_share(65536, 64, 396) == 10944  # six shares: 384 of 396 programs
    assert kernels._positions_per_share(65536, 256, 396) == 21856  # three: 768 of twice 396
    assert kernels._positions_per_share(512, 1, 396) == 512
