"""Initializations that are given: as arrays, as functions, or under a registered name."""

import json
import math

import numpy as np
import pytest
import torch

from statespan import DSS, LSSL, S4, S4D
from statespan.models import LoadError, build, from_pretrained
from statespan.ssm import DPLR, hippo, inits
from statespan.ssm.given import dplr_of
from statespan.ssm.inits import register_init

f64 = torch.float64
MEASURES = {"legs": hippo.legs, "legt": hippo.legt, "fout": hippo.fout}
N = 8


def modes(d_state):
    n = torch.arange(d_state // 2, dtype=f64)
    return torch.complex(-0.25 - n / 8, math.pi * n), torch.complex(1 + n, -n / 3)


def skew(d_state, rank, real=-0.3, seed=0):
    """A random matrix of the form that S4 takes: c I + K - Σ P Pᵀ."""
    generator = torch.Generator().manual_seed(seed)
    K = torch.randn(d_state, d_state, dtype=f64, generator=generator)
    P = torch.randn(rank, d_state, dtype=f64, generator=generator)
    B = torch.randn(d_state, dtype=f64, generator=generator)
    return real * torch.eye(d_state, dtype=f64) + K - K.T - P.T @ P, B


def moments(A, B, count=6):
    """Bᵀ Aᵏ B, which do not depend on the basis."""
    return torch.stack([B.conj() @ torch.linalg.matrix_power(A, k) @ B for k in range(count)]).real


def full(half):
    return torch.cat([half, half.conj()], -1)


@pytest.mark.parametrize("d_state", [2, 4, 10, 64])
@pytest.mark.parametrize("name", [*MEASURES, "rank 0", "rank 1", "rank 2"])
def test_the_low_rank_form_is_the_same_system(name, d_state):
    A, B = MEASURES[name](d_state) if name in MEASURES else skew(d_state, int(name[-1]))
    Lambda, P, b = dplr_of(A, B)
    assert P.shape == ((2 if name in ("legt", "rank 2") and d_state > 2 else 1), d_state // 2)
    dense = torch.diag(full(Lambda)) - sum(torch.outer(full(p), full(p).conj()) for p in P)
    wanted = moments(A, B)
    assert ((moments(dense, full(b)) - wanted).abs() <= 1e-10 * wanted.abs().max()).all()
    dense_poles, poles = (torch.linalg.eigvals(M) for M in (dense, A.to(dense.dtype)))
    if name not in MEASURES:  # whose eigenvalues are ill-conditioned
        assert (dense_poles[:, None] - poles).abs().min(1).values.max() < 1e-9
    assert (Lambda.imag >= 0).all()
    assert (b.imag.abs() <= 1e-12 * b.abs().max()).all()


@pytest.mark.parametrize("measure", ["legs", "legt"])
def test_hippo_given_as_arrays_is_hippo_by_name(measure):
    kernels = []
    for init in (measure, MEASURES[measure](N), lambda d: tuple(x.numpy() for x in MEASURES[measure](d))):
        torch.manual_seed(0)
        kernels.append(S4(4, N, init=init, dtype=f64).structure().kernel(50))
    for kernel in kernels[1:]:
        assert (kernel - kernels[0]).abs().max() < 1e-11 * kernels[0].abs().max()


@pytest.mark.parametrize("measure", MEASURES)
def test_lssl_takes_any_matrix(measure):
    A, B = MEASURES[measure](N)
    for init in ((A, B), (A.numpy(), B.numpy()), lambda d_state: MEASURES[measure](d_state)):
        torch.manual_seed(0)
        layer = LSSL(4, N, init=init, dtype=f64)
        torch.manual_seed(0)
        named = LSSL(4, N, init=measure, dtype=f64)
        assert all(torch.equal(layer.state_dict()[key], value) for key, value in named.state_dict().items())
    odd = torch.randn(N, N, dtype=f64)
    assert torch.equal(LSSL(4, N, init=(odd, B), dtype=f64).ssm.A[0], odd)


@pytest.mark.parametrize("real_part", ["exp", "softplus", "relu", "none"])
@pytest.mark.parametrize("cls", [S4D, DSS])
def test_diagonal_modes_are_kept(cls, real_part):
    A, B = modes(N)
    for init in ((A, B), (A.numpy(), B.numpy()), modes):
        ssm = cls(3, N, init=init, real_part=real_part, dtype=f64).ssm
        got_A, got_B, _ = ssm._modes()
        assert (got_A - A).abs().max() < 1e-12
        assert torch.equal(got_B[2], B if cls is S4D else torch.ones_like(B))


def test_a_function_is_called_for_each_ssm_and_given_arrays_are_copied():
    calls = []

    def drawn(d_state):
        calls.append(d_state)
        return -torch.rand(d_state // 2, dtype=f64), np.ones(d_state // 2)

    layer = S4D(6, N, init=drawn, n_ssm=3, dtype=f64)
    assert calls == [N] * 3
    assert len(set(layer.ssm.A_real[:, 0].tolist())) == 3
    A, B = -np.ones(N // 2), np.ones(N // 2)
    layer = S4D(2, N, init=(A, B), dtype=f64)
    before = layer.ssm.B.clone()
    B[:] = 7
    assert torch.equal(layer.ssm.B, before)
    torch.manual_seed(3)
    again = S4D(2, N, init=(A, B), dtype=f64)
    torch.manual_seed(3)
    again.reset_parameters()
    assert (again.ssm.B[..., 0] == 7).all()


def test_given_layers_train_and_step():
    for layer in (S4D(4, N, init=modes), S4(4, N, init=skew(N, 2)), LSSL(4, N, init=hippo.legs(N))):
        x = torch.randn(2, 30, 4)
        y = layer(x)
        y.square().mean().backward()
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in layer.parameters())
        with torch.no_grad():
            start, state = layer.prefill(x[:, :29])
            last, _ = layer.step(x[:, 29], state)
            assert (torch.cat([start, last[:, None]], 1) - y).abs().max() < 2e-6 * y.abs().max()


def test_single_precision_arrays_of_a_rank_one_system_are_taken():
    A, B = skew(64, 1)
    layer = S4(2, 64, init=(A.float(), B.float()), dtype=f64)
    assert layer.ssm.P.shape[0] == 1
    assert isinstance(layer.structure(), DPLR)


pair = modes(N)
MISTAKES = {
    "number": (S4D, 3, TypeError, "init must be one of .*, a pair .A, B. of tensors or arrays, or a function .* int 3"),
    "list": (S4D, [[1.0], [1.0]], TypeError, "got list"),
    "one array": (S4D, (pair[0],), TypeError, "got tuple"),
    "class": (S4D, dict, TypeError, "got type"),
    "numbers": (S4D, (1.0, 2.0), TypeError, "got tuple"),
    "shape of A": (S4D, (pair[0][:3], pair[1]), ValueError, r"have A of shape \(4,\) \(one mode .*\), got \(3,\)"),
    "shape of B": (S4D, (pair[0], pair[1][:3]), ValueError, r"have B of shape \(4,\) \(one mode .*\), got \(3,\)"),
    "dense for S4D": (S4D, hippo.legs(N), ValueError, r"have A of shape \(4,\) .*, got \(8, 8\)"),
    "diagonal for S4": (S4, pair, ValueError, r"have A of shape \(8, 8\) \(a dense matrix\), got \(4,\)"),
    "complex for LSSL": (LSSL, (torch.eye(8) * 1j, torch.ones(8)), TypeError, "have a real A, got torch.complex64"),
    "NaN": (S4D, (pair[0] * float("nan"), pair[1]), ValueError, "have a finite A, got NaN or infinity"),
    "infinity": (LSSL, (torch.eye(8), torch.ones(8) / 0), ValueError, "have a finite B, got NaN or infinity"),
    "growing": (S4D, (-pair[0], pair[1]), ValueError, r"Re A <= 0 for real_part='exp', got 0.625; real_part='none'"),
    "growing S4": (
        S4,
        skew(N, 1, real=0.5),
        ValueError,
        "stable A, got one whose symmetric part has an eigenvalue 0.5 > 0",
    ),
    "rank 3": (S4, skew(N, 3), ValueError, "a term of rank 1 or 2, as S4 needs, got one of rank 3"),
    "words": (S4D, (np.array(["a"] * 4), np.ones(4)), TypeError, "have numbers in A and B, got an array of <U1"),
    "objects": (S4D, (np.array([None] * 4), np.ones(4)), TypeError, "have numbers in A and B, got an array of object"),
    "no pair": (S4D, lambda d_state: 3, TypeError, r"init must return a pair \(A, B\), got int 3"),
    "lists in a pair": (
        S4D,
        lambda d_state: ([1], [2]),
        TypeError,
        "tensors or numpy arrays for A and B, got list",
    ),
    "unknown": (
        S4D,
        "octave",
        ValueError,
        r"init must be one of .*'dfout'\) or several .*, got 'octave'",
    ),
    "nearly": (S4, "lets", ValueError, r"init must be one of \('legs', 'legt', 'fout'\) .*; did you mean legt\?"),
    "of another layer": (S4, "lin", ValueError, r"init must be one of \('legs', 'legt', 'fout'\)"),
    "saved": (S4, "saved", ValueError, "init='saved' stands for values .* load it with from_pretrained"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake):
    cls, init, error, said = MISTAKES[mistake]
    with pytest.raises(error, match=said):
        cls(4, N, init=init)


def test_options_are_for_named_laws():
    with pytest.raises(ValueError, match=r"init_options must be empty unless init is one of .*, got \['imag_scale'\]"):
        S4D(4, N, init=modes, init_options={"imag_scale": 2.0})
    S4D(4, N, init=lambda d: (modes(d)[0] * -1, modes(d)[1]), real_part="none")  # growing, as asked for


def test_registered_names_work_alone_and_mixtures_are_of_built_in_ones(site):
    register_init("evenly", modes)
    assert (S4D(2, N, init="evenly", dtype=f64).ssm._modes()[0] - modes(N)[0]).abs().max() < 1e-12
    register_init("skewed", lambda d_state: skew(d_state, 2))
    assert S4(2, N, init="skewed").ssm.P.shape[0] == 2
    with pytest.raises(ValueError, match=r"\(8, 8\)"):
        S4D(2, N, init="skewed")
    with pytest.raises(ValueError, match="several built-in ones joined by '/', got 'legs/evenly'"):
        S4D(2, N, init="legs/evenly")
    assert inits.split_mixture("evenly", 3, inits.DIAGONAL) == ["evenly"] * 3


SYSTEMS = {
    "s4d pair": ("s4d", pair, "saved"),
    "s4d function": ("s4d", modes, "saved"),
    "dss": ("dss", modes, "saved"),
    "s4 rank 1": ("s4", skew(N, 1), "saved"),
    "s4 rank 2": ("s4", lambda d_state: skew(d_state, 2), "saved-rank-2"),
    "s4 rank 2, single": ("s4", tuple(x.float().numpy() for x in skew(N, 2)), "saved-rank-2"),
    "lssl": ("lssl", (torch.randn(N, N), torch.randn(N)), "saved"),
    "lssl rank 2": ("lssl", hippo.legt(N), "saved-rank-2"),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_models_are_saved_with_their_values(name, tmp_path):
    layer, init, saved = SYSTEMS[name]
    options = {"d_input": 1, "d_output": 2, "d_model": 4, "d_state": N, "n_layers": 2, "layer": layer}
    model = build("classifier", options={**options, "ssm": {"init": init, "n_ssm": 2}}).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "a")
    config = json.loads((tmp_path / "a" / "config.json").read_text())["config"]
    assert config["ssm"] == {"init": saved, "n_ssm": 2}
    again = from_pretrained(tmp_path / "a")
    again.save_pretrained(tmp_path / "b")
    third, x = from_pretrained(tmp_path / "b"), torch.randn(2, 20, 1)
    assert torch.equal(third(x), model(x))
    third.train()(x).sum().backward()
    with pytest.raises(ValueError, match="stands for values that are in the weights of a saved model"):
        again.reset_parameters()


def test_a_registered_name_is_saved_as_a_name(site, tmp_path):
    register_init("evenly", modes)
    options = {"d_input": 1, "d_output": 2, "d_model": 4, "d_state": N, "n_layers": 1, "layer": "s4d"}
    model = build("classifier", options={**options, "ssm": {"init": "evenly"}}).eval()
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["config"]["ssm"] == {"init": "evenly"}
    again, x = from_pretrained(tmp_path), torch.randn(2, 20, 1)
    assert torch.equal(again(x), model(x))
    again.reset_parameters()
    inits.ADDED_INITS._items.pop("evenly")
    with pytest.raises(LoadError, match="got 'evenly'"):
        from_pretrained(tmp_path)
