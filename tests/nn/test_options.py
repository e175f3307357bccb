"""What each option of the layers does, by its definition."""

import math

import pytest
import torch
from torch.autograd import gradcheck
from torch.func import functional_call

from statespan import DSS, LRU, LSSL, S4, S4D, S5
from statespan.nn import TiedDropout
from statespan.nn.real_part import REAL_PARTS, inverse_real_part, real_part
from statespan.ssm import DPLR, Dense, Diagonal, inits
from tests.nn.make import COMBINATIONS, IDS, LAYER_IDS, LAYERS, peak_error, perturb, random_state, takes


def plain(cls=S4D, **options):
    """A layer that is its SSM and nothing else: D = 0, no activation, no mixing."""
    layer = cls(
        options.pop("d_model", 4), options.pop("d_state", 8), dtype=torch.float64, mix=None, activation=None, **options
    )
    with torch.no_grad():
        layer.D.zero_()
    return layer


def causal_sum(kernel, x):
    """y_t = Σ_{j≤t} k_j x_{t-j}, one term after the other; kernel (H, L), x (B, L, H)."""
    y = torch.zeros_like(x)
    for t in range(x.shape[1]):
        for j in range(t + 1):
            y[:, t] += kernel[:, j] * x[:, t - j]
    return y


def test_defaults_are_the_papers_base_versions():
    """S4D Table 1, and section 3.4 for S4D."""
    s4d, dss, s4 = S4D(4), DSS(4), S4(4)
    assert (s4d.ssm.options.discretization, s4d.ssm.real_part, s4d.ssm.softmax) == ("bilinear", "exp", False)
    assert (dss.ssm.options.discretization, dss.ssm.real_part, dss.ssm.softmax) == ("zoh", "none", True)
    assert (s4.ssm.options.discretization, s4.ssm.real_part) == ("bilinear", "exp")
    assert isinstance(s4d.structure(), Diagonal)
    assert isinstance(s4.structure(), DPLR)
    assert isinstance(LSSL(4).structure(), Dense)
    names = {cls.__name__: {n for n, _ in cls(4).ssm.named_parameters()} for cls in (S4D, DSS, S4, LSSL)}
    assert names["S4D"] == {"log_dt", "A_real", "A_imag", "B", "C"}
    assert names["DSS"] == {"log_dt", "A_real", "A_imag", "C"}
    assert names["S4"] == {"log_dt", "A_real", "A_imag", "P", "B", "C"}
    assert names["LSSL"] == {"log_dt", "A", "B", "C"}
    legs = inits.diagonal("legs", 64)[0]
    torch.testing.assert_close(s4d.structure().A[0], legs, rtol=1e-6, atol=1e-6)
    assert (dss.structure().B == 1).all()


OWN = [(cls, options, name) for (cls, options), name in zip(COMBINATIONS, IDS) if cls not in (S5, LRU)]


@pytest.mark.parametrize(("cls", "options"), [one[:2] for one in OWN], ids=[one[2] for one in OWN])
def test_structure_starts_at_its_initialization(cls, options):
    """The parameters stand for the named (A, B), through every constraint on the real part."""
    layer = cls(2, 16, dtype=torch.float64, **options)
    structure, init = layer.structure(), options.get("init", "legs")
    names = init.split("/") * (1 if "/" in init else 2)
    for h, name in enumerate(names):
        if name == "random":
            assert (structure.A[h].imag > 0).all()
            continue
        if name == "dfout":
            torch.testing.assert_close(structure.A[h].imag, math.pi / 8 * (torch.arange(8) + h / 2).double())
            assert -0.05 <= structure.A[h].real.min() == structure.A[h].real.max() <= -0.0005
            assert structure.dt[h] == 1
            continue
        makers = {"S4": inits.mix_dplr, "S4D": inits.mix_diagonal, "DSS": inits.mix_diagonal, "LSSL": inits.mix_dense}
        A, *P, B = makers[cls.__name__](name, 1, 16)
        undamped = cls is S4 and name in ("legt", "fout") and options.get("real_part") != "none"
        shift = 1e-4 if undamped else 0.0  # Re A = 0 starts at -1e-4
        torch.testing.assert_close(structure.A[h], A[0] - shift, rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(structure.B[h], torch.ones_like(B[0]) if cls is DSS else B[0], rtol=0, atol=0)
        if P:
            rank = P[0].shape[0]
            torch.testing.assert_close(structure.P[:rank, h], P[0][:, 0], rtol=0, atol=0)
            assert (structure.P[rank:, h] == 0).all()


@pytest.mark.parametrize("init", ["legt", "fout"])
def test_adam_moves_an_undamped_start(init):
    """Gradients as small as Adam's epsilon would leave Re A where it is; these allow most of a whole step."""
    layer = S4(4, 16, init=init, mix="linear")
    before = layer.ssm.A_real.detach().clone()
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3, weight_decay=0.0)
    layer(torch.randn(32, 100, 4)).square().mean().backward()
    optimizer.step()
    assert ((layer.ssm.A_real - before).abs().median() / 1e-3).item() > 0.9


