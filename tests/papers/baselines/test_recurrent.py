"""LSTM, GRU, ExpRNN and LipschitzRNN against their equations, one number after the other, with every gradient."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from statespan import models
from statespan.papers.baselines import scans
from statespan.papers.baselines.gated_rnn import GRULayer, LSTMLayer
from statespan.papers.baselines.ode_rnn import ODERNN
from statespan.papers.baselines.simple_rnn import ExpRNN, LipschitzRNN, exponential
from statespan.train.optim import param_groups
from tests.nn.make import peak_error

f64 = torch.float64


def naive_lstm(rnn, x):
    """Hochreiter and Schmidhuber's equations with torch's order of the gates: input, forget, cell, output."""
    w, u, b = rnn.weight_ih_l0, rnn.weight_hh_l0, rnn.bias_ih_l0 + rnn.bias_hh_l0
    h = c = x.new_zeros(x.shape[0], u.shape[1])
    outputs = []
    for x_t in x.unbind(1):
        i, f, g, o = (x_t @ w.T + h @ u.T + b).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs, 1)


def naive_gru(rnn, x):
    """Cho's equations with torch's order: reset, update, new."""
    h, outputs = x.new_zeros(x.shape[0], rnn.weight_hh_l0.shape[1]), []
    for x_t in x.unbind(1):
        xr, xz, xn = (x_t @ rnn.weight_ih_l0.T + rnn.bias_ih_l0).chunk(3, 1)
        hr, hz, hn = (h @ rnn.weight_hh_l0.T + rnn.bias_hh_l0).chunk(3, 1)
        z = (xz + hz).sigmoid()
        h = (1 - z) * (xn + (xr + hr).sigmoid() * hn).tanh() + z * h
        outputs.append(h)
    return torch.stack(outputs, 1)


def naive_exprnn(layer, x):
    """``h_t = modrelu(exp(S) h_{t−1} + U x_t)`` with torch's exponential."""
    S, k = x.new_zeros(layer.d_model, layer.d_model), 0
    for i in range(layer.d_model):
        for j in range(i + 1, layer.d_model):
            S = S + layer.skew[k] * (one(i, j, layer.d_model) - one(j, i, layer.d_model))
            k += 1
    h, outputs = x.new_zeros(x.shape[0], layer.d_model), []
    for u in layer.map(x).unbind(1):
        z = h @ torch.linalg.matrix_exp(S).T + u
        h = torch.where(z.abs() + layer.bias > 0, z.sign() * (z.abs() + layer.bias), 0.0)
        outputs.append(h)
    return torch.stack(outputs, 1)


def one(i, j, n):
    unit = torch.zeros(n, n, dtype=f64)
    unit[i, j] = 1.0
    return unit


def naive_lipschitz(layer, x, dt_scale=1.0):
    """Steps of ``h' = A h + tanh(W h + U x + b)``."""
    eye = torch.eye(layer.d_model, dtype=f64)
    A, W = ((1 - layer.beta) * (M + M.T) + layer.beta * (M - M.T) - layer.gamma * eye for M in (layer.M_A, layer.M_W))
    h, outputs, eps = x.new_zeros(x.shape[0], layer.d_model), [], layer.eps * dt_scale
    for u in layer.map(x).unbind(1):

        def f(h, u=u):
            return h @ A.T + (h @ W.T + u).tanh()

        h = h + eps * (f(h) if layer.scheme == "euler" else f(h + eps / 2 * f(h)))
        outputs.append(h)
    return torch.stack(outputs, 1)


def naive_ode_rnn(layer, x, dt_scale=1.0):
    """A step of the equation, then the equations of a GRU cell of torch."""
    D = layer.d_model
    cell = torch.nn.GRUCell(D, D, dtype=f64)
    names = {"weight_ih": layer.map.weight, "bias_ih": layer.map.bias}
    names |= {"weight_hh": layer.hidden.weight, "bias_hh": layer.hidden.bias}
    h, outputs, time = x.new_zeros(x.shape[0], D), [], layer.time * dt_scale

    def f(h):
        return layer.outer(layer.inner(h).tanh())

    for x_t in x.unbind(1):
        h = h + time * (f(h) if layer.scheme == "euler" else f(h + time / 2 * f(h)))
        h = torch.func.functional_call(cell, names, (x_t, h))
        outputs.append(h)
    return torch.stack(outputs, 1)


