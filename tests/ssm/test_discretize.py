"""Discretization against many-digit arithmetic, for tiny, large and fast ΔA."""

from itertools import pairwise

import mpmath
import numpy as np
import pytest
import scipy.linalg
import torch

from statespan.ssm import Diagonal, bilinear, foh, zoh
from statespan.ssm.discretize import ramp
from statespan.ssm.dplr import Resolvent
from statespan.ssm.packed import pack, unpack
from tests.ssm.make import make

mpmath.mp.dps = 60

EDGES = [
    (-0.5 + 3j, 0.01),
    (-0.5 + 0j, 1e-13),  # exp(z) - 1 cancels
    (-1e-48 + 0j, 1e-13),  # underflows in float32
    (-0.5 + 1e6j, 2.2e4),  # 3.5e9 turns a step
    (-1e-3 + 123456.789j, 0.37),
    (-1e39 + 5j, 2.2e4),
    (-1e-9 + 1e-9j, 1.0),
    (-0.07 + 0.07j, 1.0),  # on both sides of the switch between series and quotient
    (-0.0999 + 0.0999j, 1.0),  # the far corner of the series
    (-0.11 + 0.02j, 1.0),
    (-0.02 + 0.11j, 1.0),
    (0 + 0j, 0.1),
    (0 + 6.283185307179586j, 1.0),
    (0.5 + 1j, 1.0),
]


def exact(A, dt, rule):
    z = mpmath.mpf(dt) * mpmath.mpc(A)
    if rule == "bilinear":
        return (1 + z / 2) / (1 - z / 2), dt / (1 - z / 2)
    phi = mpmath.expm1(z) / z if z else mpmath.mpf(1)
    return mpmath.exp(z), dt * (phi if rule == "zoh" else phi * phi)


def exact_ramp(A, dt):
    z = mpmath.mpf(dt) * mpmath.mpc(A)
    return dt * ((mpmath.expm1(z) - z) / z**2 if z else mpmath.mpf("0.5"))


def run(rule, A, dt):
    function = {"zoh": zoh, "bilinear": bilinear, "foh": foh}[rule]
    A = torch.tensor([[A]], dtype=torch.complex128)
    return [x.item() for x in function(A, torch.ones_like(A), torch.tensor([dt], dtype=torch.float64))]


@pytest.mark.parametrize(("A", "dt"), EDGES)
@pytest.mark.parametrize("rule", ["zoh", "bilinear", "foh"])
def test_diagonal_is_accurate_everywhere(rule, A, dt):
    for got, wanted in zip(run(rule, A, dt), exact(A, dt, rule), strict=True):
        # B̄ vanishes after whole turns; there the third part of 2π, itself rounded, leaves 1e-28 of Δ
        assert abs(mpmath.mpc(got) - wanted) <= 4e-16 * abs(wanted) + 1e-28 * min(dt, 1) + mpmath.mpf(10) ** -300


def test_diagonal_is_accurate_for_random_parameters():
    generator = np.random.default_rng(0)
    for _ in range(300):
        dt = float(np.exp(generator.uniform(-30, 10)))
        A = complex(-np.exp(generator.uniform(-110, 90)), generator.uniform(-1e6, 1e6))
        for rule in ("zoh", "bilinear", "foh"):
            for got, wanted in zip(run(rule, A, dt), exact(A, dt, rule), strict=True):
                # the one rounding of Re ΔA is |Re ΔA| roundings of exp(ΔA), which by then is below 1e-60
                tolerance = 1e-15 * (1 + min(dt * abs(A.real), 1000)) * abs(wanted)
                assert abs(mpmath.mpc(got) - wanted) <= tolerance + mpmath.mpf(10) ** -300


@pytest.mark.parametrize(("A", "dt"), [e for e in EDGES if e[0].real <= 0])
def test_derivative_of_zoh_is_accurate(A, dt):
    """d B̄/dA, where the quotient (exp(z)-1)/z would lose all digits for small z."""
    a = torch.tensor([[A]], dtype=torch.complex128, requires_grad=True)
    _, Bbar = zoh(a, torch.ones_like(a), torch.tensor([dt], dtype=torch.float64))
    (gradient,) = torch.autograd.grad(Bbar.real.sum(), a)
    z = mpmath.mpf(dt) * mpmath.mpc(A)
    derivative = (mpmath.exp(z) * (z - 1) + 1) / z**2 if abs(z) > 1e-15 else mpmath.mpf("0.5") + z / 3
    wanted = mpmath.conj(dt * dt * derivative)  # torch returns the conjugate
    rounding = 4e-16 * dt * abs(Bbar.item())  # of sine against sine, where exp(ΔA) has vanished
    assert abs(mpmath.mpc(gradient.item()) - wanted) <= 1e-13 * abs(wanted) + rounding


