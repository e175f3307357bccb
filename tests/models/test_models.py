"""Every registered model: three uses of one map, padding, rates, gradients, precisions."""

import pytest
import torch

from statespan import models
from statespan.models.registry import ADDED_MODELS
from tests.models.make import ALL, CASES, inputs, make
from tests.nn.make import peak_error
from tests.nn.make_stack import check_gradients, clone, leaves, row, same_states

f64 = torch.float64
POOLED = ("classifier", "regressor", "retrieval")
cases = pytest.mark.parametrize("case", ALL)


def cut(more, start, stop):
    return {name: value[:, start:stop] for name, value in more.items()}


def at(more, t):
    return {name: value[:, t] for name, value in more.items()}


def test_every_model_is_tested():
    assert tuple(CASES) == tuple(ADDED_MODELS.built_in)  # tests/papers/baselines has the workshop's


@cases
def test_forward_prefill_and_step_agree(case):
    model = make(case)
    length, options = 19, {"dt_scale": 1.5}
    x, more = inputs(model, 4, length)
    wanted, state = model.prefill(x, **more, **options)
    if not isinstance(model, models.Forecaster):
        assert peak_error(wanted, model(x, **options)) <= 1e-10
    # steps
    step, stepped, ys = model.stepper(1.5), model.initial_state(4), []
    for t in range(length):
        before = clone(stepped)
        y, after = step(x[:, t], stepped, **at(more, t))
        same_states(stepped, before, exact=True)
        stepped = after
        ys.append(y)
    same_states(stepped, state)
    once, _ = model.step(x[:, 0], model.initial_state(4), **at(more, 0), **options)
    assert peak_error(once, ys[0]) <= 1e-14
    pooled = case in (*POOLED, "mean of tokens", "one SSM", "positions")
    for t, y in enumerate(ys):  # a pooled model gives the answer so far
        so_far = model(x[:, : t + 1], **options) if pooled else wanted[:, t]
        assert peak_error(y, so_far) <= 1e-10
    # cut at random points
    points = sorted(torch.randint(0, length + 1, (3,)).tolist())
    ys, pieces = [], None
    for start, stop in zip([0, *points], [*points, length]):
        y, pieces = model.prefill(x[:, start:stop], pieces, **cut(more, start, stop), **options)
        ys.append(y)
    assert peak_error(ys[-1] if pooled else torch.cat(ys, 1), wanted) <= 1e-10
    same_states(pieces, state)
    assert all(not leaf.is_complex() for leaf in leaves(state))


@cases
def test_padding_is_ignored(case):
    """Each sequence comes out as if it were alone, whatever stands in the padding; so does its state."""
    model = make(case)
    lengths = torch.tensor([19, 5, 12, 8])
    x, more = inputs(model, 4, 19)
    for value in (x, *more.values()):
        for b, length in enumerate(lengths):
            value[b, length:] = torch.nan if value.is_floating_point() else 1000
    y = model(x, lengths=lengths, **more)
    streamed, state = model.prefill(x, lengths=lengths, **more)
    assert y.isfinite().all()
    for b, length in enumerate(lengths):
        rows = [b] if case != "retrieval" else [b % 2, b % 2 + 2]  # both of a pair, the shorter one padded
        if case == "retrieval":
            pair = x[rows, : lengths[rows].max()]
            assert peak_error(y[b % 2], model(pair, lengths=lengths[rows])[0]) <= 1e-10
            continue
        alone = {name: value[rows, :length] for name, value in more.items()}
        one = model(x[rows, :length], **alone)[0]
        assert peak_error(y[b][: len(one)], one) <= 1e-10
        one, end = model.prefill(x[rows, :length], **alone)
        assert peak_error(streamed[b][: len(one[0])], one[0]) <= 1e-10
        same_states(row(state, b), end)
    if case == "retrieval":
        assert peak_error(streamed, y) <= 1e-10
    for wrong in ([20, 1, 1, 1], [5, 5]):
        with pytest.raises(ValueError, match="lengths must"):
            model(x, lengths=wrong, **more)


@cases
def test_every_parameter_learns_and_rate_matters(case):
    model = make(case).train()
    lengths = torch.tensor([19, 12, 7, 19])
    x, more = inputs(model, 4, 19)
    if case in ("language", "plain language", "masked"):
        x = torch.arange(4 * 19).view(4, 19) % 30
        assert model.token_losses(x, x.flip(1), dt_scale=2.0).sub(model.token_losses(x, x.flip(1))).abs().max() > 1e-6
        check_gradients(model, model.token_losses(x, x.flip(1), lengths=lengths))
        return
    model.train(case != "forecaster")
    assert peak_error(model(x, dt_scale=2.0, **more), model(x, **more)) > 1e-6
    check_gradients(model.train(), model(x, lengths=lengths, **more))


