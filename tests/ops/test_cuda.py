"""Applying an SSM on a GPU at every size that people use, against float64. Skipped where there is none."""

import pytest
import torch

from statespan import S4, S4D
from statespan.ops import apply, chunked, linear_glu
from statespan.ops._triton import launcher
from statespan.ops.glu.float32 import float32_linear, float32_linear_fits
from statespan.ssm import DPLR, Diagonal
from tests.ops.make import assert_near
from tests.ssm.make import make

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

LENGTHS = [1, 2, 31, 32, 33, 63, 64, 65, 100, 1000, 1023, 4096, 16384, 65536, 2**20]
# Two of these four for each length: each length meets both types and both uses, its neighbours the other structure.
USES = [
    (torch.float32, False, "diagonal-trained"),
    (torch.bfloat16, True, "diagonal-trained"),
    (torch.float32, True, "dplr-legs"),
    (torch.bfloat16, False, "dplr-legs"),
]


def sizes(length):
    """(batch, d_model, d_state) to be used in turn."""
    if length <= 100:
        return [(3, 7, 16), (64, 512, 64), (1, 1, 2), (17, 64, 64), (16, 7, 256)]
    if length <= 4096:
        return [(16, 64, 16), (1, 512, 64), (64, 64, 64), (3, 7, 256)]
    return [(1, 64, 64), (16, 7, 16), (3, 1, 2)] if length <= 65536 else [(1, 7, 64), (3, 1, 16)]


def grid():
    for i, length in enumerate(LENGTHS):
        for j in range(2):
            options = sizes(length)
            yield length, *options[(2 * i + j) % len(options)], *USES[2 * (i % 2) + j]


RANK_2 = [
    (1000, 16, 64, 64, torch.bfloat16, False, "dplr-legt"),
    (1000, 16, 64, 64, torch.float32, True, "dplr-legt"),
    (16384, 1, 7, 128, torch.bfloat16, True, "dplr-legt"),
    (4096, 3, 7, 256, torch.float32, False, "dplr-legt"),
]
GRID = [*grid(), *RANK_2]


def moved(ssm, heads, dtype):
    """The SSM of these heads on the GPU, C in this dtype and trained."""
    A, B, dt = (x[heads].cuda() for x in (ssm.A, ssm.B, ssm.dt))
    C = ssm.C[:, heads].to("cuda", dtype).requires_grad_()
    if isinstance(ssm, DPLR):
        return DPLR(A, ssm.P[:, heads].cuda(), B, C, dt=dt, discretization="bilinear")
    return Diagonal(A, B, C, dt, discretization="bilinear")


def truth(ssm, u, weights, both):
    """y and the gradients of u and C in float64."""
    x = u.double().requires_grad_()
    y, _ = chunked(ssm, x, chunk=64 if u.shape[1] <= 4096 else 1024, bidirectional=both)
    return [y, *torch.autograd.grad(y, [x, ssm.C], weights.double())]


def fast(ssm, u, weights, both):
    x = u.requires_grad_()
    y = apply(ssm, x, bidirectional=both)
    assert y.dtype == u.dtype
    return [y.detach(), *torch.autograd.grad(y, [x, ssm.C], weights)]


def relative(got, wanted):
    return ((got - wanted).norm() / wanted.norm()).item()


def name(case):
    length, batch, heads, d_state, dtype, both, kind = case
    return f"{length}-{batch}x{heads}x{d_state}-{dtype}-{'both' if both else 'causal'}-{kind}"


