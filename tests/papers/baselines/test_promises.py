"""What every layer of the workshop promises: it is found by name, and all uses of it give the same numbers."""

import copy

import pytest
import torch

from statespan import models
from statespan.export.frozen import freeze
from statespan.models.config import layer_class
from statespan.nn import ResidualBlock, SequenceLayer
from statespan.train.optim import param_groups
from tests.nn.make import assert_round_trip, peak_error
from tests.nn.make_stack import LENGTHS, check_gradients, check_lengths, check_streaming
from tests.papers.baselines.make_layers import NAMES, TWO_WAY, WITHOUT_TIME, build, classifier, task

f64 = torch.float64
layers = pytest.mark.parametrize("name", NAMES)


def test_names():
    assert set(NAMES) >= {
        "attention", "ckconv", "exprnn", "gru", "linear-attention", "lipschitz-rnn", "lstm", "ode-rnn", "performer"
    }  # fmt: skip
    for name in NAMES:
        assert issubclass(layer_class(name), SequenceLayer)
        assert layer_class(name).__module__.startswith("statespan.papers.baselines.")


@layers
@pytest.mark.parametrize("dt_scale", [1.0, 1.5])
def test_forward_prefill_and_step_agree(name, dt_scale):
    layer, x = build(name), torch.randn(4, 23, 6, dtype=f64)
    check_streaming(layer, x, dt_scale)
    check_streaming(ResidualBlock(layer, dtype=f64), x, dt_scale)
    assert (peak_error(layer(x, dt_scale=2.0), layer(x)) < 1e-14) == (name in WITHOUT_TIME)


@layers
def test_padding_is_ignored(name):
    layer, x = build(name), torch.randn(4, 23, 6, dtype=f64)
    check_lengths(layer, x, LENGTHS, streaming=name != "attention")  # a cache is as large as for the longest
    check_gradients(layer, layer(x, lengths=LENGTHS))
    x[1, 1:] = torch.nan
    x.requires_grad_()
    layer(x, lengths=LENGTHS)[:, :12].sum().backward()
    assert x.grad.isfinite().all()


@layers
def test_no_gradient_from_the_future(name):
    """The gradient of an output is 0 with respect to later inputs, to the bit but for the rounding of an FFT."""
    rounding = 1e-5 if name == "ckconv" else 0.0
    layer = build(name, dtype=torch.float32)
    x = torch.randn(2, 40, 6, requires_grad=True)
    for t in (0, 17, 38):
        (gradient,) = torch.autograd.grad(layer(x)[:, t].square().sum(), x)
        assert (gradient[:, t + 1 :].abs() <= rounding * gradient.abs().max()).all()
        assert (gradient[:, t] != 0).any()
        assert t == 0 or (gradient[:, 0] != 0).any()


@pytest.mark.parametrize("name", TWO_WAY)
def test_both_ways(name):
    layer = build(name, bidirectional=True)
    x = torch.randn(4, 23, 6, dtype=f64, requires_grad=True)
    check_lengths(layer, x.detach(), LENGTHS, streaming=False)
    check_gradients(layer, layer(x, lengths=LENGTHS))
    (gradient,) = torch.autograd.grad(layer(x)[:, 5].square().sum(), x)
    assert (gradient[:, 22] != 0).any()
    assert (gradient[:, 0] != 0).any()
    state = build(name).initial_state(4)
    for use in (lambda: layer.prefill(x), lambda: layer.step(x[:, 0], state), lambda: layer.initial_state(4)):
        with pytest.raises(ValueError, match="needs a causal layer, got bidirectional=True"):
            use()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in TWO_WAY])
def test_a_causal_layer_does_not_look_both_ways(name):
    with pytest.raises(ValueError, match=f"bidirectional must be False, as the layer {name!r} has no such option"):
        classifier(name, bidirectional=True)


