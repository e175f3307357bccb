"""S5 and LRU: one SSM of all features, against dense matrices, and their initial values."""

import math

import numpy as np
import pytest
import torch

from statespan import LRU, S5
from statespan.ssm import inits
from tests.nn.make import peak_error, perturb, run_steps
from tests.ssm import brute

f64 = torch.float64
LAYERS = {
    "S5": lambda **o: S5(5, 8, **o),
    "S5, two blocks": lambda **o: S5(3, 12, blocks=2, init="legs/lin", **o),
    "S5, bilinear": lambda **o: S5(4, 6, discretization="bilinear", real_part="softplus", **o),
    "LRU": lambda **o: LRU(5, 8, **o),
    "LRU on a ring": lambda **o: LRU(4, 6, r_min=0.9, r_max=0.999, max_phase=0.5, **o),
}


def bare(name, **options):
    """A trained-like layer that is its SSM and the skip alone."""
    return perturb(LAYERS[name](dtype=f64, mix=None, activation=None, **options), 0.1)


def dense_form(layer, dt_scale=1.0):
    """Ā (n, n), B̄ (n, D) and C (K, D, n) over all conjugate pairs, by the definitions in numpy."""
    ssm = {name: value.detach().numpy() for name, value in layer.ssm.state_dict().items()}
    B, C = (ssm[key][..., 0] + 1j * ssm[key][..., 1] for key in ("B", "C"))
    if isinstance(layer, LRU):
        rate = -np.exp(ssm["nu"]) + 1j * np.exp(ssm["theta"])
        Abar = np.exp(dt_scale * rate)
        # a step of 1 has the gain γ; another one that of the system which holds its input
        gain = np.exp(ssm["log_gamma"]) * (Abar - 1) / (np.exp(rate) - 1)
    else:
        size = np.logaddexp(ssm["A_real"], 0) if layer.ssm.real_part == "softplus" else np.exp(ssm["A_real"])
        z = dt_scale * np.exp(ssm["log_dt"]) * (ssm["A_imag"] * 1j - size)
        if layer.ssm.options.discretization == "bilinear":
            Abar, gain = (1 + z / 2) / (1 - z / 2), dt_scale * np.exp(ssm["log_dt"]) / (1 - z / 2)
        else:
            Abar, gain = np.exp(z), dt_scale * np.exp(ssm["log_dt"]) * (np.exp(z) - 1) / z
    return np.diag(brute.full(Abar)), brute.full((gain[:, None] * B).T).T, brute.full(C)


def by_brute_force(layer, x, dt_scale=1.0):
    Abar, Bbar, C = dense_form(layer, dt_scale)
    u, D = x.numpy(), layer.D.detach().numpy()
    half = C[: len(D)], C[len(D) :]
    y = brute.mimo(Abar, Bbar, half[0], u) + D * u[:, :, None]
    if layer.bidirectional:
        ahead = brute.mimo(Abar, Bbar, half[1], u[:, ::-1])[:, ::-1]
        y[:, :-1] += ahead[:, 1:]
    return torch.as_tensor(y.reshape(*u.shape[:2], -1))


@pytest.mark.parametrize(
    "options", [{}, {"bidirectional": True}, {"channels": 2}, {"channels": 2, "bidirectional": True}], ids=str
)
@pytest.mark.parametrize("name", LAYERS)
def test_by_brute_force(name, options):
    layer = bare(name, **options)
    for length, dt_scale in ((1, 1.0), (70, 1.0), (33, 0.7), (20, 2.0)):
        x = torch.randn(2, length, layer.d_model, dtype=f64)
        with torch.no_grad():
            assert peak_error(layer(x, dt_scale=dt_scale), by_brute_force(layer, x, dt_scale)) <= 1e-12


@pytest.mark.parametrize("name", LAYERS)
def test_the_state_is_that_of_the_modes(name):
    layer = bare(name)
    x = torch.randn(2, 9, layer.d_model, dtype=f64)
    Abar, Bbar, _ = dense_form(layer)
    wanted = np.zeros((2, len(Abar)), dtype=complex)
    for t in range(9):
        wanted = wanted @ Abar.T + x[:, t].numpy() @ Bbar.T
    M = layer.d_state // 2
    with torch.no_grad():
        for state in (layer.prefill(x)[1], run_steps(layer, x)[1]):
            assert state.shape == (2, M, 2)
            np.testing.assert_allclose(
                torch.view_as_complex(state.contiguous()).numpy(), wanted[:, :M], rtol=1e-11, atol=1e-13
            )


@pytest.mark.parametrize("name", ["S5", "S5, two blocks", "LRU", "LRU on a ring"])
def test_a_held_input_looks_the_same_at_twice_the_rate(name):
    """Zero-order hold is exact for it, with and without a step size of its own."""
    layer = bare(name)
    torch.nn.init.zeros_(layer.D)
    x = torch.randn(1, 40, layer.d_model, dtype=f64)
    with torch.no_grad():
        twice = layer(x.repeat_interleave(2, 1), dt_scale=0.5)
        assert peak_error(twice[:, 1::2], layer(x)) <= 1e-11