@pytest.mark.parametrize(("length", "batch", "heads", "d_state", "dtype", "both", "kind"), GRID, ids=map(name, GRID))
def test_every_size(length, batch, heads, d_state, dtype, both, kind):
    ssm = make(kind, d_state, "bilinear", H=heads, channels=2 if both else 1)
    u = torch.randn(batch, length, heads, device="cuda").to(dtype)
    weights = torch.randn(batch, length, 1, heads, device="cuda").to(dtype)
    some = sorted({0, heads // 2, heads - 1})
    got = fast(moved(ssm, slice(None), torch.complex64), u, weights, both)
    got = [got[0][..., some], got[1][..., some], got[2][:, some]]
    wanted = truth(moved(ssm, some, torch.complex128), u.detach()[..., some], weights[..., some], both)
    if dtype == torch.float32:
        for what, bound, one, other in zip(("y", "u", "C"), (4e-6, 2e-5, 2e-5), got, wanted, strict=True):
            assert_near(one, other, bound, what)
    else:  # inputs, operators, states and outputs are each rounded by 2^-9 in the mean, and errors add in squares
        assert relative(got[0], wanted[0]) <= 1e-2
        assert relative(got[1], wanted[1]) <= 1e-2
        assert relative(got[2], wanted[2]) <= 2e-2


def lightly_damped(ssm):
    """The same modes, which keep most of what they saw 65,536 samples ago."""
    A = torch.complex(torch.full_like(ssm.A.real, -1e-4), ssm.A.imag)
    if isinstance(ssm, DPLR):
        return DPLR(A, 0.01 * ssm.P, ssm.B, ssm.C, dt=ssm.dt, discretization="bilinear")
    return Diagonal(A, ssm.B, ssm.C, ssm.dt, discretization="bilinear")


@pytest.mark.parametrize(("batch", "length"), [(64, 1024), (16, 4000), (2, 65536)])
@pytest.mark.parametrize("damping", ["default", "light"])
@pytest.mark.parametrize("kind", ["diagonal-legs", "dplr-legs"])
def test_float32_promise(kind, damping, batch, length):
    """docs/promises.md: outputs of the chunks agree with those of float64 to 2e-6 of the peak."""
    ssm = make(kind, 64, "bilinear", H=16, channels=1)
    if damping == "light":
        ssm = lightly_damped(ssm)
        assert (ssm.dt.max() * ssm.A.real.min() * 65536).exp() > 0.5
    u = torch.randn(batch, length, 16, device="cuda")
    weights = torch.randn(batch, length, 1, 16, device="cuda")
    got = fast(moved(ssm, slice(None), torch.complex64), u, weights, False)
    wanted = truth(moved(ssm, slice(None), torch.complex128), u.detach(), weights, False)
    for name, one, other, bound in zip(("y", "u", "C"), got, wanted, (2e-6, 2e-6, 2e-5), strict=True):
        assert_near(one, other, bound, name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("kind", ["diagonal-trained", "dplr-legs", "dplr-legt"])
def test_same_bits_every_time(kind, both, dtype):
    """Also where a sequence is cut into segments and the gradients are sums over many tiles."""
    ssm = moved(make(kind, 64, "bilinear", H=64, channels=2 if both else 1), slice(None), torch.complex64)
    for batch, length in ((3, 10_000), (40, 1000)):
        u = torch.randn(batch, length, 64, device="cuda").to(dtype)
        weights = torch.randn(batch, length, 1, 64, device="cuda").to(dtype)
        for one, other in zip(fast(ssm, u, weights, both), fast(ssm, u, weights, both), strict=True):
            assert torch.equal(one, other)


def test_more_than_two_billion_numbers():
    """Addresses need more than 32 bits: the last sequence and the last feature come out as if alone."""
    batch, length, heads = 65, 65536, 512
    assert batch * length * heads > 2**31
    ssm = make("diagonal-trained", 16, "bilinear", H=heads, channels=1)
    u = torch.randn(batch, length, heads, device="cuda", dtype=torch.bfloat16)
    weights = torch.randn(batch, length, 1, heads, device="cuda", dtype=torch.bfloat16)
    y, gradient, _ = fast(moved(ssm, slice(None), torch.complex64), u, weights, False)
    for row, head in ((0, 0), (0, heads - 1), (batch - 1, 0), (batch - 1, heads - 1)):
        b, h = slice(row, row + 1), [head]
        wanted = truth(moved(ssm, h, torch.complex128), u.detach()[b][..., h], weights[b][..., h], False)
        assert relative(y[b][..., h], wanted[0]) <= 1e-2, (row, head)
        assert relative(gradient[b][..., h], wanted[1]) <= 1e-2, (row, head)


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize(("positions", "features"), [(65536, 512), (40001, 513)])
def test_float32_linear_maps(positions, features, gated):
    """By float16 products where the GPU is fast at them; the same bits every time."""
    rows = 2 * features if gated else features
    shapes = ((features, positions), (rows, features), (rows,), (positions, features))
    y, weight, bias, dout = (torch.randn(*s, device="cuda") for s in shapes)
    inputs = [y.t(), weight / features**0.5, bias]
    assert float32_linear_fits(*inputs) == (torch.cuda.get_device_capability()[0] >= 9)

    def results(function, inputs, dout):
        leaves = [x.detach().requires_grad_() for x in inputs]
        out = function(*leaves)
        return [out.detach(), *torch.autograd.grad(out, leaves, dout)]

    def exact(x, weight, bias):
        z = torch.nn.functional.linear(x, weight, bias)
        return torch.nn.functional.glu(z, -1) if gated else z

    def fast(x, weight, bias):
        return linear_glu(x, weight, bias) if gated else float32_linear(x, weight, bias, gated=False)

    got = results(fast, inputs, dout)
    wanted = results(exact, [x.double() for x in inputs], dout.double())
    for what, one, other in zip(("y", "x", "weight", "bias"), got, wanted, strict=True):
        assert_near(one, other, 2e-6, what)
    assert all(map(torch.equal, got, results(fast, inputs, dout)))


def test_compiled_float32_maps():
    """The operator in torch.compile's graph, against the same in eager mode."""
    y, weight, bias = (torch.randn(*s, device="cuda") for s in ((512, 32768), (1024, 512), (1024,)))
    leaves = [x.requires_grad_() for x in (y.t().detach(), weight, bias)]
    results = []
    for function in (linear_glu, torch.compile(linear_glu, fullgraph=True)):
        out = function(*leaves)
        results.append([out.detach(), *torch.autograd.grad(out.square().sum(), leaves)])
    for one, other in zip(*results, strict=True):
        assert_near(one, other, 2e-6)


LAYERS = [
    (S4D, {}), (S4, {}), (S4, {"init": "legt"}), (S4D, {"bidirectional": True}), (S4, {"n_ssm": 2}),
    (S4D, {"channels": 2}),
]  # fmt: skip
WITH_SUMS = [{"channels": 2}]  # over channels, by operations of torch


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("batch", "length"), [(64, 1024), (3, 1000), (1, 20_000)])
@pytest.mark.parametrize(("cls", "options"), LAYERS, ids=str)
def test_repeated_launches_have_the_same_bits(cls, options, batch, length, dtype, monkeypatch):
    """Recorded, repeated, repeated on another stream, and launched in the ordinary way."""
    monkeypatch.setattr(launcher, "_recorded", {})
    layer = cls(32, 64, **options).cuda()
    x = torch.randn(batch, length, 32, device="cuda").to(dtype).requires_grad_()

    def run():
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
            y = layer(x)
        return [y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], torch.ones_like(y))]

    results = [run(), run()]
    if dtype == torch.bfloat16 and options not in WITH_SUMS:
        assert len(launcher._recorded) >= 4
        assert None not in launcher._recorded.values()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        results.append(run())
    torch.cuda.current_stream().wait_stream(stream)
    monkeypatch.setattr(launcher, "_has_entry", lambda x: False)
    results.append(run())
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert torch.equal(one, two)
