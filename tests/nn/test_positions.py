"""Positional encodings: their formula, three uses of one map, positions in training time, and where they may stand."""

import math

import pytest
import torch

from statespan import models
from statespan.models import PixelsConfig
from statespan.nn import S4D, Backbone, SinusoidalPositions
from statespan.nn.backbone import Chain
from tests.nn.make_stack import LENGTHS, check_lengths, check_streaming

f64 = torch.float64


def formula(position, d_model):
    """Section 3.5 of the Transformer's paper, one feature after the other."""
    encoding = []
    for feature in range(d_model):
        angle = position / 10_000 ** (2 * (feature // 2) / d_model)
        encoding.append(math.cos(angle) if feature % 2 else math.sin(angle))
    return encoding


@pytest.mark.parametrize("d_model", [1, 2, 5, 8])
@pytest.mark.parametrize("dt_scale", [1.0, 2.0, 0.3])
def test_formula(d_model, dt_scale):
    x = torch.randn(2, 40, d_model, dtype=f64)
    wanted = x + torch.tensor([formula(n * dt_scale, d_model) for n in range(40)], dtype=f64)
    torch.testing.assert_close(SinusoidalPositions(d_model)(x, dt_scale=dt_scale), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dt_scale", [1.0, 0.3])
def test_views_and_lengths(dt_scale):
    layer, x = SinusoidalPositions(6), torch.randn(4, 23, 6, dtype=f64)
    check_streaming(layer, x, dt_scale=dt_scale)
    state = check_lengths(layer, x, LENGTHS)
    assert state.tolist() == LENGTHS
    for model in (Backbone([S4D(6, 4, dtype=f64)], positions="sinusoidal", dtype=f64), Chain([layer, layer])):
        check_streaming(model, x, dt_scale=dt_scale)
        check_lengths(model, x, LENGTHS)


def test_half_the_rate_has_the_same_encodings_at_the_same_times():
    layer, x = SinusoidalPositions(6), torch.zeros(1, 30, 6, dtype=f64)
    torch.testing.assert_close(layer(x[:, ::2], dt_scale=2.0), layer(x)[:, ::2], rtol=0, atol=1e-12)


def test_no_precision_is_lost_by_a_change_of_dtype():
    """At position 20,000 in bfloat16: the encoding is rounded once, at the end."""
    layer = SinusoidalPositions(4).bfloat16()
    assert layer.pairs.dtype == torch.int64
    y, state = layer.stepper()(torch.zeros(1, 4, dtype=torch.bfloat16), torch.full((1,), 20_000.0, dtype=f64))
    assert y.tolist()[0] == torch.tensor(formula(20_000, 4), dtype=f64).bfloat16().tolist()
    assert state.tolist() == [20_001.0]


def test_state_and_meta_device():
    layer = SinusoidalPositions(5, device="meta")
    assert layer(torch.empty(2, 7, 5, device="meta")).shape == (2, 7, 5)
    layer = layer.to_empty(device="cpu")
    layer.reset_parameters()
    assert layer.pairs.tolist() == [0, 1, 2]
    assert list(layer.parameters()) == []
    assert layer.initial_state(3).tolist() == [0.0] * 3


def test_a_model_without_them_is_blind_to_the_order():
    """Attention with a mean pool: the order of the samples matters only with positions."""
    options = {"d_input": 2, "d_output": 3, "d_model": 8, "layer": "attention", "ssm": {"n_heads": 2}}
    x = torch.randn(4, 20, 2)
    for positions, is_blind in (("none", True), ("sinusoidal", False)):
        model = models.build("classifier", options={**options, "bidirectional": True, "positions": positions})
        assert torch.allclose(model(x), model(x.flip(1)), atol=1e-5) == is_blind


def test_mistakes():
    with pytest.raises(ValueError, match=r"positions must be one of .*'sinusoidal'.*, got 'sine'"):
        Backbone([S4D(4, 4)], positions="sine")
    with pytest.raises(ValueError, match=r"positions must be one of .*, got 'sine'"):
        models.build("classifier", options={"d_input": 1, "d_output": 2, "positions": "sine"})
    with pytest.raises(ValueError, match=r"positions must be 'none' with a U-Net.*got 'sinusoidal'"):
        PixelsConfig(vocabulary=9, d_output=4, positions="sinusoidal")
    with pytest.raises(ValueError, match="residual must be True with a U-Net, got False"):
        PixelsConfig(vocabulary=9, d_output=4, residual=False, norm="none")
    with pytest.raises(ValueError, match=r"state must have shape \(2,\), got \(3,\)"):
        SinusoidalPositions(4).prefill(torch.zeros(2, 5, 4), torch.zeros(3, dtype=f64))
    with pytest.raises(ValueError, match="dt_scale must be a number > 0"):
        SinusoidalPositions(4)(torch.zeros(2, 5, 4), dt_scale=0.0)
