"""The diagonal laws, equations (8) to (13), their ablations, and mixtures."""

import math

import pytest
import torch

from statespan.ssm import hippo, inits

N = 16
n = torch.arange(N // 2, dtype=torch.float64)
LAWS = {
    "inv": N / math.pi * (N / (2 * n + 1) - 1),
    "lin": math.pi * n,
    "inv2": N / math.pi * (N / (n + 1) - 1),
    "quad": (1 + 2 * n) ** 2 / math.pi,
}


@pytest.mark.parametrize("name", LAWS)
def test_laws(name):
    A, B = inits.diagonal(name, N)
    torch.testing.assert_close(A.imag, LAWS[name], rtol=1e-15, atol=0)
    assert (A.real == -0.5).all()
    assert (B == 1).all()
    assert A.dtype == B.dtype == torch.complex128


def test_values_by_hand():
    """N = 4: (8) gives 4/π (4-1) and 4/π (4/3-1); (12) gives 4/π (4-1) and 4/π (4/2-1); (13) gives 1/π and 9/π."""
    by_hand = {"inv": [12, 4 / 3], "inv2": [12, 4], "quad": [1, 9], "lin": [0, math.pi**2]}
    for name, values in by_hand.items():
        assert (inits.diagonal(name, 4)[0].imag * math.pi).tolist() == pytest.approx(values, rel=1e-14)


def test_legs_is_the_normal_part_of_hippo():
    A, B = inits.diagonal("legs", N)
    eigenvalues = torch.linalg.eigvals(hippo.legs_normal(N))
    upper = eigenvalues.imag[eigenvalues.imag > 0].sort(descending=True).values
    torch.testing.assert_close(A.imag, upper, rtol=1e-12, atol=1e-12)
    assert 2 * B.abs().square().sum().item() == pytest.approx(N * N, rel=1e-12)  # Σ (2n+1) = N²


def test_real_has_the_spectrum_of_legs():
    A, B = inits.diagonal("real", N)
    assert A.real.tolist() == [-(k + 1.0) for k in range(N // 2)]
    assert (A.imag == 0).all()
    assert (B == 1).all()


def test_random_is_log_normal():
    A, _ = inits.diagonal("random", 20000, generator=torch.Generator().manual_seed(0))
    logs = A.imag.log()
    assert abs(logs.mean().item()) < 0.04
    assert abs(logs.std().item() - 1) < 0.03
    assert (A.real == -0.5).all()


@pytest.mark.parametrize("name", inits.DIAGONAL)
@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_imag_scale(name, factor):
    plain, B = inits.diagonal(name, N, generator=torch.Generator().manual_seed(1))
    scaled, B_scaled = inits.diagonal(name, N, imag_scale=factor, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(scaled.imag, factor * plain.imag, rtol=1e-15, atol=0)
    assert (scaled.real == plain.real).all()
    assert (B_scaled == B).all()


def test_random_imag_replaces_the_index_by_a_uniform_number():
    """Equations (10) and (11): inverting each law gives back numbers spread evenly over [0, N/2)."""
    size = 20000
    inverse = {
        "inv": lambda y: (size / (math.pi * y / size + 1) - 1) / 2,
        "lin": lambda y: y / math.pi,
        "inv2": lambda y: size / (math.pi * y / size + 1) - 1,
        "quad": lambda y: ((math.pi * y).sqrt() - 1) / 2,
    }
    for name, law in inverse.items():
        A, _ = inits.diagonal(name, size, random_imag=True, generator=torch.Generator().manual_seed(2))
        u = law(A.imag) / (size / 2)
        assert u.min() >= -1e-9
        assert u.max() < 1
        assert abs(u.mean().item() - 0.5) < 0.01
        assert abs(u.var().item() - 1 / 12) < 0.003
        assert (A.real == -0.5).all()


def test_random_real_is_uniform():
    A, _ = inits.diagonal("lin", 20000, random_real=True, generator=torch.Generator().manual_seed(3))
    assert A.real.max() <= 0
    assert A.real.min() >= -1
    assert abs(A.real.mean().item() + 0.5) < 0.01
    assert abs(A.real.var().item() - 1 / 12) < 0.003
    torch.testing.assert_close(A.imag, inits.diagonal("lin", 20000)[0].imag)


def test_generator_makes_draws_repeatable():
    draw = [inits.diagonal("random", N, generator=torch.Generator().manual_seed(7))[0] for _ in range(2)]
    assert (draw[0] == draw[1]).all()


def test_mixture_shares_the_heads():
    assert inits.split_mixture("legs/fout", 5, hippo.MEASURES) == ["legs"] * 3 + ["fout"] * 2
    Lambda, P, B = inits.mix_dplr("legs/legt", 4, N)
    assert P.shape == (2, 4, N // 2)
    legs, legt = hippo.dplr("legs", N), hippo.dplr("legt", N)
    for s, (L1, P1, B1) in enumerate([legs, legs, legt, legt]):
        assert (Lambda[s] == L1).all()
        assert (B[s] == B1).all()
        assert (P[: len(P1), s] == P1).all()
        assert (P[len(P1) :, s] == 0).all()


def test_mixture_draws_each_ssm_anew():
    A, _ = inits.mix_diagonal("random/lin", 4, N)
    assert (A[0] != A[1]).any()
    assert (A[2] == A[3]).all()
    for option in ("random_imag", "random_real"):
        A, _ = inits.mix_diagonal("lin", 2, N, **{option: True})
        assert (A[0] != A[1]).any()


def test_dense_mixture():
    A, B = inits.mix_dense("legs/fout", 2, N)
    assert (A[0] == hippo.legs(N)[0]).all()
    assert (A[1] == hippo.fout(N)[0]).all()
    assert (B[1] == hippo.fout(N)[1]).all()


def test_dfout_spreads_the_modes_of_all_heads_evenly():
    """Im = 2πn/N + h 2π/(NH): the modes of all heads together are HN/2 equal steps from 0 to π."""
    H = 4
    A, B = inits.mix_diagonal("dfout", H, N, generator=torch.Generator().manual_seed(0))
    for h in range(H):
        for k in range(N // 2):
            assert A.imag[h, k].item() == pytest.approx(2 * math.pi * k / N + h * 2 * math.pi / (N * H), rel=1e-14)
    spacing = A.imag.flatten().sort().values.diff()
    torch.testing.assert_close(spacing, torch.full_like(spacing, 2 * math.pi / (N * H)), rtol=1e-12, atol=0)
    assert (A.real == A.real[:, :1]).all()  # one ξ a head
    assert A.real.unique().numel() == H
    assert (B == 1).all()


def test_dfout_damping_is_log_uniform():
    A, _ = inits.mix_diagonal("dfout", 20000, 2, generator=torch.Generator().manual_seed(4))
    position = (torch.log(-2 * A.real[:, 0]) - math.log(1e-3)) / math.log(100)
    assert position.min() >= 0
    assert position.max() <= 1
    assert abs(position.mean().item() - 0.5) < 0.01
    assert abs(position.var().item() - 1 / 12) < 0.003


def test_dfout_in_a_mixture_has_offsets_of_its_own():
    A, _ = inits.mix_diagonal("lin/dfout", 4, N)
    assert (A[:2] == inits.diagonal("lin", N)[0]).all()
    torch.testing.assert_close(A[2].imag, 2 * math.pi * n / N, rtol=1e-15, atol=0)
    torch.testing.assert_close(A[3].imag, 2 * math.pi * (n + 0.5) / N, rtol=1e-15, atol=0)


def test_random_B_is_complex_normal():
    A, B = inits.mix_diagonal("lin", 2, 20000, random_B=True, generator=torch.Generator().manual_seed(5))
    assert torch.equal(A[0], inits.diagonal("lin", 20000)[0])
    assert (B[0] != B[1]).all()  # each SSM draws its own
    for part in (B.real, B.imag):
        assert abs(part.mean().item()) < 0.02
        assert abs(part.var().item() - 0.5) < 0.02
    assert abs((B.real * B.imag).mean().item()) < 0.02


@pytest.mark.parametrize("factor", [3.0, 5.0])
def test_s4d_ft(factor):
    """S4D-FT: the frequencies of S4D-Lin times 3 or 5, with a random B."""
    A, B = inits.mix_diagonal("lin", 3, N, imag_scale=factor, random_B=True)
    for h in range(3):
        torch.testing.assert_close(A[h].imag, factor * math.pi * n, rtol=1e-15, atol=0)
        assert (A[h].real == -0.5).all()
    assert B.real.unique().numel() == B.imag.unique().numel() == 3 * N // 2


def test_unknown_options_are_refused():
    with pytest.raises(ValueError, match=r"init_options must have keys among \('imag_scale', .*\), got \['offset'\]"):
        inits.mix_diagonal("lin", 2, N, offset=0.5)
