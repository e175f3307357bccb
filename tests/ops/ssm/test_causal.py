"""A NaN or an infinity at t: outputs before t are what they would be without it, and NaN from t on."""

import pytest
import torch

from statespan import DSS, LSSL, S4, S4D
from statespan.nn import Backbone
from statespan.nn.irregular import with_gaps
from statespan.ops import chunked, fftconv, use_path
from statespan.ops.ssm import causal

f64 = torch.float64
LAYERS = {
    "S4D": lambda: S4D(3, 8, mix="glu"),
    "S4": lambda: S4(3, 8, channels=2),
    "S4, Cauchy": lambda: S4(3, 8, kernel="cauchy"),
    "LSSL": lambda: LSSL(3, 8),
    "DSS": lambda: DSS(3, 8, softmax_length=150),
    "a stack": lambda: Backbone([S4D(3, 8), S4(3, 8)], norm="batch", dropout=0.1).eval(),
}
BAD = {"nan": float("nan"), "inf": float("inf"), "-inf": -float("inf")}
LENGTH, AT = 150, 77  # not at the start of a chunk


def spoiled(bad, length=LENGTH, at=AT):
    """Sequences, and the same with one sample of one feature of the second spoiled."""
    torch.manual_seed(0)
    x = torch.randn(2, length, 3, dtype=f64)
    y = x.clone()
    y[1, at, 1] = BAD[bad]
    return x, y


def assert_causal(found, wanted, at=AT):
    assert torch.isfinite(wanted).all()
    assert (found[0] - wanted[0]).abs().max() < 1e-11
    torch.testing.assert_close(found[1, :at], wanted[1, :at], atol=1e-11, rtol=0)
    assert found[1, at:].isnan().all()


@pytest.mark.parametrize("path", ["auto", "chunks", "fft"])
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", LAYERS)
def test_forward_is_causal(name, bad, path):
    layer, (x, y) = LAYERS[name]().double(), spoiled(bad)
    with use_path(path), torch.no_grad():
        assert_causal(layer(y), layer(x))


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", LAYERS)
def test_prefill_is_causal(name, bad):
    layer, (x, y) = LAYERS[name]().double(), spoiled(bad)
    with torch.no_grad():
        found, state = layer.prefill(y, layer.initial_state(2))
        assert_causal(found, layer.prefill(x, layer.initial_state(2))[0])
    state = state if isinstance(state, torch.Tensor) else state[0]
    assert torch.isfinite(state[0]).all()
    assert not torch.isfinite(state[1]).all()


@pytest.mark.parametrize("at", [0, 149])
def test_at_either_end(at):
    x, y = spoiled("nan", at=at)
    layer = S4D(3, 8).double()
    assert_causal(layer(y), layer(x), at)


@pytest.mark.parametrize("path", ["chunks", "fft"])
def test_gradients_of_what_came_before_are_right(path):
    """Of the SSM; an activation that has read a NaN gives NaN to a gradient of 0, as everywhere in torch."""
    layer, (x, y) = S4D(3, 8, activation=None, mix=None).double(), spoiled("nan")
    parameters = list(layer.parameters())
    with use_path(path):
        wanted = torch.autograd.grad(layer(x)[:, :AT].square().sum(), parameters)
        found = torch.autograd.grad(layer(y)[:, :AT].square().sum(), parameters)
        beyond = torch.autograd.grad(layer(y).square().sum(), parameters)
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).abs().max() < 1e-11 * other.abs().max()
    assert not all(torch.isfinite(one).all() for one in beyond)


def test_irregular_times_are_causal():
    layer, (x, y) = S4D(3, 8).double(), spoiled("inf")
    gaps = torch.rand(2, LENGTH, dtype=f64)
    with torch.no_grad():
        assert_causal(with_gaps(layer, y, gaps), with_gaps(layer, x, gaps))


def test_finite_inputs_are_looked_at_once(monkeypatch):
    """No pass over the input: one number is all that finite ones cost."""

    def fail(_u):
        raise AssertionError("the input was read")

    monkeypatch.setattr(causal, "without_spoiled", fail)
    monkeypatch.setattr("statespan.ops.ssm.apply.without_spoiled", fail)
    assert torch.isfinite(S4D(3, 8)(torch.randn(2, 150, 3))).all()


def test_what_is_too_large_but_finite_is_left_to_overflow():
    y = S4D(3, 8, activation=None)(torch.full((1, 150, 3), 3e38))
    assert not torch.isfinite(y).all()


def test_where_it_is_not_so():
    """What the documents say: the engine itself spoils the chunk from its start on, an FFT the whole sequence."""
    ssm, (_, u) = S4D(3, 8).double().structure(), spoiled("nan")
    with torch.no_grad():
        chunks, _ = chunked(ssm, u, chunk=50)
        convolved = fftconv(u, ssm.kernel(LENGTH))
    assert torch.isfinite(chunks[1, :50]).all()
    assert chunks[1, 50:, :, 1].isnan().all()
    assert convolved[1, :, :, 1].isnan().all()
    for y in (chunks, convolved):
        assert torch.isfinite(y[0]).all()
        assert torch.isfinite(y[1, :, :, ::2]).all()