def test_s5_starts_at_copies_of_hippo():
    layer = S5(6, 32, blocks=4, dtype=f64, dt_min=0.01, dt_max=1.0)
    A = layer.structure().A
    assert A.shape == (16, 1)
    torch.testing.assert_close(A[:, 0], inits.diagonal("legs", 8)[0].repeat(4), rtol=1e-13, atol=0)
    position = (layer.ssm.log_dt - math.log(0.01)) / math.log(100)
    assert position.unique().numel() == 16  # each mode has its own
    assert 0 <= position.min() <= position.max() <= 1
    mixed = S5(6, 8, init="lin/dfout", blocks=2, dtype=f64)
    assert (mixed.structure().dt[2:] == 1).all()
    assert (mixed.structure().dt[:2] < 0.11).all()


def test_b_and_c_of_s5_have_the_papers_variances():
    """B = V⁻¹ B̃ and C = C̃ V with real B̃ of variance 1/D and C̃ of 1/N, for an orthonormal V."""
    layer = S5(400, 200)
    B, C = layer.ssm.B.double(), layer.ssm.C.double()
    assert abs(400 * B.square().sum(-1).mean().item() - 1) < 0.02
    assert abs(200 * C.square().sum(-1).mean().item() - 1) < 0.02
    assert abs((B[..., 0] * B[..., 1]).mean().item()) * 400 < 0.02


def test_lru_starts_on_a_ring():
    layer = LRU(2, 40000, r_min=0.5, r_max=0.8, max_phase=1.0, dtype=f64)
    Abar, Bbar, _ = layer.structure().discrete()
    square = Abar.abs().square().flatten()
    assert 0.25 <= square.min() <= square.max() <= 0.64
    place, phase = (square - 0.25) / 0.39, Abar.angle().flatten()
    for uniform in (place, phase):
        assert abs(uniform.mean().item() - 0.5) < 0.01
        assert abs(uniform.var().item() - 1 / 12) < 0.003
    assert 0 < phase.min() < phase.max() < 1
    torch.testing.assert_close(Bbar.flatten(), torch.sqrt(1 - square).to(Bbar.dtype), rtol=1e-12, atol=1e-15)


def test_gamma_keeps_white_noise_in_size():
    """The states that white noise leads to have the variance of B u, whatever λ."""
    layer = LRU(1, 64, r_min=0.3, r_max=0.95, dtype=f64)
    with torch.no_grad():
        layer.ssm.B.copy_(torch.tensor([1.0, 0.0]))
        _, state = layer.prefill(torch.randn(4000, 200, 1, dtype=f64))
    assert (state.square().sum(-1).mean(0) - 1).abs().max() < 0.12


def test_b_and_c_of_lru_have_the_papers_variances():
    layer = LRU(400, 400)
    for value, wanted in ((layer.ssm.B, 1 / 800), (2 * layer.ssm.C, 1 / 200)):  # C twice, for the conjugates
        assert abs(value.double().var().item() / wanted - 1) < 0.02


@pytest.mark.parametrize("cls", [S5, LRU])
def test_frozen_matrices(cls):
    frozen, trained = cls(4, 8, train_A=False, train_B=False), cls(4, 8)
    assert {n for n, _ in frozen.ssm.named_parameters()} == ({"C"} if cls is LRU else {"log_dt", "C"})
    frozen.load_state_dict(trained.state_dict())
    x = torch.randn(1, 20, 4)
    torch.testing.assert_close(frozen(x), trained(x))


@pytest.mark.parametrize(("r_min", "r_max"), [(0.0, 1.0), (0.0, 1e-6), (0.999999, 1.0)])
def test_extreme_rings_are_finite(r_min, r_max):
    layer = LRU(4, 64, r_min=r_min, r_max=r_max)
    layer(torch.randn(2, 100, 4)).square().sum().backward()
    assert all(torch.isfinite(p).all() and torch.isfinite(p.grad).all() for p in layer.parameters())


@pytest.mark.parametrize("name", ["S5", "LRU"])
def test_empty_sequences_and_batches(name):
    for bidirectional in (False, True):
        layer = bare(name, bidirectional=bidirectional)
        for shape in ((2, 0, 5), (0, 6, 5), (0, 0, 5)):
            assert layer(torch.zeros(shape, dtype=f64)).shape == shape
    layer = bare(name)
    start = torch.randn(2, 4, 2, dtype=f64)
    y, state = layer.prefill(torch.zeros(2, 0, 5, dtype=f64), start)
    assert y.shape == (2, 0, 5)
    assert (state == start).all()
    assert layer.prefill(torch.zeros(0, 6, 5, dtype=f64))[1].shape == (0, 4, 2)
    assert layer.step(torch.zeros(0, 5, dtype=f64), layer.initial_state(0))[0].shape == (0, 5)


@pytest.mark.parametrize("name", ["S5", "LRU"])
def test_causal(name):
    """Neither a later sample nor a NaN there changes what came before."""
    layer, x = bare(name), torch.randn(1, 90, 5, dtype=f64)
    spoiled = x.clone()
    spoiled[0, 60, 2] = torch.nan
    with torch.no_grad():
        wanted, y = layer(x), layer(spoiled)
    assert peak_error(y[:, :60], wanted[:, :60]) <= 1e-12
    assert y[:, 60:].isnan().all()


def test_s5_needs_a_block_for_each_initialization():
    with pytest.raises(ValueError, match="blocks must be at least 3 for init 'legs/inv/lin', got 1"):
        S5(4, 16, init="legs/inv/lin")