@pytest.mark.parametrize("kind", REAL_PARTS)
def test_real_part(kind):
    parameter = torch.linspace(-3, 3, 25, dtype=torch.float64)
    value = real_part(kind, parameter)
    wanted = {
        "exp": [-math.exp(p) for p in parameter],
        "softplus": [-math.log1p(math.exp(p)) for p in parameter],
        "relu": [-max(p.item(), 0.0) for p in parameter],
        "none": parameter.tolist(),
    }[kind]
    torch.testing.assert_close(value, torch.tensor(wanted, dtype=torch.float64), rtol=1e-14, atol=1e-15)
    extreme = real_part(kind, torch.tensor([90.0, -110.0]))  # beyond float32 for exp and softplus
    wanted = {"exp": [-math.exp(90), -math.exp(-110)], "softplus": [-90, -math.exp(-110)], "relu": [-90, 0]}
    assert extreme.tolist() == pytest.approx(wanted.get(kind, [90, -110]), rel=1e-14)
    start = torch.tensor([-1e-3, -0.5, -7.0, -50.0], dtype=torch.float64)
    torch.testing.assert_close(real_part(kind, inverse_real_part(kind, start)), start, rtol=1e-12, atol=0)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_convolution_by_its_definition(bidirectional, channels):
    """Forward kernel from the present back; backward kernel from the next sample on; channels side by side."""
    layer = plain(d_model=2, bidirectional=bidirectional, channels=channels)
    x = torch.randn(2, 11, 2, dtype=torch.float64)
    kernels = layer.structure().kernel(11).detach()
    assert kernels.shape == (channels * (2 if bidirectional else 1), 2, 11)
    y = layer(x).detach().unflatten(2, (channels, 2))
    for k in range(channels):
        wanted = causal_sum(kernels[k], x)
        if bidirectional:
            ahead = causal_sum(kernels[channels + k], x.flip(1)).flip(1)
            wanted[:, :-1] += ahead[:, 1:]
        torch.testing.assert_close(y[:, :, k], wanted, rtol=1e-11, atol=1e-12)


def test_bidirectional_of_one_sample():
    layer = plain(bidirectional=True)
    x = torch.randn(2, 1, 4, dtype=torch.float64)
    torch.testing.assert_close(layer(x), x * layer.structure().kernel(1)[0, :, 0])


@pytest.mark.parametrize("cls", [S4, S4D, DSS, LSSL])
@pytest.mark.parametrize("n_ssm", [1, 2, 3])
def test_heads_take_their_ssm_in_turn(cls, n_ssm):
    layer = perturb(cls(6, 8, n_ssm=n_ssm, dtype=torch.float64), 0.1)
    structure = layer.structure()
    parameter = layer.ssm.A if cls is LSSL else layer.ssm.A_imag
    assert parameter.shape[0] == n_ssm
    for h in range(6):
        assert (structure.A[h] == structure.A[h % n_ssm]).all()
        assert (structure.B[h] == structure.B[h % n_ssm]).all()
        assert all((structure.A[h] != structure.A[k]).any() for k in range(n_ssm) if k != h % n_ssm)
    assert structure.dt.unique().numel() == 6


def test_skip_activation_and_mixing():
    torch.manual_seed(1)
    x = torch.randn(2, 9, 4, dtype=torch.float64)
    bare = plain()
    core = bare(x)
    options = {"linear": lambda w, b, h: h @ w.T + b}
    options["glu"] = lambda w, b, h: (h @ w[:4].T + b[:4]) * torch.sigmoid(h @ w[4:].T + b[4:])
    for mix, function in options.items():
        layer = S4D(4, 8, mix=mix, dtype=torch.float64)
        layer.ssm.load_state_dict(bare.ssm.state_dict())
        linear = layer.mix[0] if mix == "glu" else layer.mix
        inner = core + layer.D * x
        inner = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
        torch.testing.assert_close(layer(x), function(linear.weight, linear.bias, inner), rtol=1e-12, atol=1e-12)


