"""Batch normalization by kernels against a plain one in float64: results, gradients, running statistics."""

from itertools import product

import pytest
import torch

from statespan.nn import S4D, BatchNorm, ResidualBlock
from statespan.ops import use_path
from statespan.ops.batch_norm.operator import Norm, OutputLayout, batch, batch_fits, batch_norm, batch_norm_before
from tests.ops.make import assert_near, poison

pytest.importorskip("triton")

from statespan.ops.batch_norm import _triton as kernels

pytestmark = pytest.mark.share(5)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BOUND = {torch.float32: 4e-6, torch.float16: 1.5e-3}  # of the peak
EPS, MOMENTUM = 1e-5, 0.3
SHAPES = [(2, 5, 3), (3, 17, 5), (3, 130, 64), (1, 700, 129), (2, 33, 1000)]


@pytest.fixture(autouse=True)
def _poison(monkeypatch):
    poison(monkeypatch)


def _leaves(shape, dtype, wide=torch.float32):
    D = shape[2]
    x = 3.0 + torch.arange(D, device=DEVICE) % 7 + 2.0 * torch.randn(shape, device=DEVICE)
    weight, bias = (torch.randn(D, device=DEVICE) for _ in range(2))
    return [t.to(d).requires_grad_() for t, d in zip((x, weight, bias), (dtype, wide, wide), strict=True)]


def _running(D, dtype=torch.float32):
    return torch.randn(D, device=DEVICE).to(dtype), torch.rand(D, device=DEVICE).to(dtype)