def test_growth_is_capped():
    """Re ΔA ≤ 1: no overflow for "zoh", no pole for "bilinear"."""
    for rule, growth in (("zoh", np.e), ("bilinear", 3.0), ("foh", np.e)):
        for dt in (2.0, 2.2e4, 1e30):
            Abar, Bbar = run(rule, 1.0 + 0j, dt)
            assert abs(Abar) == pytest.approx(growth, rel=1e-15)
            assert np.isfinite(Bbar)


@pytest.mark.parametrize("dt_scale", [0.5, 2.0])
@pytest.mark.parametrize("rule", [zoh, bilinear, foh])
def test_rate_scales_the_step(rule, dt_scale):
    A = torch.tensor([[-0.5 + 2j]])
    dt = torch.tensor([0.1], dtype=torch.float64)
    for got, wanted in zip(rule(A, A, dt, dt_scale=dt_scale), rule(A, A, dt_scale * dt), strict=True):
        assert (got == wanted).all()


@pytest.mark.parametrize("n", [1, 4, 16])
def test_dense_matches_scipy(n):
    generator = np.random.default_rng(n)
    A, B, dt = generator.normal(size=(2, n, n)), generator.normal(size=(2, n)), np.array([0.05, 0.7])
    tensors = [torch.as_tensor(x) for x in (A, B, dt)]
    for h in range(2):
        Abar, Bbar = zoh(*tensors)
        np.testing.assert_allclose(Abar[h], scipy.linalg.expm(dt[h] * A[h]), rtol=1e-12, atol=1e-12)
        held = scipy.linalg.solve(A[h], (scipy.linalg.expm(dt[h] * A[h]) - np.eye(n)) @ B[h])
        np.testing.assert_allclose(Bbar[h], held, rtol=1e-10, atol=1e-11)
        Abar, Bbar = bilinear(*tensors)
        left = np.eye(n) - dt[h] / 2 * A[h]
        np.testing.assert_allclose(left @ Abar[h].numpy(), np.eye(n) + dt[h] / 2 * A[h], atol=1e-12)
        np.testing.assert_allclose(left @ Bbar[h].numpy(), dt[h] * B[h], atol=1e-12)