def test_kernel_algorithm_is_the_one_asked_for(monkeypatch):
    calls = []
    original = DPLR._generating_function_kernel
    monkeypatch.setattr(DPLR, "_generating_function_kernel", lambda self, n: calls.append(n) or original(self, n))
    S4(2, 4, kernel="krylov")(torch.randn(1, 7, 2))
    assert calls == []
    S4(2, 4, kernel="cauchy")(torch.randn(1, 7, 2))
    assert calls == [7]


def test_repr_shows_the_options():
    assert "kernel=cauchy" in repr(S4(4, 8, kernel="cauchy"))
    assert "real_part=relu, kernel=vandermonde" in repr(S4D(4, 8, real_part="relu"))
    assert "discretization=zoh, real_part=none, kernel=softmax over 1024" in repr(DSS(4, 8))
    assert "n_ssm=1" in repr(LSSL(4, 8))


def test_dt_is_log_uniform_and_c_has_variance_one():
    layer = S4D(4000, 8, dt_min=0.01, dt_max=1.0)
    position = (layer.ssm.log_dt.double() - math.log(0.01)) / math.log(100)
    assert position.min() >= 0
    assert position.max() <= 1
    assert abs(position.mean().item() - 0.5) < 0.02
    assert abs(position.var().item() - 1 / 12) < 0.005
    assert abs(layer.ssm.C.double().square().sum(-1).mean().item() - 1) < 0.03
    assert abs(LSSL(4000, 8).ssm.C.double().var().item() - 1) < 0.03
    assert abs(layer.D.double().var().item() - 1) < 0.1
    assert abs(layer.D.double().mean().item()) < 0.1


@pytest.mark.parametrize("cls", [S4, S4D, LSSL])
def test_frozen_matrices(cls):
    frozen = cls(4, 8, train_A=False, train_B=False)
    assert {n for n, _ in frozen.ssm.named_parameters()} == {"log_dt", "C"}
    trained = cls(4, 8)
    assert frozen.state_dict().keys() == trained.state_dict().keys()
    frozen.load_state_dict(trained.state_dict())
    x = torch.randn(1, 20, 4)
    torch.testing.assert_close(frozen(x), trained(x))


def test_dfout_starts_at_a_step_of_one_sample():
    layer = S4D(6, 8, init="lin/dfout", n_ssm=2, dt_min=0.01, dt_max=0.1)
    assert (layer.structure().dt[1::2] == 1).all()
    assert (layer.structure().dt[::2] < 0.11).all()
    before = layer.ssm.log_dt.clone()
    layer.reset_parameters()
    assert (layer.ssm.log_dt[1::2] == 0).all()
    assert (layer.ssm.log_dt[::2] != before[::2]).all()


def test_random_B_is_refused_where_B_is_fixed():
    with pytest.raises(ValueError, match="init_options must have no random_B for DSS"):
        DSS(4, 8, init_options={"random_B": True})


def test_init_options_reach_the_initialization():
    plain_layer, scaled = S4D(4, 8, init="lin"), S4D(4, 8, init="lin", init_options={"imag_scale": 0.01})
    torch.testing.assert_close(scaled.ssm.A_imag, 0.01 * plain_layer.ssm.A_imag)
    tuned = S4D(4, 8, init="lin", init_options={"imag_scale": 3.0, "random_B": True})
    torch.testing.assert_close(tuned.ssm.A_imag, 3 * plain_layer.ssm.A_imag)
    assert tuned.ssm.B.unique().numel() == 4 * 8
    drawn = S4D(4, 8, init="inv", init_options={"random_imag": True, "random_real": True})
    assert (drawn.ssm.A_imag[0] != drawn.ssm.A_imag[1]).any()
    assert (drawn.structure().A.real > -1).all()
    assert (drawn.structure().A.real.std() > 0.1).all()