def check(layer, x, wanted, tolerance=1e-10, **options):
    """The same outputs and gradients."""
    probe = torch.randn_like(wanted)
    inputs = [x, *layer.parameters()]
    got = layer(x, **options)
    assert peak_error(got, wanted) <= tolerance
    expected = torch.autograd.grad((wanted * probe).sum(), inputs)
    for one_got, one_wanted in zip(torch.autograd.grad((got * probe).sum(), inputs), expected, strict=True):
        assert (one_wanted != 0).any()
        assert peak_error(one_got, one_wanted) <= tolerance


def signal(batch, length, d_model):
    return torch.randn(batch, length, d_model, dtype=f64, requires_grad=True)


@pytest.mark.parametrize("shape", [(1, 2, 2), (3, 17, 5), (2, 40, 8)])
def test_lstm_and_gru_are_their_equations(shape):
    x = signal(*shape)
    for cls, naive in ((LSTMLayer, naive_lstm), (GRULayer, naive_gru)):
        layer = cls(shape[2], dtype=f64)
        check(layer, x, naive(layer.rnn, x))


def test_both_directions():
    x, lengths = signal(3, 11, 6), [11, 4, 7]
    for cls, naive in ((LSTMLayer, naive_lstm), (GRULayer, naive_gru)):
        layer = cls(6, bidirectional=True, dtype=f64)
        y = layer(x, lengths=lengths)
        for b, length in enumerate(lengths):
            alone = x[b : b + 1, :length]
            ways = naive(layer.rnn, alone), naive(layer.backward_rnn, alone.flip(1)).flip(1)
            assert peak_error(y[b : b + 1, :length], torch.cat(ways, -1)) <= 1e-12
    with pytest.raises(ValueError, match="d_model must be even with bidirectional=True, got 5"):
        LSTMLayer(5, bidirectional=True)


@pytest.mark.parametrize("init", ["cayley", "henaff"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 17, 5), (2, 40, 8)])
def test_exprnn_is_its_equation(init, shape):
    layer, x = ExpRNN(shape[2], init=init, dtype=f64), signal(*shape)
    with torch.no_grad():
        layer.skew.add_(0.1 * torch.randn_like(layer.skew))
        layer.bias.add_(0.1 * torch.randn_like(layer.bias))
    if shape[2] > 1:
        check(layer, x, naive_exprnn(layer, x))
    else:  # no matrix to train
        assert layer.skew.numel() == 0
        assert peak_error(layer(x), naive_exprnn(layer, x)) <= 1e-12


@pytest.mark.parametrize("scheme", ["euler", "midpoint"])
@pytest.mark.parametrize("shape", [(2, 2, 1), (3, 17, 5), (2, 40, 8)])
@pytest.mark.parametrize("dt_scale", [1.0, 2.0])
def test_lipschitz_rnn_is_its_equation(scheme, shape, dt_scale):
    layer, x = LipschitzRNN(shape[2], scheme=scheme, eps=0.2, init_std=3.0, dtype=f64), signal(*shape)
    check(layer, x, naive_lipschitz(layer, x, dt_scale), dt_scale=dt_scale)


@pytest.mark.parametrize("scheme", ["euler", "midpoint"])
@pytest.mark.parametrize("dt_scale", [1.0, 2.0])
def test_ode_rnn_is_its_equation(scheme, dt_scale):
    layer, x = ODERNN(5, d_hidden=7, time=0.3, scheme=scheme, dtype=f64), signal(3, 17, 5)
    check(layer, x, naive_ode_rnn(layer, x, dt_scale), dt_scale=dt_scale)


def test_gradients_of_the_scans():
    """Finite differences with respect to every argument, the state before included."""
    drive, start = signal(5, 2, 3), torch.randn(2, 3, dtype=f64, requires_grad=True)
    first, second = torch.randn(2, 3, 3, dtype=f64).mul(0.5).unbind()
    bias = 0.1 * torch.randn(3, dtype=f64)
    for one in (first, second, bias):
        one.requires_grad_()

    def rotate(u, h, W, b):
        return scans.rotate(scans.Driven(u, h), scans.Rotation(W, b))

    def euler(u, h, A, W, midpoint=False):
        return scans.flow(scans.Driven(u, h), scans.Flow(A, W, 0.3, midpoint))

    assert gradcheck(rotate, (drive, start, first, bias))
    assert gradcheck(euler, (drive, start, first, second))
    assert gradcheck(lambda *given: euler(*given, midpoint=True), (drive, start, first, second))


