"""The papers' mathematics of the HiPPO matrices, with numbers."""

import itertools
import math

import numpy as np
import pytest
import scipy.linalg
import torch
from scipy.special import eval_legendre

from statespan.ssm import hippo

SIZES = [2, 4, 16, 64]


def legs_basis(n, t):
    """Theorem 6: L_n(exp(-t)) exp(-t), L_n orthonormal on [0, 1]."""
    return math.sqrt(2 * n + 1) * eval_legendre(n, 2 * np.exp(-t) - 1) * np.exp(-t)


def basis(A, B, t):
    """exp(tA) B on an even grid."""
    step = scipy.linalg.expm((t[1] - t[0]) * A)
    columns = [scipy.linalg.expm(t[0] * A) @ B]
    for _ in t[1:]:
        columns.append(step @ columns[-1])
    return np.stack(columns, 1)


def full_dplr(measure, N):
    """The DPLR form over the full conjugate set, dense."""
    Lambda, P, B = (x.numpy() for x in hippo.dplr(measure, N))
    p = np.concatenate([P, P.conj()], -1)
    A = np.diag(np.concatenate([Lambda, Lambda.conj()])) - p.T @ p.conj()
    return A, np.concatenate([B, B.conj()])


@pytest.mark.parametrize("n", [0, 1, 2, 5, 9])
def test_theorem_6_closed_form_of_the_legs_basis(n):
    A, B = (x.numpy() for x in hippo.legs(10))
    t = np.linspace(0, 8, 81)
    np.testing.assert_allclose(basis(A, B, t)[n], legs_basis(n, t), atol=1e-11)


def test_legs_basis_is_orthonormal_for_the_exponential_measure():
    """Lemma A.1, by Gauss-Legendre quadrature in s = exp(-t), exact for these polynomials."""
    s, weight = np.polynomial.legendre.leggauss(40)
    s, weight = (s + 1) / 2, weight / 2
    values = np.stack([legs_basis(n, -np.log(s)) / s for n in range(12)])
    np.testing.assert_allclose((values * weight) @ values.T, np.eye(12), atol=1e-12)


@pytest.mark.parametrize("N", SIZES)
def test_legs_minus_its_low_rank_term_is_normal(N):
    A, _ = hippo.legs(N)
    P = hippo.low_rank("legs", N)
    normal = A + P.T @ P
    torch.testing.assert_close(normal, hippo.legs_normal(N), atol=1e-12, rtol=1e-13)
    torch.testing.assert_close(normal + normal.T, -torch.eye(N, dtype=torch.float64), atol=1e-11, rtol=0)


@pytest.mark.parametrize("N", SIZES)
@pytest.mark.parametrize(("measure", "rank"), [("legt", 2), ("fout", 1)])
def test_legt_and_fout_minus_their_low_rank_term_are_skew(measure, rank, N):
    A, _ = getattr(hippo, measure)(N)
    P = hippo.low_rank(measure, N)
    assert P.shape == (rank, N)
    normal = A + P.T @ P
    torch.testing.assert_close(normal + normal.T, torch.zeros(N, N, dtype=torch.float64), atol=1e-11, rtol=0)


def test_legs_entries():
    A, B = hippo.legs(4)
    for n in range(4):
        for k in range(4):
            entry = -math.sqrt((2 * n + 1) * (2 * k + 1)) if n > k else -(n + 1.0) if n == k else 0.0
            assert A[n, k].item() == pytest.approx(entry, abs=1e-15)
        assert B[n].item() == pytest.approx(math.sqrt(2 * n + 1), abs=1e-15)


