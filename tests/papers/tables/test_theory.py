"""The numbers behind Figures 1 to 5 of the S4D paper, against truths that anyone can check."""

import math

import numpy as np
import pytest
import torch
from scipy.linalg import expm
from scipy.special import eval_legendre

from statespan.papers.bench.scaling import exponent
from statespan.papers.tables import theory
from statespan.ssm import hippo

SIZES = (64, 128, 256, 512)


def test_theorem_6_the_basis_of_s4_legs_is_legendre():
    t = torch.linspace(0, 5, 40, dtype=torch.float64)
    found = theory.legs_functions(t, 6)
    A, B = (x.numpy() for x in hippo.legs(16))
    for place, time in enumerate(t.tolist()):
        np.testing.assert_allclose(found[:, place], (expm(time * A) @ B)[:6], rtol=0, atol=1e-12)
    for n in range(6):
        wanted = math.sqrt(2 * n + 1) * eval_legendre(n, 2 * np.exp(-t.numpy()) - 1) * np.exp(-t.numpy())
        np.testing.assert_allclose(found[n], wanted, rtol=0, atol=1e-13)


def test_the_diagonal_basis_is_that_of_the_normal_matrix():
    t = torch.linspace(0, 3, 7, dtype=torch.float64)
    A, B = hippo.legs_normal(32).numpy(), hippo.legs(32)[1].numpy() / 2
    wanted = np.stack([(expm(time * A) @ B)[:3] for time in t.tolist()], 1)
    np.testing.assert_allclose(theory.normal_functions(32, t, 3), wanted, rtol=0, atol=1e-11)
    for rule, inverse in (("bilinear", np.linalg.inv(np.eye(32) - 0.05 * A)), ("zoh", None)):
        Abar = expm(0.1 * A) if inverse is None else inverse @ (np.eye(32) + 0.05 * A)
        Bbar = np.linalg.solve(A, (Abar - np.eye(32)) @ B) if inverse is None else 0.1 * inverse @ B
        wanted = np.stack([np.linalg.matrix_power(Abar, k) @ Bbar / 0.1 for k in range(5)], 1)[:3]
        np.testing.assert_allclose(theory.normal_samples(32, rule, dt=0.1, length=5, F=3), wanted, rtol=0, atol=1e-11)


def test_figure_2_zoh_converges_with_one_over_n():
    errors = theory.theorem3_errors(SIZES, "zoh")
    assert (errors[1:] < 0.6 * errors[:-1]).all()
    assert -1.15 < exponent(SIZES, errors.tolist()) < -0.95
    assert 0.35 < errors[0] < 0.45


def test_figure_2_bilinear_is_larger_first_and_then_exact():
    errors = theory.theorem3_errors((*SIZES, 1024), "bilinear")
    zoh = theory.theorem3_errors((64, 256, 1024), "zoh")
    assert errors[0] > zoh[0]
    assert errors[2] > zoh[1]
    assert 0.01 < zoh[2] < 0.03
    assert errors[4] < 1e-9  # "exactly matches S4-LegS as N grows"


def test_figure_2_the_limit_is_one_of_averages():
    """Moment by moment the difference stays; over a step it goes away."""
    assert abs(theory.continuous_error(64) - theory.continuous_error(256)) < 0.05
    assert theory.continuous_error(256) > 1.3


def test_figure_3_the_eigenvalues():
    for N in (64, 256):
        real = torch.linalg.eigvals(hippo.legs_normal(N)).real
        assert (real + 0.5).abs().max() < 1e-9  # Proposition 4
    assert theory.largest_eigenvalue(256) == pytest.approx(-math.pi / 6, abs=2e-5)  # the paper prints + 0.5236
    assert theory.largest_eigenvalue(64) == pytest.approx(-0.5234508, abs=1e-6)
    laws = theory.laws(64)
    assert -1.1 < exponent(range(1, 16, 2), laws["legs"][:8].tolist()) < -0.95  # the inverse law
    assert ((laws["inv"] - laws["legs"]).abs() / laws["legs"])[0] < 0.02
    assert (laws["inv2"][1:] > 1.4 * laws["legs"][1:]).all()
    assert laws["quad"][0] == pytest.approx(63**2 / math.pi)


def test_figure_4_random_low_rank_terms_change_the_basis():
    t = torch.linspace(0, 4, 101, dtype=torch.float64)
    wanted = theory.legs_functions(t, 4)
    errors = [float((theory.perturbed(64, sigma, t, 4) - wanted).norm() / wanted.norm()) for sigma in (0, 0.1, 0.4, 1)]
    assert errors[0] < 1e-12
    assert 0.01 < errors[1] < 0.1
    assert errors[2] > 1
    assert errors[3] > 1e6
    P = 0.3 * torch.randn(64, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    A, B = hippo.legs(64)
    wanted = expm(2.0 * (A + torch.outer(P, P)).numpy()) @ B.numpy()
    found = theory.perturbed(64, 0.3, torch.linspace(0, 2, 11, dtype=torch.float64), 64, seed=5)[:, -1]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9 * np.abs(wanted).max())


def test_figure_5_fout_is_a_window_only_with_its_low_rank_term():
    t = torch.linspace(0, 4, 401, dtype=torch.float64)
    kept = theory.fout_functions(256, t, 4, low_rank=True)
    without = theory.fout_functions(256, t, 4, low_rank=False)
    k = torch.arange(4, dtype=torch.float64)[:, None]
    height = torch.where(k == 0, 0.5, 1 / math.sqrt(2)).double()
    window = torch.where(t <= 2, height * torch.cos(math.pi * k * t), 0.0)
    inside = ((t - 2).abs() > 0.1) & (t > 0.1) & (t < 3.9)
    assert (kept - window)[:, inside].norm() < 0.02 * window[:, inside].norm()
    for_ever = torch.where(k == 0, torch.ones_like(k), math.sqrt(2) * torch.ones_like(k)) * torch.cos(math.pi * k * t)
    assert (without - for_ever).abs().max() < 1e-10