def test_midpoint_is_of_second_order():
    """Over the same time with half the step the error falls by 2 for Euler and by 4 for the midpoint rule."""
    layer = LipschitzRNN(4, input_map=False, init_std=2.0, dtype=f64)
    for scheme, order in (("euler", 2), ("midpoint", 4)):
        layer.scheme, ends = scheme, []
        for steps in (64, 128, 1 << 13):
            layer.eps = 2.0 / steps
            ends.append(layer(torch.ones(1, steps, 4, dtype=f64))[:, -1])
        errors = [(end - ends[2]).norm().item() for end in ends[:2]]
        assert errors[0] / errors[1] == pytest.approx(order, rel=0.15), scheme


@pytest.mark.parametrize("size", [1, 2, 7, 40])
@pytest.mark.parametrize("norm", [0.1, 3.0, 100.0, 240.0])
def test_exponential(size, norm):
    S = torch.randn(size, size, dtype=f64)
    S = S - S.T
    S = S * (norm / S.abs().sum(-1).amax().clamp(min=1e-9))
    S.requires_grad_()
    Q, wanted = exponential(S), torch.linalg.matrix_exp(S)
    assert peak_error(Q, wanted) < 1e-11
    torch.testing.assert_close(Q @ Q.T, torch.eye(size, dtype=f64), rtol=0, atol=1e-11)
    probe = torch.randn_like(Q)
    got, expected = (torch.autograd.grad((one * probe).sum(), S)[0] for one in (Q, wanted))
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("init", "low", "high"), [("henaff", -math.pi, math.pi), ("cayley", -1.0, 0.0)])
def test_initial_rotations(init, low, high):
    """Pairs of features rotate by angles from the whole range; nothing else is in S; the matrix is orthogonal."""
    layer = ExpRNN(400, init=init)
    rows, columns = torch.triu_indices(400, 400, 1)
    is_pair = (columns == rows + 1) & (rows % 2 == 0)
    angles = layer.skew[is_pair]
    assert (layer.skew[~is_pair] == 0).all()
    assert low <= angles.min() < low + 0.1 * (high - low)
    assert high >= angles.max() > high - 0.1 * (high - low)
    W, bias = layer.weights()
    torch.testing.assert_close(W @ W.T, torch.eye(400), rtol=0, atol=2e-6)
    assert bias.abs().max() <= 0.01


def test_the_recurrent_matrix_has_a_rate_of_its_own():
    layer = ExpRNN(6)
    groups = {group["name"]: group for group in param_groups(layer, lr=0.001, weight_decay=0.1, ssm_lr=0.0001)}
    assert groups["ssm"]["params"] == [layer.skew]
    assert groups["ssm"]["lr"] == 0.0001
    assert groups["ssm"]["weight_decay"] == 0
    assert any(one is layer.bias for one in groups["no_decay"]["params"])


@pytest.mark.parametrize(
    ("layer", "d_model", "wanted"),
    [("exprnn", 360, 69e3), ("exprnn", 512, 137e3), ("lipschitz-rnn", 128, 34e3)],
)
def test_parameters_as_in_their_papers(layer, d_model, wanted):
    """On sequential MNIST: ExpRNN's and LipschitzRNN's papers print 69K, 137K and 34K."""
    options = {"d_input": 1, "d_output": 10, "d_model": d_model, "n_layers": 1, "layer": layer, "pool": "last"}
    alone = {"residual": False, "norm": "none", "ssm": {"input_map": False}}
    model = models.build("classifier", options={**options, **alone}, device="meta")
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(wanted, rel=0.02)


def test_compiled_as_one_operator():
    """The loops are not unrolled: a graph without breaks, which holds for any length."""
    torch.compiler.reset()
    for layer in (ExpRNN(4), LipschitzRNN(4), LipschitzRNN(4, scheme="midpoint")):
        compiled, x = torch.compile(layer, backend="aot_eager", fullgraph=True), torch.randn(2, 30, 4)
        wanted = torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))
        got = torch.autograd.grad(compiled(x).square().sum(), list(layer.parameters()))
        for one_got, one_wanted in zip(got, wanted, strict=True):
            torch.testing.assert_close(one_got, one_wanted, rtol=1e-4, atol=1e-6)


def test_options():
    for call, message in (
        (lambda: ExpRNN(4, init="haar"), "init must be one of .*'henaff'.*, got 'haar'"),
        (lambda: LipschitzRNN(4, scheme="rk4"), "scheme must be one of .*'midpoint'.*, got 'rk4'"),
        (lambda: LipschitzRNN(4, beta=1.5), "beta must be"),
        (lambda: ODERNN(4, time=0.0), "time must be a number > 0"),
        (lambda: LipschitzRNN(4, eps=0.0), "eps must be a number > 0"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert list(ExpRNN(4, input_map=False).map.parameters()) == []
