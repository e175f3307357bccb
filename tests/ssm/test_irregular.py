"""Irregular steps against the exact solution of the differential equation."""

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from statespan import DSS, S4, S4D
from statespan.models import Classifier, ClassifierConfig
from statespan.models.irregular import answer_with_gaps
from statespan.nn import Backbone
from statespan.nn.irregular import with_gaps
from statespan.ssm.irregular import gaps_of, scan_gaps


def make(discretization="zoh", heads=2, states=6):
    torch.manual_seed(0)
    return S4D(heads, states, discretization=discretization, dt_min=0.1, dt_max=0.3).double().structure()


def exact(ssm, u, times):
    """Y at the times (L, K, H): x' = A x + B u(t) solved by scipy; u is constant up to each sample's own time."""
    A, B, C, dt = (t.detach().numpy() for t in (ssm.A, ssm.B, ssm.C, ssm.dt))
    y = np.zeros((len(times), len(C), len(A)))
    for h in range(len(A)):
        x, before = np.zeros(A.shape[1], complex), times[0] - 1.0
        for k, now in enumerate(times):
            drive = B[h] * u[k, h]
            found = solve_ivp(
                lambda t, x, drive=drive, h=h: dt[h] * (A[h] * x + drive),
                (before, now),
                x,
                "DOP853",
                rtol=1e-11,
                atol=1e-12,
            )
            x, before = found.y[:, -1], now
            y[k, :, h] = 2 * (C[:, h] @ x).real
    return y


def irregular(length=9, seed=0):
    rng = np.random.default_rng(seed)
    return np.cumsum(rng.exponential(size=length)), rng.normal(size=(length, 2))


def test_zero_order_hold_is_the_exact_solution():
    ssm = make()
    times, u = irregular()
    y, _ = scan_gaps(ssm, torch.tensor(u)[None], gaps_of(torch.tensor(times)[None]), chunk=4)
    np.testing.assert_allclose(y[0].detach().numpy(), exact(ssm, u, times), atol=1e-8)


def test_the_bilinear_rule_tends_to_it_with_the_square_of_the_step():
    ssm = make("bilinear")
    times, u = irregular(5)
    wanted = exact(ssm, u, times)[-1]
    errors = []
    for pieces in (4, 8, 16):  # the same input on a finer grid
        gaps = gaps_of(torch.tensor(times)[None]).repeat_interleave(pieces, 1) / pieces
        y, _ = scan_gaps(ssm, torch.tensor(u)[None].repeat_interleave(pieces, 1), gaps)
        errors.append(np.abs(y[0, -1].detach().numpy() - wanted).max())
    assert 3.5 < errors[0] / errors[1] < 4.5
    assert 3.5 < errors[1] / errors[2] < 4.5


@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
@pytest.mark.parametrize("dt_scale", [1.0, 0.3, 2.0])
def test_equal_gaps_are_a_rate(rule, dt_scale):
    ssm = make(rule)
    u = torch.randn(3, 23, 2, dtype=torch.float64)
    state = torch.randn(3, 2, 6, dtype=torch.float64)
    y, after = scan_gaps(ssm, u, torch.full((3, 23), dt_scale, dtype=torch.float64), state, chunk=8)
    wanted, last = ssm.with_dt_scale(dt_scale).scan(u, state)
    torch.testing.assert_close(y, wanted, atol=1e-11, rtol=1e-11)
    torch.testing.assert_close(after, last, atol=1e-11, rtol=1e-11)


def test_cut_anywhere_it_is_the_same_and_gradients_are_right():
    ssm = make()
    u, gaps = torch.randn(2, 11, 2, dtype=torch.float64), torch.rand(2, 11, dtype=torch.float64)
    whole, last = scan_gaps(ssm, u, gaps)
    first, state = scan_gaps(ssm, u[:, :5], gaps[:, :5], chunk=2)
    second, end = scan_gaps(ssm, u[:, 5:], gaps[:, 5:], state, chunk=3)
    torch.testing.assert_close(torch.cat([first, second], 1), whole, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(end, last, atol=1e-12, rtol=1e-12)
    u.requires_grad_(), gaps.requires_grad_()
    assert torch.autograd.gradcheck(lambda u, g: scan_gaps(ssm, u, g, chunk=4), (u, gaps), fast_mode=True)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_whole_models_with_equal_gaps_are_models_at_a_rate(bidirectional):
    layer = S4D(4, 8, bidirectional=bidirectional, mix="glu", channels=2).double()
    x = torch.randn(3, 17, 4, dtype=torch.float64)
    gaps, lengths = torch.full((3, 17), 1.5, dtype=torch.float64), torch.tensor([17, 9, 1])
    torch.testing.assert_close(with_gaps(layer, x, gaps, lengths=lengths), layer(x, lengths=lengths, dt_scale=1.5))
    stack = Backbone([S4D(4, 8, bidirectional=bidirectional) for _ in range(2)], norm="layer").double()
    torch.testing.assert_close(with_gaps(stack, x, gaps, lengths=lengths), stack(x, lengths=lengths, dt_scale=1.5))
    config = ClassifierConfig(d_input=4, d_output=2, d_model=6, n_layers=2, layer="s4d", bidirectional=bidirectional)
    model = Classifier(config).double().eval()
    found = answer_with_gaps(model, x, gaps, lengths=lengths)
    torch.testing.assert_close(found, model(x, lengths=lengths, dt_scale=1.5))


def test_a_sample_put_in_between_changes_little_where_it_says_nothing_new():
    """A held value sampled once more: the same signal, so zero-order hold gives the same outputs."""
    ssm = make()
    times, u = irregular()
    at = 4
    half = (times[at - 1] + times[at]) / 2
    more = np.insert(times, at, half), np.insert(u, at, u[at], 0)
    y, _ = scan_gaps(ssm, torch.tensor(u)[None], gaps_of(torch.tensor(times)[None]))
    z, _ = scan_gaps(ssm, torch.tensor(more[1])[None], gaps_of(torch.tensor(more[0])[None]))
    kept = [i for i in range(len(more[0])) if i != at]
    torch.testing.assert_close(z[:, kept], y, atol=1e-12, rtol=1e-12)


MISTAKES = {
    "gaps backwards": (lambda s, u, g: scan_gaps(s, u, -g), ValueError, "gaps must be at least 0"),
    "gaps NaN": (lambda s, u, g: scan_gaps(s, u, g * float("nan")), ValueError, "gaps must be finite"),
    "gaps of another shape": (lambda s, u, g: scan_gaps(s, u, g[:, :1]), ValueError, "gaps must have shape (2, 5)"),
    "a dense ssm": (lambda s, u, g: scan_gaps("s4", u, g), TypeError, "ssm must be a Diagonal"),
    "softmax": (lambda s, u, g: scan_gaps(s.softmax(5), u, g), ValueError, "softmax_length"),
    "first-order hold": (lambda s, u, g: scan_gaps(make("foh"), u, g), ValueError, "got 'foh', whose state depends on"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name):
    call, error, words = MISTAKES[name]
    with pytest.raises(error) as caught:
        call(make(), torch.randn(2, 5, 2, dtype=torch.float64), torch.ones(2, 5, dtype=torch.float64))
    assert words in str(caught.value)


@pytest.mark.parametrize("layer", [S4(2, 4), DSS(2, 4), DSS(2, 4, softmax_length=3)], ids=["S4", "DSS", "DSS fixed"])
def test_other_layers_are_refused(layer):
    with pytest.raises(TypeError, match="S4D layers"):
        with_gaps(layer, torch.randn(1, 3, 2), torch.ones(1, 3))