@cases
def test_half_precision(case):
    """A model cast to bfloat16, and one under autocast, give the answers of float32 roughly."""
    model = make(case, dtype=torch.float32)
    x, more = inputs(model, 2, 19)
    wanted = model(x, **more)
    with torch.autocast("cpu", torch.bfloat16):
        assert peak_error(model(x, **more), wanted) < 0.1
    model.to(torch.bfloat16)
    cast = {name: value.to(torch.bfloat16) for name, value in more.items()}
    y = model(x.to(torch.bfloat16) if x.is_floating_point() else x, **cast)
    assert peak_error(y, wanted) < 0.2


@pytest.mark.parametrize("case", ["classifier", "retrieval", "forecaster", "masked"])
def test_both_ways(case):
    model = make(case, bidirectional=True)
    x, more = inputs(model, 2, 19)
    assert model(x, **more).isfinite().all()
    for use in (lambda: model.prefill(x, **more), lambda: model.stepper(), lambda: model.initial_state(2)):
        with pytest.raises(ValueError, match="needs a causal layer, got bidirectional=True"):
            use()


@pytest.mark.parametrize("case", ["classifier", "pixels"])
def test_batch_norm_steps_in_evaluation_only(case):
    model = make(case).train()
    x, _ = inputs(model, 2, 19)
    with pytest.raises(ValueError, match=r"norm='batch'.*eval\(\)"):
        model.prefill(x)
    with pytest.raises(ValueError, match=r"norm='batch'.*eval\(\)"):
        model.stepper()


def test_compiles_in_one_graph():
    torch._dynamo.reset()
    model = make("forecaster", n_layers=1)
    x, more = inputs(model, 2, 19)
    more["lengths"] = torch.tensor([19, 8])
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert peak_error(compiled(x, **more), model(x, **more)) <= 1e-10


def test_language_losses_are_log_probabilities():
    for case in ("language", "plain language", "masked"):
        model = make(case)
        x = torch.randint(30, (3, 12))
        y = torch.randint(30, (3, 12))
        whole = model(x)
        torch.testing.assert_close(whole.exp().sum(-1), torch.ones(3, 12, dtype=f64))
        losses = model.token_losses(x, y, lengths=[12, 0, 7])
        wanted = -whole.gather(-1, y[..., None])[..., 0]
        for b, length in enumerate([12, 0, 7]):
            torch.testing.assert_close(losses[b, :length], wanted[b, :length])
            assert (losses[b, length:] == 0).all()
        if case == "masked":
            continue
        last = model.log_probs(x, lengths=[12, 3, 0])
        torch.testing.assert_close(last[:2], whole[[0, 1], [11, 2]])
        assert (last[2] == 0).all()


def test_forecast():
    """Forward is reading the past and then the future; the values of the future are not looked at."""
    model = make("forecaster")
    x, more = inputs(model, 2, 19)
    wanted = model(x, **more)
    assert wanted.shape == (2, 5, 2)
    other = x.clone()
    other[:, -5:] = torch.nan
    assert (model(other, **more) == wanted).all()
    _, state = model.prefill(x[:, :-5], **cut(more, 0, 14))
    y, _ = model.prefill(other[:, -5:], state, **cut(more, 14, 19), future=True)
    assert peak_error(y, wanted) <= 1e-10
    step = model.stepper()
    for t in range(5):
        y, state = step(other[:, 14 + t], state, more["marks"][:, 14 + t], future=True)
        assert peak_error(y, wanted[:, t]) <= 1e-10
    for lengths in (None, [12, 4]):
        with pytest.raises(ValueError, match=r"at least horizon=5 positions, got 4"):
            model(x[:, :4] if lengths is None else x, marks=more["marks"][:, : 19 if lengths else 4], lengths=lengths)
    with pytest.raises(TypeError, match="marks must be"):
        model(x)
    with pytest.raises(ValueError, match="marks must be None"):
        make("no marks")(x[..., :1], marks=more["marks"])


MISTAKES = {
    "float tokens": ("language", torch.zeros(2, 5), TypeError, "x must be tokens"),
    "large tokens": ("language", torch.full((2, 5), 30), ValueError, "tokens 0 … 29, got 30 … 30"),
    "tokens of three sizes": ("pixels", torch.zeros(2, 5, 1, dtype=torch.int64), ValueError, "shape .batch, length."),
    "too many features": ("classifier", torch.zeros(2, 5, 4, dtype=f64), ValueError, "x must have shape"),
    "another dtype": ("classifier", torch.zeros(2, 5, 3), TypeError, "dtype of the model, torch.float64"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake):
    case, x, error, words = MISTAKES[mistake]
    with pytest.raises(error, match=words):
        make(case)(x)