def test_dss_is_s4d_with_the_options_of_table_1():
    dss = DSS(4, 8, dtype=torch.float64)
    s4d = S4D(
        4,
        8,
        discretization="zoh",
        real_part="none",
        kernel="softmax",
        softmax_length=1024,
        train_B=False,
        dtype=torch.float64,
    )
    s4d.load_state_dict(dss.state_dict())
    x = torch.randn(2, 30, 4, dtype=torch.float64)
    assert (dss(x) == s4d(x)).all()


def test_softmax_over_each_inputs_length():
    """softmax_length=None: as if each length had its own layer; no recurrence."""
    free = DSS(4, 8, softmax_length=None, dtype=torch.float64)
    for length in (7, 50):
        fixed = DSS(4, 8, softmax_length=length, dtype=torch.float64)
        fixed.load_state_dict(free.state_dict())
        x = torch.randn(1, length, 4, dtype=torch.float64)
        assert (free(x) == fixed(x)).all()
    with pytest.raises(ValueError, match="softmax_length"):
        free.prefill(torch.randn(1, 7, 4, dtype=torch.float64))


@pytest.mark.parametrize("tie", [True, False])
def test_dropout(tie):
    layer = S4D(64, 8, dropout=0.5, tie_dropout=tie, mix=None, activation=None)
    x = torch.randn(3, 40, 64)
    kept = layer(x) != 0
    assert abs(kept.double().mean().item() - 0.5) < 0.1
    assert (kept == kept[:, :1]).all().item() is tie
    assert (kept[0] != kept[1]).any()
    layer.eval()
    assert (layer(x) != 0).all()


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("mix", [None, "linear", "glu"])
def test_dropout_comes_after_the_activation(mix, tie):
    """With a mixing that changes nothing an output is 0 or twice the activated feature."""
    layer, alone = (S4D(16, 8, dropout=0.5, tie_dropout=tie, mix=kind).requires_grad_(False) for kind in (mix, None))
    alone.load_state_dict(layer.state_dict(), strict=False)
    if mix is not None:
        linear = layer.mix[0] if mix == "glu" else layer.mix
        linear.weight.copy_(torch.eye(len(linear.weight), 16))
        linear.bias.copy_(50.0 * (torch.arange(len(linear.bias)) >= 16))  # an open gate
    x = torch.randn(4, 50, 16)
    features = alone.eval()(x)
    for y in (layer.train()(x), layer.prefill(x)[0]):
        kept = y != 0
        assert 0.3 < kept.float().mean() < 0.7
        torch.testing.assert_close(y[kept], 2 * features[kept], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(layer.eval()(x), features, atol=1e-6, rtol=1e-5)


def test_tied_dropout_keeps_the_mean():
    x = torch.ones(2000, 3, 50)
    assert abs(TiedDropout(0.3)(x).mean().item() - 1) < 0.02


@pytest.mark.parametrize(("cls", "options"), LAYERS, ids=LAYER_IDS)
def test_gradients_of_every_parameter(cls, options):
    """Finite differences through forward and prefill, with respect to the input, the state and every parameter."""
    steps = {"dt_min": 0.01} if takes(cls, "dt_min") else {}
    layer = cls(2, 4, dtype=torch.float64, channels=2, **steps, **options)
    names = [name for name, _ in layer.named_parameters()]
    values = [p.detach().clone().requires_grad_() for p in layer.parameters()]
    x = torch.randn(1, 5, 2, dtype=torch.float64, requires_grad=True)
    state = random_state(layer, 1).requires_grad_()

    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x, state):
            y, after = self.layer.prefill(x, state)
            return self.layer(x), y, after, *self.layer.step(x[:, 0], state)

    both = Both()

    def function(x, state, *values):
        renamed = {f"layer.{name}": value for name, value in zip(names, values, strict=True)}
        return functional_call(both, renamed, (x, state))

    assert gradcheck(function, (x, state, *values), atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize(("cls", "options"), COMBINATIONS, ids=IDS)
def test_backward_reaches_every_parameter(cls, options):
    layer = cls(4, 8, bidirectional=True, mix="glu", **options)
    layer(torch.randn(2, 30, 4)).square().mean().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert (parameter.grad != 0).any(), name


def test_states_on_request():
    layer = S4(4, 8, dtype=torch.float64)
    x = torch.randn(2, 30, 4, dtype=torch.float64)
    states = layer.structure().states(x)
    _, end = layer.prefill(x)
    assert peak_error(states[:, -1], end) <= 1e-11
