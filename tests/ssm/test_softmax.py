"""The softmax-normalized kernel of DSS, its dependence on the length, and its guard against growth."""

import mpmath
import pytest
import torch

from statespan.ops import chunked, fftconv
from statespan.ssm import Diagonal
from tests.ssm.make import make, peak_error

mpmath.mp.dps = 60


def softmax(ssm, length):
    return Diagonal(ssm.A, ssm.B, ssm.C, ssm.dt, discretization="zoh", softmax_length=length)


def by_definition(ssm, length):
    """2 Re Σ C B/A · softmax over ``softmax_length`` samples, in many digits."""
    out = torch.zeros(ssm.channels, ssm.heads, length, dtype=torch.float64)
    for h in range(ssm.heads):
        z = [mpmath.mpf(ssm.dt[h].item()) * mpmath.mpc(a.item()) for a in ssm.A[h]]
        sums = [mpmath.fsum(mpmath.exp(r * x) for r in range(ssm.softmax_length)) for x in z]
        for k in range(ssm.channels):
            parts = zip(ssm.C[k, h], ssm.B[h], ssm.A[h], z, sums, strict=True)
            weights = [mpmath.mpc((c * b).item()) / mpmath.mpc(a.item()) / s for c, b, a, _, s in parts]
            for t in range(length):
                terms = [2 * (w * mpmath.exp(t * x)).real for w, x in zip(weights, z, strict=True)]
                out[k, h, t] = float(mpmath.fsum(terms))
    return out


@pytest.mark.parametrize("kind", ["diagonal-legs", "diagonal-inv", "diagonal-trained"])
@pytest.mark.parametrize("length", [1, 2, 17, 64])
def test_definition(kind, length):
    ssm = softmax(make(kind, 8, "zoh"), length)
    assert peak_error(ssm.kernel(length), by_definition(ssm, length)) <= 1e-11


@pytest.mark.parametrize("length", [5, 20, 33])
def test_other_lengths_than_that_of_the_softmax(length):
    ssm = softmax(make("diagonal-legs", 8, "zoh"), 20)
    assert peak_error(ssm.kernel(length), by_definition(ssm, length)) <= 1e-11


@pytest.mark.parametrize("growth", [0.01, 3.0])
def test_growing_modes(growth):
    ssm = make("diagonal-trained", 8, "zoh", dt_min=0.1, dt_max=0.2)
    ssm.A = torch.complex(torch.where(ssm.A.imag > 0, growth, -0.5).double(), ssm.A.imag)
    assert (ssm.A.real > 0).any()
    ssm = softmax(ssm, 50)
    for length in (20, 50, 90):
        wanted = by_definition(ssm, length)
        assert ((ssm.kernel(length) - wanted).abs() / wanted.abs().cummax(-1).values).max() <= 1e-10
    impulse = torch.zeros(1, 90, 2, dtype=torch.float64)
    impulse[:, 0] = 1
    for y, _ in (ssm.scan(impulse), chunked(ssm, impulse, chunk=16)):
        assert peak_error(y[0].permute(1, 2, 0), by_definition(ssm, 90)) <= 1e-10


def test_growth_far_beyond_the_length_of_the_softmax():
    """The beginning of a long kernel does not depend on how long it is."""
    A = torch.tensor([[0.01 + 1j, 0.5 + 2j]], dtype=torch.complex128)
    one = torch.ones(1, 1, 2, dtype=torch.complex128)
    ssm = Diagonal(A, one[0], one, torch.tensor([0.1]), discretization="zoh", softmax_length=1024)
    short, long = ssm.kernel(1024), ssm.kernel(100_000)
    assert torch.isfinite(long).all()
    torch.testing.assert_close(long[..., :1024], short, rtol=1e-9, atol=1e-12)


def test_growth_that_would_overflow():
    """Re A · Δ · L = 1600: exp of it is infinite, the softmax is one at the end of the kernel."""
    A = torch.tensor([[0.8 + 0.1j]], dtype=torch.complex128)
    ssm = Diagonal(
        A,
        A,
        torch.ones(1, 1, 1, dtype=torch.complex128),
        torch.tensor([1.0]),
        discretization="zoh",
        softmax_length=2000,
    )
    kernel = ssm.kernel(2000)
    assert torch.isfinite(kernel).all()
    ratio = 1 - mpmath.exp(-mpmath.mpc(0.8, 0.1))
    assert kernel[0, 0, -1].item() == pytest.approx(float(2 * ratio.real), rel=1e-12)
    assert kernel[0, 0, 0].item() == 0.0


def test_recurrence_and_chunks_agree_with_the_kernel():
    ssm = softmax(make("diagonal-legs", 8, "zoh"), 64)
    u = torch.randn(2, 64, 2, dtype=torch.float64)
    y, end = ssm.scan(u)
    assert peak_error(fftconv(u, ssm.kernel(64)), y) <= 1e-11
    by_chunks, state = chunked(ssm, u, chunk=10)
    assert peak_error(by_chunks, y) <= 1e-11
    assert peak_error(state, end) <= 1e-11


def test_rate_keeps_the_time_of_the_softmax():
    """Half as many samples of twice the step: for a held input the normalized response is the same."""
    ssm = softmax(make("diagonal-legs", 8, "zoh"), 64)
    slow = ssm.with_dt_scale(2.0)
    assert slow.softmax_length == 32
    assert ssm.with_dt_scale(1.7).softmax_length == 38  # 37.6
    assert ssm.with_dt_scale(1000.0).softmax_length == 1
    held = torch.randn(1, 32, 2, dtype=torch.float64)
    fast_y, _ = ssm.scan(held.repeat_interleave(2, 1))
    torch.testing.assert_close(slow.scan(held)[0], fast_y[:, 1::2], rtol=1e-10, atol=1e-11)


def test_undamped_mode_with_vanishing_sum_is_finite():
    """Re A = 0 and whole turns over the length: the sum of the powers is 0 and the softmax undefined."""
    length = 16
    A = torch.tensor([[2j * torch.pi / length]], dtype=torch.complex128, requires_grad=True)
    C = torch.ones(1, 1, 1, dtype=torch.complex128)
    kernel = Diagonal(
        A, torch.ones_like(A), C, torch.tensor([1.0]), discretization="zoh", softmax_length=length
    ).kernel(length)
    (gradient,) = torch.autograd.grad(kernel.square().sum(), A)
    assert torch.isfinite(kernel).all()
    assert torch.isfinite(gradient).all()