def test_dense_zoh_of_a_singular_matrix():
    """A = 0 integrates: Ā = I, B̄ = ΔB."""
    Abar, Bbar = zoh(torch.zeros(1, 3, 3), torch.ones(1, 3), torch.tensor([0.25]))
    torch.testing.assert_close(Abar[0], torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(Bbar[0], torch.full((3,), 0.25, dtype=torch.float64))


@pytest.mark.parametrize("rank", [1, 2])
def test_resolvent_inverts(rank):
    """(I - ΔA/2) R x = x for the DPLR matrix, applied as a real-linear map on the kept half."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.complex128, generator=generator)

    A, P, x, dt = draw(3, 5), draw(rank, 3, 5), draw(4, 3, 5), torch.tensor([0.01, 0.5, 30.0], dtype=torch.float64)
    A = torch.complex(-A.real.abs(), A.imag)
    resolvent = Resolvent(A, P, dt)
    y = resolvent.apply(x)
    low = sum(P[r] * 2 * (P[r].conj() * y).real.sum(-1, keepdim=True) for r in range(rank))
    torch.testing.assert_close(y - dt[:, None] / 2 * (A * y - low), x, rtol=1e-12, atol=1e-12)
    by_matrix = unpack((resolvent.matrix() @ pack(x)[..., None])[..., 0])
    torch.testing.assert_close(by_matrix, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("A", "dt"), EDGES)
def test_ramp_is_accurate_everywhere(A, dt):
    with mpmath.workdps(200):
        wanted = exact_ramp(A, dt)
    a = torch.tensor([[A]], dtype=torch.complex128)
    got = ramp(a, torch.ones_like(a), torch.tensor([dt], dtype=torch.float64)).item()
    assert abs(mpmath.mpc(got) - wanted) <= 2e-15 * abs(wanted)


@pytest.mark.parametrize("size", [0.49, 0.51])
def test_derivative_of_the_ramp_is_accurate(size):
    """On both sides of the switch between series and quotient."""
    a = torch.tensor([[-size + size * 1j]], dtype=torch.complex128, requires_grad=True)
    R = ramp(a, torch.ones_like(a), torch.ones(1, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(R.real.sum(), a)
    with mpmath.workdps(40):
        wanted = mpmath.conj(mpmath.diff(lambda z: (mpmath.expm1(z) - z) / z**2, mpmath.mpc(a.item())))
    assert abs(mpmath.mpc(gradient.item()) - wanted) <= 1e-14 * abs(wanted)


@pytest.mark.parametrize("n", [1, 4, 16])
def test_dense_first_order_hold(n):
    """B̄ = Ā R + P of the recurrence with two inputs, whose integrals are computed by quadrature."""
    generator = np.random.default_rng(n)
    A, B, dt = generator.normal(size=(2, n, n)), generator.normal(size=(2, n)), np.array([0.05, 0.7])
    tensors = [torch.as_tensor(x) for x in (A, B, dt)]
    Abar, Bbar = foh(*tensors)
    R = ramp(*tensors)
    nodes, weights = np.polynomial.legendre.leggauss(20)
    s = (nodes + 1) / 2
    for h in range(2):
        waves = [scipy.linalg.expm(dt[h] * (1 - at) * A[h]) @ B[h] * dt[h] * w / 2 for at, w in zip(s, weights)]
        rising = sum(at * wave for at, wave in zip(s, waves))
        falling = sum((1 - at) * wave for at, wave in zip(s, waves))
        np.testing.assert_allclose(Abar[h], scipy.linalg.expm(dt[h] * A[h]), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(R[h], rising, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(Bbar[h], scipy.linalg.expm(dt[h] * A[h]) @ rising + falling, rtol=1e-11, atol=1e-12)


def errors(rule, shift):
    """The error of the outputs of x' = Ax + Bu, u = sin, against the solution ``shift`` steps later; Δ is halved."""
    a, w, found = complex(-0.7, 3.0), 2.0, []
    for samples in (200, 400, 800):
        dt = 4.0 / samples
        A = torch.tensor([[a]], dtype=torch.complex128)
        one = torch.ones_like(A)
        ssm = Diagonal(A, one, one[None], torch.tensor([dt], dtype=torch.float64), discretization=rule)
        t = dt * torch.arange(samples, dtype=torch.float64)
        y = ssm.scan(torch.sin(w * t)[None, :, None])[0][0, :, 0, 0]
        later = t + shift * dt
        # x = Im(exp(iwt) - exp(at))/(iw - a)) in its real and imaginary driving parts
        plus, minus = ((torch.exp(1j * v * later) - torch.exp(a * later)) / (1j * v - a) for v in (w, -w))
        found.append((y - 2 * ((plus - minus) / 2j).real).abs().max().item())
    return found


@pytest.mark.parametrize(
    ("rule", "shift", "order"),
    [("zoh", 0.0, 1), ("bilinear", 0.0, 1), ("foh", 0.0, 2), ("zoh", 0.5, 2), ("bilinear", 0.5, 2)],
)
def test_order_of_accuracy(rule, shift, order):
    """Halving Δ divides the error by 2^order: zoh and bilinear are half a sample early, which foh is not."""
    found = errors(rule, shift)
    for coarse, fine in pairwise(found):
        assert coarse / fine == pytest.approx(2**order, rel=0.05)


@pytest.mark.parametrize("kind", ["diagonal-legs", "dplr-legt", "dense-fout"])
def test_first_order_hold_is_exact_for_linear_inputs(kind):
    """A ramp sampled twice as finely, with half the step, gives the same outputs."""
    ssm, fine = make(kind, 8, "foh"), torch.linspace(0, 3, 41, dtype=torch.float64)[None, :, None].repeat(1, 1, 2)
    bends = fine + 0.5 * (fine[:, ::2].flip(1) ** 2).repeat_interleave(2, 1)[:, :41]  # arbitrary at even samples
    bends[:, 1::2] = (bends[:, :-1:2] + bends[:, 2::2]) / 2  # linear in between
    bends[:, 0] = 0
    bends[:, 1] = bends[:, 2] / 2
    wanted = ssm.with_dt_scale(0.5).scan(bends)[0][:, ::2]
    # before its first sample an input is linear from 0 a whole step earlier; it is 0 here
    torch.testing.assert_close(ssm.scan(bends[:, ::2])[0], wanted, rtol=1e-11, atol=1e-11)