@layers
def test_it_learns(name):
    """The value at a marked position, in 140 steps."""
    torch.manual_seed(1)
    model = classifier(name, bidirectional=name in TWO_WAY, norm="layer", feed_forward=2)
    optimizer = torch.optim.AdamW(param_groups(model, lr=0.02 if name == "ckconv" else 0.01, ssm_lr=0.003))
    losses = []
    for _ in range(140):
        x, y = task(200)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 0.9
    assert losses[-1] < 0.4, losses[::10]
    x, y = task(300)
    assert (model.eval()(x).argmax(1) == y).double().mean() > 0.9


@layers
def test_saved_copied_and_initialised(name, tmp_path):
    first, second = build(name, dtype=torch.float32), build(name, dtype=torch.float32)
    assert_round_trip(first, second, torch.randn(2, 50, 6))
    with torch.device("meta"):
        empty = build(name, dtype=torch.float32)
    assert empty(torch.empty(2, 7, 6, device="meta")).shape == (2, 7, 6)
    empty.to_empty(device="cpu")
    torch.manual_seed(3)
    empty.reset_parameters()
    torch.manual_seed(3)
    wanted = build(name, dtype=torch.float32).state_dict()
    assert all((value == wanted[key]).all() for key, value in empty.state_dict().items())
    model = classifier(name)
    model.save_pretrained(tmp_path)
    x = task(4)[0]
    assert (models.from_pretrained(tmp_path)(x) == model.eval()(x)).all()


@layers
def test_a_frozen_model_keeps_its_rate(name):
    """What ``statespan export`` writes for data of another sampling rate."""
    model, x = classifier(name).eval(), task(4)[0]
    assert peak_error(freeze(model, 2.0)(x), model(x, dt_scale=2.0)) < 1e-6
    assert peak_error(model(x), model(x, dt_scale=2.0)) > 1e-4  # the positions, at least


@layers
def test_low_precision(name):
    """As a module of 16 bits and under autocast, close to float32."""
    layer, x = build(name, 8, dtype=torch.float32), torch.randn(2, 60, 8)
    wanted = layer(x).detach()
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
        streamed, state = layer.prefill(x[:, :40])
        stepped, _ = layer.step(x[:, 40], state)
        y.float().square().sum().backward()
    for got, expected in ((y, wanted), (streamed, wanted[:, :40]), (stepped, wanted[:, 40])):
        assert peak_error(got, expected) < 0.03
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    layer = copy.deepcopy(layer).bfloat16()
    assert layer(x.bfloat16()).dtype == torch.bfloat16
    assert peak_error(layer(x.bfloat16()), wanted) < 0.06


@layers
def test_nothing_to_read(name):
    layer = build(name)
    for shape in ((0, 5, 6), (2, 0, 6)):
        x = torch.randn(shape, dtype=f64)
        assert layer(x).shape == shape
        y, state = layer.prefill(x)
        assert y.shape == shape
        assert layer.step(torch.randn(shape[0], 6, dtype=f64), state)[0].shape == (shape[0], 6)


@layers
def test_mistakes(name):
    layer, x = build(name, dtype=torch.float32), torch.randn(2, 5, 6)
    for call, error, message in (
        (lambda: layer(x[0]), ValueError, r"x must have shape \(batch, length, 6\), got \(5, 6\)"),
        (lambda: layer.prefill(x[..., :3]), ValueError, r"x must have shape \(batch, length, 6\)"),
        (lambda: layer(x.double()), TypeError, r"torch\.float64"),
        (lambda: layer(x, lengths=[6, 1]), ValueError, "lengths must"),
        (lambda: layer.step(x[:, 0], None), TypeError, "state must be"),
        (lambda: layer.step(x[:, 0], layer.initial_state(3)), ValueError, "state"),
        (lambda: build(name, 0), ValueError, "d_model must be an integer >= 1, got 0"),
        (lambda: build(name, dropout=1.0), ValueError, "dropout must be"),
        (lambda: build(name, l_max=9), TypeError, "l_max"),
    ):
        with pytest.raises(error, match=message):
            call()