def window_error(measure, N):
    """Relative L2 distance of the first four basis functions to their definitions on the window [0, 2], over [0, 3]."""
    A, B = (x.numpy() for x in getattr(hippo, measure)(N))
    t = np.linspace(0, 3, 1501)
    if measure == "legt":
        wanted = [math.sqrt(2 * n + 1) / 2 * eval_legendre(n, 1 - t) for n in range(4)]
    else:
        wanted = [0.5 + 0 * t, 0 * t, np.cos(math.pi * t) / math.sqrt(2), np.sin(math.pi * t) / math.sqrt(2)]
    wanted = np.stack(wanted) * (t <= 2)
    return np.linalg.norm(basis(A, B, t)[:4] - wanted) / np.linalg.norm(wanted)


@pytest.mark.parametrize("measure", ["legt", "fout"])
def test_window_bases_approach_their_definitions(measure):
    """The window's edge is a jump, so the error falls like N^(-1/2)."""
    errors = [window_error(measure, N) for N in (16, 64, 256)]
    assert errors[2] < 0.06
    for coarse, fine in itertools.pairwise(errors):
        assert 0.4 < fine / coarse < 0.62


@pytest.mark.parametrize("N", SIZES)
@pytest.mark.parametrize("measure", hippo.MEASURES)
def test_dplr_is_unitarily_equivalent_to_the_real_system(measure, N):
    """Same Gram matrices of Krylov vectors, hence equal up to a unitary change of basis; and the same kernel."""
    A, B = (x.numpy() for x in getattr(hippo, measure)(N))
    A_dplr, B_dplr = full_dplr(measure, N)
    np.testing.assert_allclose(np.linalg.norm(B_dplr), np.linalg.norm(B), rtol=1e-13)
    np.testing.assert_allclose(np.linalg.norm(A_dplr), np.linalg.norm(A), rtol=1e-12)
    for t in (0.01, 0.3, 1.0):
        real, dplr = scipy.linalg.expm(t * A) @ B, scipy.linalg.expm(t * A_dplr) @ B_dplr
        np.testing.assert_allclose(B_dplr.conj() @ dplr, B @ real, rtol=1e-10, atol=1e-10 * (B @ B))
        np.testing.assert_allclose(np.linalg.norm(dplr), np.linalg.norm(real), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("measure", hippo.MEASURES)
def test_dplr_eigenvalues_match_the_real_matrix(measure):
    """Characteristic polynomials at a few points, which eigenvalues of a non-normal matrix would not show."""
    A = getattr(hippo, measure)(8)[0].numpy()
    A_dplr, _ = full_dplr(measure, 8)
    for point in (0.3, 1j, 2 - 1j):
        wanted = np.linalg.det(point * np.eye(8) - A)
        np.testing.assert_allclose(np.linalg.det(point * np.eye(8) - A_dplr), wanted, rtol=1e-10)


@pytest.mark.parametrize("measure", hippo.MEASURES)
def test_dplr_does_not_depend_on_the_phase_of_eigenvectors(measure, monkeypatch):
    wanted = hippo.dplr(measure, 16)
    eigh = torch.linalg.eigh

    def other_phases(matrix):
        values, vectors = eigh(matrix)
        phases = torch.exp(1j * torch.linspace(0.1, 6.0, len(values), dtype=torch.float64))
        return values, vectors * phases

    monkeypatch.setattr(torch.linalg, "eigh", other_phases)
    for got, expected in zip(hippo.dplr(measure, 16), wanted, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)
    assert (wanted[2].imag == 0).all()
    assert (wanted[2].real > 0).all()


def test_legs_b_is_exact_and_not_clipped():
    """In the eigenbasis B = √2 P, and its largest entry is 40.8 for N = 64 (the reference clips it to 2)."""
    _, P, B = hippo.dplr("legs", 64)
    torch.testing.assert_close(B, math.sqrt(2) * P[0], atol=1e-12, rtol=0)
    assert B.abs().max().item() == pytest.approx(40.8, abs=0.05)


def test_fout_zero_frequency_is_one_conjugate_pair():
    Lambda, P, B = hippo.dplr("fout", 8)
    torch.testing.assert_close(Lambda.imag, math.pi * torch.arange(4, dtype=torch.float64))
    assert (Lambda.real == 0).all()
    torch.testing.assert_close(B.real, torch.tensor([math.sqrt(0.5), 1, 1, 1], dtype=torch.float64))
    torch.testing.assert_close(P[0], B)


@pytest.mark.parametrize("N", [2, 8, 64, 256])
def test_proposition_4_real_part_is_minus_one_half(N):
    eigenvalues = np.linalg.eigvals(hippo.legs_normal(N).numpy())
    np.testing.assert_allclose(eigenvalues.real, -0.5, atol=1e-9)
    assert (hippo.dplr("legs", N)[0].real == -0.5).all()


def test_conjecture_5_largest_imaginary_part():
    """Im A_0 = N²/π - c with c → 0.5236 (π/6), an error that falls like N⁻². The paper prints the constant with a +."""
    gaps = {N: N * N / math.pi - hippo.dplr("legs", N)[0].imag[0].item() for N in (32, 64, 128, 256)}
    assert gaps[256] == pytest.approx(0.5236, abs=5e-5)
    for N in (32, 64, 128):
        ratio = (gaps[N] - math.pi / 6) / (gaps[2 * N] - math.pi / 6)
        assert ratio == pytest.approx(4.0, abs=0.05)


def test_conjecture_5_inverse_law():
    """Im A_n = Θ(1/n): (2n+1) Im A_n tends to N²/π from below and stays within a factor of 2 for n < N/4."""
    for N in (64, 256):
        imag = hippo.dplr("legs", N)[0].imag.numpy()
        assert (np.diff(imag) < 0).all()
        scaled = (2 * np.arange(N // 2) + 1) * imag / (N * N / math.pi)
        assert (np.diff(scaled) < 0).all()
        assert scaled[0] > 0.999
        assert scaled[N // 4] > 0.5


def step_response(A, B, t):
    """∫₀ᵗ exp(sA) B ds by the block exponential."""
    n = len(B)
    block = np.zeros((n + 1, n + 1))
    block[:n, :n], block[:n, n] = A, B
    return basis(block, np.eye(n + 1)[n], t)[:n]


def test_theorem_3_diagonal_legs_approaches_legs():
    """Removing the low-rank term and halving B gives the S4-LegS basis as N grows.

    The difference is an oscillation whose frequency grows with N², so it vanishes for every input (here a step, over
    0 < t ≤ 4) though not at every point: the error halves when N doubles.
    """
    t = np.linspace(0.05, 4, 80)
    errors = []
    for N in (16, 32, 64, 128):
        A, B = (x.numpy() for x in hippo.legs(N))
        exact = step_response(A, B, t)[:3]
        diagonal = step_response(hippo.legs_normal(N).numpy(), B / 2, t)[:3]
        errors.append(np.abs(diagonal - exact).max())
    assert errors[0] < 0.2
    for coarse, fine in itertools.pairwise(errors):
        assert 0.35 < fine / coarse < 0.65


def test_theorem_3_needs_the_halved_b():
    t = np.linspace(0.05, 4, 80)
    A, B = (x.numpy() for x in hippo.legs(128))
    exact = step_response(A, B, t)[:3]
    unhalved = step_response(hippo.legs_normal(128).numpy(), B, t)[:3]
    assert np.abs(unhalved - exact).max() > 0.5


def test_fout_does_not_survive_without_its_low_rank_term():
    """Figure 5: the diagonal part of FouT oscillates for ever, far from the truncated Fourier basis."""
    Lambda, _, B = (x.numpy() for x in hippo.dplr("fout", 64))
    late = 2 * (B * np.exp(2.5 * Lambda)).real[:8]  # each mode alone, after the window has closed
    assert np.abs(late).max() > 1.0
    A, B = (x.numpy() for x in hippo.fout(64))
    assert np.abs(scipy.linalg.expm(2.5 * A) @ B)[:16].max() < 0.1