def _lengths(shape, padded):
    """The first is empty where there are others, and the last is as long as all."""
    if not padded:
        return None
    B, L, _ = shape
    found = torch.linspace(0 if B > 1 else L // 2 + 1, L, B, device=DEVICE).long()
    return found.flip(0) if B == 3 else found


def _real(shape, lengths):
    B, L, _ = shape
    if lengths is None:
        return torch.ones(B, L, 1, dtype=torch.bool, device=DEVICE)
    return (torch.arange(L, device=DEVICE) < lengths[:, None])[..., None]


def _wanted(leaves, lengths, running):
    """As the papers have it, in float64."""
    exact = [t.detach().double().nan_to_num().requires_grad_() for t in leaves]
    x, weight, bias = exact
    real = _real(x.shape, lengths)
    some = x[real[..., 0]]  # (positions, D)
    mean, var = some.mean(0), some.var(0, unbiased=False)
    y = torch.where(real, (x - mean) / (var + EPS).sqrt() * weight + bias, 0.0)
    moved = [old.double() for old in running]
    if len(some) > 1:
        moved = [old + MOMENTUM * (new - old) for old, new in zip(moved, (mean, some.var(0)), strict=True)]
    return exact, y, moved


def _norm(leaves, running):
    return Norm(leaves[1], leaves[2], *running, MOMENTUM, EPS)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_both_ways(shape, dtype, padded):
    leaves, running, lengths = _leaves(shape, dtype), _running(shape[2]), _lengths(shape, padded)
    real = _real(shape, lengths)
    with torch.no_grad():
        leaves[0].masked_fill_(~real, torch.nan)  # whatever it is, it has no part in it
    y, moved = batch_norm(leaves[0], lengths, _norm(leaves, running))
    exact, wanted, statistics = _wanted(leaves, lengths, running)
    assert y.dtype == dtype
    assert y.is_contiguous()
    assert_near(y, wanted, BOUND[dtype], "y")
    for name, one, other in zip(("mean", "var"), moved, statistics, strict=True):
        assert_near(one, other, 4e-6, name)
    dy = torch.randn(shape, device=DEVICE).to(dtype)
    found = torch.autograd.grad(y, leaves, dy)
    gradients = torch.autograd.grad(wanted, exact, dy.double())
    assert not found[0].masked_select(~real).any()
    for name, leaf, one, other in zip(("x", "weight", "bias"), leaves, found, gradients, strict=True):
        assert one.dtype == leaf.dtype
        assert_near(one, other, 4 * BOUND[leaf.dtype], name)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_before(shape, dtype, padded):
    """The order in memory, x that goes on beside it, and the sum of both gradients."""
    leaves, running, lengths = _leaves(shape, dtype), _running(shape[2]), _lengths(shape, padded)
    same, y, moved = batch_norm_before(leaves[0], lengths, _norm(leaves, running), torch.float16)
    exact, wanted, statistics = _wanted(leaves, lengths, running)
    assert torch.equal(same, leaves[0])
    assert y.dtype == torch.float16
    assert y.permute(2, 0, 1).is_contiguous()
    assert_near(y, wanted, BOUND[torch.float16], "y")
    for name, one, other in zip(("mean", "var"), moved, statistics, strict=True):
        assert_near(one, other, 4e-6, name)
    dy, beside = torch.randn(shape, device=DEVICE).half(), torch.randn(shape, device=DEVICE).to(dtype)
    found = torch.autograd.grad((y, same), leaves, (dy, beside))
    gradients = torch.autograd.grad((wanted, exact[0] * 1.0), exact, (dy.double(), beside.double()))
    for name, leaf, one, other in zip(("x", "weight", "bias"), leaves, found, gradients, strict=True):
        assert one.dtype == leaf.dtype
        assert_near(one, other, 4 * BOUND[leaf.dtype], name)


def test_a_far_mean_costs_no_digits():
    """Neither in a tile, nor between tiles and sequences, nor in the running statistics."""
    leaves, running = _leaves((3, 200, 32), torch.float32), _running(32)
    with torch.no_grad():
        leaves[0] += 1e4
    lengths = torch.tensor([200, 7, 90], device=DEVICE)
    y, moved = batch_norm(leaves[0], lengths, _norm(leaves, running))
    _, wanted, statistics = _wanted(leaves, lengths, running)
    assert_near(y, wanted, 1e-3)
    assert_near(moved.var, statistics[1], 1e-3)


def test_one_position_teaches_the_running_statistics_nothing():
    leaves, running = _leaves((2, 5, 4), torch.float32), _running(4)
    for lengths in ([0, 1], [0, 0]):
        y, moved = batch_norm(leaves[0], torch.tensor(lengths, device=DEVICE), _norm(leaves, running))
        assert all(torch.equal(one, other) for one, other in zip(moved, running, strict=True))
        assert torch.equal(y[1, 0], leaves[2] if lengths[1] else torch.zeros_like(leaves[2]))
        assert all(found.isfinite().all() for found in torch.autograd.grad(y.sum(), leaves))


def test_any_order_of_the_input():
    leaves, running = _leaves((2, 50, 12), torch.float32), _running(12)
    turned = leaves[0].detach().permute(2, 0, 1).contiguous().permute(1, 2, 0)
    norm = _norm([leaf.detach() for leaf in leaves], running)
    for one, same in zip(
        batch(turned, None, Norm(*norm), OutputLayout(False, torch.float32)),
        batch(leaves[0].detach(), None, Norm(*norm), OutputLayout(False, torch.float32)),
        strict=True,
    ):
        assert torch.equal(one, same)


def test_registered():
    x, weight, bias = (t.detach() for t in _leaves((2, 20, 6), torch.float32))
    lengths, running = torch.tensor([20, 5], device=DEVICE), _running(6)
    given = (weight, bias, *running, MOMENTUM, EPS)
    ops = torch.ops.statespan
    torch.library.opcheck(ops.batch_norm.default, (x, lengths, *given, True, torch.float16))
    torch.library.opcheck(ops.batch_norm.default, (x, None, *given, False, torch.float32))
    y, mean, rstd, count, *_ = batch(x, lengths, Norm(*given), OutputLayout(False, torch.float32))
    assert count.tolist() == [25.0]
    dy = torch.randn_like(y)
    torch.library.opcheck(
        ops.batch_norm_backward.default, (x, lengths, weight, mean, rstd, count, dy, None, False)
    )  # fmt: skip
    turned = torch.randn(6, 2, 20, device=DEVICE)
    torch.library.opcheck(ops.batch_norm_backward.default, (x, None, weight, mean, rstd, count, turned, dy, True))


def test_what_does_not_fit():
    x = torch.randn(2, 3, 4, device=DEVICE)
    with use_path("triton"):
        assert batch_fits(x)
        assert not batch_fits(x.double())
        assert not batch_fits(x[:0])
        assert not batch_fits(x[:1, :1])
        assert not batch_fits(x.new_zeros(1, 2, 1025))
    with use_path("chunks"):
        assert not batch_fits(x)


def blocks():
    """Precision, padding and order: four cases with every pair of them now, the other four in the soak."""
    for autocast, padded, prenorm in product([False, True], repeat=3):
        name = f"{'16' if autocast else '32'}-{'padded' if padded else 'whole'}-{'before' if prenorm else 'after'}"
        marks = [pytest.mark.soak] * (autocast ^ padded ^ prenorm)
        yield pytest.param(autocast, [40, 17] if padded else None, prenorm, id=name, marks=marks)


@pytest.mark.parametrize(("autocast", "lengths", "prenorm"), [*blocks()])
def test_a_block(autocast, lengths, prenorm, monkeypatch):
    """On the kernels' path a block normalizes with them, and equals one on the plain path; in evaluation, too."""
    x = torch.randn(2, 40, 3, device=DEVICE)
    given = torch.randn(2, 40, 3, device=DEVICE)
    if lengths is not None:
        lengths = torch.tensor(lengths, device=DEVICE)
        given.masked_fill_(torch.arange(40, device=DEVICE)[:, None] >= lengths[:, None, None], 0.0)
    calls, backward = [], kernels.backward
    monkeypatch.setattr(kernels, "backward", lambda *x: calls.append(x[-1]) or backward(*x))

    def run(path):
        torch.manual_seed(5)
        block = ResidualBlock(S4D(3, 8, bidirectional=True, mix="linear"), norm="batch", prenorm=prenorm).to(DEVICE)
        torch.nn.init.normal_(block.norm.weight)
        inputs = [x.clone().requires_grad_(), *block.parameters()]
        with use_path(path), torch.autocast(DEVICE, torch.float16, enabled=autocast):
            if autocast:
                monkeypatch.setattr(block.layer, "working_dtype", lambda x: torch.float16)  # as on a GPU
            y = block(inputs[0], lengths=lengths)
            found = [y.detach().masked_fill(given == 0.0, 0.0), *torch.autograd.grad(y, inputs, given)]
            later = block.eval()(x, lengths=lengths).masked_fill(given == 0.0, 0.0)
        return [*found, *block.buffers(), later.detach()]

    got = run("triton")
    assert calls == [prenorm and autocast]  # turned for an engine of 16 bits
    wanted = run("chunks")
    assert len(calls) == 1
    bound = 0.01 if autocast else 2e-5
    for one, other in zip(got, wanted, strict=True):  # a bias in front of the norm has no gradient but rounding
        assert (one - other).abs().max() <= bound * max(1.0, other.abs().max())


def test_a_norm_with_a_hook_is_called():
    block, seen = ResidualBlock(S4D(6, 8, mix="linear"), norm="batch").to(DEVICE), []
    block.norm.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    with use_path("triton"), torch.autocast(DEVICE, torch.bfloat16):
        block(torch.randn(2, 9, 6, device=DEVICE))
        block.norm.before(torch.randn(3, 4, 6, device=DEVICE), None, torch.float16)
    assert [tuple(output.shape) for output in seen] == [(2, 9, 6), (3, 4, 6)]


@pytest.mark.parametrize("prenorm", [True, False], ids=["before", "after"])
def test_compiled(prenorm):
    """Results and running statistics are the same; behind a layer a compiler has its own kernels."""
    x = torch.randn(2, 30, 6, device=DEVICE)
    lengths = torch.tensor([30, 11], device=DEVICE)
    block = ResidualBlock(S4D(6, 8, mix="linear"), norm="batch", prenorm=prenorm).to(DEVICE)
    other = ResidualBlock(S4D(6, 8, mix="linear"), norm="batch", prenorm=prenorm).to(DEVICE)
    other.load_state_dict(block.state_dict())
    with use_path("triton"), torch.autocast(DEVICE, torch.bfloat16):
        y = torch.compile(block, backend="aot_eager", fullgraph=True)(x, lengths=lengths)
        wanted = other(x, lengths=lengths)
    real = _real(x.shape, lengths)
    assert_near(y * real, wanted * real, 0.02)
    for one, same in zip(block.buffers(), other.buffers(), strict=True):
        assert one.any()
        assert_near(one, same, 1e-5 if prenorm else 0.02)


def test_as_torch():
    """Without padding: torch's own, also for the running statistics of several batches."""
    norm, other = BatchNorm(7, momentum=0.2).to(DEVICE), torch.nn.BatchNorm1d(7, momentum=0.2).to(DEVICE)
    for _ in range(3):
        x = torch.randn(4, 25, 7, device=DEVICE) * 2 + 1
        with use_path("triton"):
            y = norm(x)
        assert_near(y, other(x.mT).mT, 4e-6)
    for name in ("running_mean", "running_var"):
        assert_near(getattr(norm, name), getattr(other, name), 4e-6)


def test_no_second_derivative():
    leaves = _leaves((2, 4, 3), torch.float32)
    y, _ = batch_norm(leaves[0], None, _norm(leaves, _running(3)))
    (dx,) = torch.autograd.grad(y.square().sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match=r"second derivatives need use_path\('fft'\)"):
        dx.sum().backward()


def test_a_single_number_has_no_variance():
    """As torch has it, wherever it is computed."""
    norm, x = BatchNorm(4).to(DEVICE), torch.ones(1, 1, 4, device=DEVICE)
    with use_path("triton"):
        for normalize in (norm, lambda x: norm.before(x, None, torch.float16)):
            with pytest.raises(ValueError, match="more than 1 value per channel"):
                normalize(x)
    assert (norm.running_var == 1).all()
